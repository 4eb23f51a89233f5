"""What `edl-discover` remembers from one call to the next."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from edl.host.horovodrun import last_answer
from edl.host.horovodrun.discovery import _file
from edl.host.horovodrun.driver import find_launcher
from edl.host.horovodrun.last_answer import FRESH_S, TOUCH_S, DesiredFile, keep_answer

HERE = ("python", "/bin/horovodrun", "-np", "2")
SHELL = ("/bin/sh", "-c", "horovodrun -np 2")
ONE, TWO = {"localhost": 1}, {"localhost": 2}


@pytest.fixture(autouse=True)
def horovodrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    proc, state = tmp_path / "proc", tmp_path / "state" / "edl" / "horovodrun"
    boot = proc / "sys" / "kernel" / "random" / "boot_id"
    boot.parent.mkdir(parents=True)
    boot.write_text("f00-1\n")
    for pid, parent, command in ((9, 8, SHELL), (8, 1, HERE), (1, 0, ("init",))):
        directory = proc / str(pid)
        directory.mkdir()
        (directory / "cmdline").write_text("\0".join(command) + "\0")
        fields = ["S", str(parent), *"345678", *(str(n) for n in range(9, 22)), "22000", "23"]
        (directory / "stat").write_text(f"{pid} (a ) b) {' '.join(fields[:19])} {1000 + pid} 0")
    monkeypatch.setattr(last_answer, "PROC", str(proc))
    monkeypatch.setattr(os, "getppid", lambda: 9)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("EDL_HOSTS", raising=False)
    monkeypatch.chdir(tmp_path)
    state.mkdir(parents=True)
    return state


def test_a_horovodrun_is_found_by_its_number_and_the_time_of_its_start(horovodrun: Path) -> None:
    """The time is that of the machine's start, so the clock may be set."""
    launcher = find_launcher()
    assert launcher is not None
    assert (launcher.pid, launcher.started, launcher.command) == (8, "f00-1008", HERE)
    assert _file(horovodrun.parent, launcher) == horovodrun / "8-f00-1008.json"


def test_without_a_horovodrun_nothing_is_kept(
    horovodrun: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getppid", lambda: 1)
    assert find_launcher() is None
    DesiredFile.of_this_job().put(TWO, 0.0)
    keep_answer([], TWO, "localhost:2")
    assert last_answer.last_answer([]) is None
    assert not list(horovodrun.iterdir())


def test_the_answer_is_repeated_while_as_many_workers_are_desired(horovodrun: Path) -> None:
    file = DesiredFile.of_this_job()
    assert last_answer.last_answer([]) is None
    keep_answer([], TWO, "localhost:2\n127.0.0.1:0")
    assert last_answer.last_answer([]) is None, "no edl-worker says that it holds still"
    file.put(ONE, 10.0)
    assert last_answer.last_answer([]) is None
    file.put(TWO, 10.0)
    assert last_answer.last_answer([]) == "localhost:2\n127.0.0.1:0"
    assert all(path.stat().st_mode & 0o077 == 0 for path in horovodrun.iterdir())
    file.put(ONE, 10.1)
    assert last_answer.last_answer([]) is None
    keep_answer([], ONE, "localhost:1\n127.0.0.1:0")
    assert last_answer.last_answer([]) == "localhost:1\n127.0.0.1:0"


def test_another_question_is_answered_anew(
    horovodrun: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    DesiredFile.of_this_job().put(TWO, 0.0)
    keep_answer(["a:2"], TWO, "a:2")
    assert last_answer.last_answer(["a:2"]) == "a:2"
    assert last_answer.last_answer(["a:2", "b:2"]) is None
    with monkeypatch.context() as patch:
        patch.setenv("EDL_HOSTS", "b:1")
        assert last_answer.last_answer(["a:2"]) is None
    (tmp_path / "edl.toml").write_text('hosts = "b:1"\n')
    assert last_answer.last_answer(["a:2"]) is None
    (tmp_path / "edl.toml").unlink()
    (tmp_path / "config" / "edl").mkdir(parents=True)
    (tmp_path / "config" / "edl" / "edl.toml").write_text('hosts = "b:1"\n')
    assert last_answer.last_answer(["a:2"]) is None


def test_nothing_is_repeated_when_no_worker_has_followed_the_job_for_a_time(
    horovodrun: Path,
) -> None:
    file = DesiredFile.of_this_job()
    file.put(TWO, 10.0)
    keep_answer([], TWO, "localhost:2")
    (kept,) = horovodrun.glob("*.desired")
    for moved_s in (-FRESH_S - 1.0, 60.0):  # the clock was set back, too
        os.utime(kept, (time.time() + moved_s,) * 2)
        assert last_answer.last_answer([]) is None
    file.put(TWO, 10.0 + TOUCH_S / 2)
    assert last_answer.last_answer([]) is None
    file.put(TWO, 10.0 + TOUCH_S)
    assert last_answer.last_answer([]) == "localhost:2"


def test_a_file_that_is_gone_is_written_anew(horovodrun: Path) -> None:
    file = DesiredFile.of_this_job()
    file.put(TWO, 10.0)
    (kept,) = horovodrun.glob("*.desired")
    kept.unlink()
    file.put(TWO, 11.0)
    assert not kept.exists()
    file.put(TWO, 11.2)
    assert kept.read_text() == "localhost:2"


def test_of_a_user_without_a_home_nothing_is_kept(
    horovodrun: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.delenv("HOME")
    DesiredFile.of_this_job().put(TWO, 0.0)
    keep_answer([], TWO, "localhost:2")
    assert last_answer.last_answer([]) is None
