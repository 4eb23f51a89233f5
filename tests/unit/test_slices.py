"""The limits of a host's jobs: what systemd is told, and what happens when it says no."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from edl.cluster.host import processes, run_as
from edl.cluster.host.processes import Slices, check_slices
from edl.cluster.host_jobs import slot_limits
from edl.errors import UsageError

RUN, OTHER = ("a", "r1"), ("b", "r2")


class Systemd:
    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.refuses: dict[str, str] = {}  # a verb -> why
        self.units: list[str] = []

    def __call__(self, words: Sequence[str], **_: Any) -> subprocess.CompletedProcess[str]:
        self.asked.append(tuple(words))
        why = self.refuses.get(words[1])
        if why == "hang":
            raise subprocess.TimeoutExpired(list(words), 10.0)
        listed = "".join(f"{unit} loaded active active Slice\n" for unit in self.units)
        return subprocess.CompletedProcess(list(words), int(why is not None), listed, why or "")

    def verbs(self) -> list[tuple[str, str]]:
        named = [tuple(one for one in words if one.endswith(".slice")) for words in self.asked]
        return [
            (words[1], name)
            for words, names in zip(self.asked, named, strict=True)
            for name in names
        ]


@pytest.fixture
def systemd(monkeypatch: pytest.MonkeyPatch) -> Systemd:
    one = Systemd()
    monkeypatch.setattr(processes.subprocess, "run", one)
    return one


def made(mark: str = "m") -> Slices:
    return Slices(slot_limits("1G", 2.0, 100), mark)


def test_the_limits_follow_the_slots(systemd: Systemd) -> None:
    own = made()
    own.limit({RUN: 2, OTHER: 1})
    [(verb, first), (_, second)] = systemd.verbs()
    assert verb == "set-property"
    assert first != second
    expected = (f"MemoryMax={2 << 30}", "MemorySwapMax=0", "CPUQuota=400%", "TasksMax=200")
    assert systemd.asked[0] == ("systemctl", "set-property", "--runtime", first, *expected)
    own.limit({RUN: 2, OTHER: 1})
    assert len(systemd.asked) == 2, "nothing has changed"
    own.limit({RUN: 1, OTHER: 1})
    assert systemd.asked[2][3:5] == (first, f"MemoryMax={1 << 30}")
    made().limit({RUN: 1})
    assert systemd.asked[3][3] == first, "the next `edl host` finds it"
    made("n").limit({RUN: 1})
    assert systemd.asked[4][3] != first, "another host of this machine has its own"


def test_the_command_reaches_no_program_that_runs_as_root(systemd: Systemd) -> None:
    """The environment of a manifest may have LD_PRELOAD; `systemd-run` would obey it."""
    own = made()
    own.limit({RUN: 1})
    words, theirs = ("/bin/x", "--y"), {"LD_PRELOAD": "/tmp/evil.so", "K": "\udcff"}
    host = {"PATH": "/bin", "SECRET": "x", "PYTHONPATH": "/tmp"}
    with own.launch(RUN, words, theirs, None, host) as launch:
        assert launch.environment == {"PATH": "/bin"}
        before = launch.words.index("--")
        name = systemd.asked[0][3]
        assert launch.words[:before] == (
            *("systemd-run", "--scope", "--quiet", "--collect", f"--slice={name}"),
            "--description=edl agent of job a",
        )
        stage = (sys.executable, "-I", run_as.__file__, str(launch.descriptor))
        assert launch.words[before + 1 :] == stage
        assert json.loads(os.read(launch.descriptor, 1000)) == [list(words), theirs, None]
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(launch.descriptor)


@pytest.mark.parametrize(("why", "says"), [("no such unit", "no such unit"), ("hang", "within 10")])
def test_nothing_starts_without_its_limits(systemd: Systemd, why: str, says: str) -> None:
    own = made()
    systemd.refuses["set-property"] = why
    own.limit({RUN: 1})
    for run in (RUN, OTHER):
        with (
            pytest.raises(OSError, match=says if run == RUN else "not asked for"),
            own.launch(run, ("x",), {}, None, {}),
        ):
            pass
    del systemd.refuses["set-property"]
    own.limit({RUN: 1})
    with own.launch(RUN, ("x",), {}, None, {}):
        pass


def test_slices_of_runs_that_are_over_are_removed(systemd: Systemd) -> None:
    own = made()
    own.limit({RUN: 1, OTHER: 1})
    [(_, first), (_, second)] = systemd.verbs()
    group = first.rpartition("-")[0]
    systemd.units = [first, second, f"{group}-of-an-earlier-host.slice"]
    systemd.asked.clear()
    own.keep_only({RUN, OTHER})
    earlier = systemd.units[2]
    assert systemd.verbs() == [
        ("list-units", f"{group}-*.slice"),
        ("stop", earlier),
        ("revert", earlier),
    ]
    systemd.asked.clear()
    own.keep_only({RUN})
    assert systemd.verbs() == [("stop", second), ("revert", second)]
    own.keep_only({RUN})
    assert len(systemd.asked) == 2
    own.limit({OTHER: 1})
    assert systemd.verbs()[-1] == ("set-property", second), "it is set anew"


def test_limits_need_root_and_systemd(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(processes.shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(processes, "BOOTED", tmp_path)
    monkeypatch.setattr(processes.os, "geteuid", lambda: 0)
    check_slices()
    monkeypatch.setattr(processes, "BOOTED", tmp_path / "none")
    with pytest.raises(UsageError, match="that systemd has started"):
        check_slices()
    monkeypatch.setattr(processes.os, "geteuid", lambda: 1000)
    with pytest.raises(UsageError, match="to run as root"):
        check_slices()


@pytest.mark.parametrize("user", [None, (65534, 65534, (65534,))])
def test_the_command_runs_as_its_user_with_its_environment(
    tmp_path: Path, user: tuple[int, int, tuple[int, ...]] | None
) -> None:
    if user is not None and os.geteuid() != 0:
        user = (os.getuid(), os.getgid(), tuple(os.getgroups()))  # nobody else is possible
    script = "id -u; id -G; env | sort; umask"
    command = run_as.UserCommand(
        ("/bin/sh", "-c", script), {"K": "\udcff", "PATH": os.environ["PATH"]}, user
    )
    file = tmp_path / "order"
    file.write_text(json.dumps(command))
    with file.open() as opened:
        done = subprocess.run(
            [sys.executable, "-I", run_as.__file__, str(opened.fileno())],
            pass_fds=[opened.fileno()],
            env={"LD_BIND_NOW": "1", "PYTHONHOME": "/nowhere"},
            stdout=subprocess.PIPE,
            check=True,
        )
    uid, groups, *said = done.stdout.splitlines()
    assert int(uid) == (os.getuid() if user is None else user[0])
    assert set(map(int, groups.split())) == (
        {os.getgid(), *os.getgroups()} if user is None else {user[1], *user[2]}
    )
    assert b"K=\xff" in said
    assert not [line for line in said if line.startswith((b"LD_BIND", b"PYTHON"))]
