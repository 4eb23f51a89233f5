"""What a host does to the processes of a job: no directory, no thread, a failing disk, any name."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import psutil
import pytest

from edl.binding.process import tell
from edl.cluster.host.processes import start_of
from edl.host.adoption import identity
from edl.host.workers import End, Workers, log_directory, script_end
from edl.http.client import ask_all
from edl.job.policy_loop import Fitting
from edl.policy.observation import SizeMeasurement
from edl.ring.ring import Ring
from edl.worker.activity import ThreadWatch

CUT = "обучение модели".encode()[:15]  # as Linux cuts the name of a process, in a character
NAMED = f"""
import sys
open("/proc/self/comm", "wb").write({CUT!r})
print("named", flush=True)
sys.stdin.read()
"""
WAIT_S = 60.0


@pytest.fixture
def named() -> Iterator[int]:
    command = [sys.executable, "-S", "-c", NAMED]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"named\n"
        yield process.pid
        process.stdin.close()


def refuse(self: threading.Thread) -> NoReturn:
    raise RuntimeError("can't start new thread")


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", refuse)


def test_a_name_that_is_cut_in_a_character(named: int) -> None:
    assert script_end(named) is None
    assert identity(named).startswith(f"{named} since ")
    assert (start_of(named) or 0) > 0


def test_the_line_of_a_worker_whose_directory_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    nothing: Any = object()
    watch = ThreadWatch(Ring(nothing, nothing))
    watch.start()
    gone.rmdir()
    assert watch.look().where.startswith(f"{Path(__file__).name}:")


@pytest.mark.usefixtures("no_threads")
def test_without_a_thread_workers_are_asked_one_by_one() -> None:
    found = ask_all(dict.fromkeys(range(3), ("127.0.0.1", 1)), 0.1)
    assert sorted(found) == [0, 1, 2]


def test_without_a_thread_a_fit_begins_with_the_next_look(monkeypatch: pytest.MonkeyPatch) -> None:
    fitting, seen = Fitting(clock=lambda: 0.0), {(2, 0): SizeMeasurement(100.0, 50, 32.0)}
    with monkeypatch.context() as now:
        now.setattr(threading.Thread, "start", refuse)
        fitting.poll(seen)
    begun: list[threading.Thread] = []
    monkeypatch.setattr(threading.Thread, "start", lambda self: begun.append(self))
    fitting.poll(seen)
    assert [thread.name for thread in begun] == ["edl-fit"]


def wait_for(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def end_of(workers: Workers, attempt_id: str) -> End:
    found: dict[str, End] = {}
    wait_for(lambda: bool(found.update(workers.reap()) or found))
    return found[attempt_id]


@pytest.fixture
def workers(tmp_path: Path) -> Workers:
    return Workers(["true"], tmp_path, dict(os.environ), tmp_path / "logs")


def start(workers: Workers) -> str:
    workers.start("abc-0", 0)
    return "abc-0"


def test_a_disk_that_fails_ends_no_other_worker(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stays(self: Path, missing_ok: bool = False) -> NoReturn:
        raise OSError(errno.EROFS, "read-only")

    attempt_id = start(workers)
    monkeypatch.setattr(Path, "unlink", stays)
    assert end_of(workers, attempt_id).code == 0


@pytest.mark.parametrize("skew_s", [-7200.0, 7200.0])
def test_the_clock_of_a_file_server_does_not_count(
    workers: Workers, tmp_path: Path, skew_s: float
) -> None:
    attempt_id = start(workers)
    trained = tmp_path / "logs" / f"{attempt_id}.trained"
    tell(str(trained), "")
    os.utime(trained, (time.time() + skew_s,) * 2)
    trained_s = end_of(workers, attempt_id).trained_s
    assert trained_s is not None
    assert 0.0 <= trained_s < WAIT_S


def test_a_time_that_was_not_written_is_now(workers: Workers, tmp_path: Path) -> None:
    attempt_id = start(workers)
    (tmp_path / "logs" / f"{attempt_id}.trained").touch()
    assert end_of(workers, attempt_id).trained_s == 0.0


def test_logs_that_another_one_removes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    glob = Path.glob
    (tmp_path / "jobs" / "old" / "logs").mkdir(parents=True)

    def with_one_that_is_gone(self: Path, pattern: str) -> Iterator[Path]:
        yield from glob(self, pattern)
        if pattern == "*.log" and self.parent.name == "old":
            yield self / "gone.log"

    monkeypatch.setattr(Path, "glob", with_one_that_is_gone)
    assert log_directory(tmp_path, "digits", fresh=True).is_dir()


@pytest.mark.parametrize("is_other", [False, True], ids=["worker", "other"])
def test_the_helpers_of_a_worker_that_was_taken_over_end_with_it(
    tmp_path: Path, is_other: bool
) -> None:
    """Not those of another process that has its pid by now."""
    environment = {**os.environ, "EDL_JOB": "j", "EDL_SECRET": tmp_path.name, "EDL_HOST": "a"}
    command = ["sh", "-c", "sleep 1000 & echo $! > new; mv new helper; wait"]
    started, next_one = (Workers(command, tmp_path, environment, tmp_path) for _ in range(2))
    started.start("abc-0", 0)
    try:
        wait_for((tmp_path / "helper").exists)
        helper = psutil.Process(int((tmp_path / "helper").read_text()))
        (worker,) = next_one.orphans()
        next_one.watch([replace(worker, attempt_id="abc-1")] if is_other else [worker])
        worker.process.kill()  # it stays a zombie until it is reaped
        wait_for(lambda: len(next_one.reap()) == 1)
        if is_other:
            assert helper.status() != psutil.STATUS_ZOMBIE
        else:
            wait_for(lambda: not helper.is_running() or helper.status() == psutil.STATUS_ZOMBIE)
    finally:
        started.kill_all(WAIT_S)
