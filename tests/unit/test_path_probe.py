"""Whether files are there, though a file system does not answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from edl.scheduler.host import path_probe
from edl.scheduler.host.path_probe import AGAIN_S, FORGOTTEN_S, HANGS_S, PathProbe, exists_here


class Clock:
    now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


class Disk:
    """Files by path; a look at one in ``hanging`` lasts until ``goes_on``."""

    def __init__(self) -> None:
        self.there: set[str] = set()
        self.hanging: set[str] = set()
        self.hangs = threading.Event()
        self.goes_on = threading.Event()
        self.looks: list[str] = []

    def exists(self, path: str) -> bool:
        self.looks.append(path)
        if path in self.hanging:
            self.hangs.set()
            assert self.goes_on.wait(30.0)
        return path in self.there


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    one = Clock()
    monkeypatch.setattr(path_probe, "time", one)
    return one


@pytest.fixture
def disk() -> Iterator[Disk]:
    one = Disk()
    yield one
    one.goes_on.set()


def answered(probe: PathProbe, *paths: str) -> dict[str, bool]:
    """Return the answers of looks that end."""
    return probe.answers(paths, wait_s=30.0)


def test_it_looks_again_now_and_then(clock: Clock, disk: Disk) -> None:
    probe, told = PathProbe(disk.exists), threading.Semaphore(0)
    probe.on_answer = told.release
    disk.there = {"/a"}
    assert answered(probe, "/a", "/b") == {"/a": True, "/b": False}
    assert told.acquire(timeout=30.0)
    disk.there = {"/b"}
    clock.now_s += AGAIN_S - 1
    assert answered(probe, "/a", "/b") == {"/a": True, "/b": False}
    assert disk.looks == ["/a", "/b"]
    clock.now_s += 1
    answered(probe, "/a", "/b")
    assert told.acquire(timeout=30.0)
    assert answered(probe, "/a", "/b") == {"/a": False, "/b": True}


def test_a_look_that_does_not_end_holds_up_no_other(clock: Clock, disk: Disk) -> None:
    probe = PathProbe(disk.exists)
    disk.there, disk.hanging = {"/a", "/dead"}, {"/dead"}
    assert probe.answers(["/dead"], wait_s=0.0) == {}
    assert disk.hangs.wait(30.0)
    clock.now_s += HANGS_S
    assert answered(probe, "/a") == {"/a": True}
    assert probe.answers(["/dead", "/a"], wait_s=0.0) == {"/a": True}
    disk.goes_on.set()
    while not probe.answers(["/dead"]):
        pass
    assert disk.looks.count("/dead") == 1


def test_an_old_answer_is_none(clock: Clock, disk: Disk) -> None:
    probe = PathProbe(disk.exists)
    disk.there = {"/a"}
    assert answered(probe, "/a") == {"/a": True}
    disk.hanging = {"/a"}
    clock.now_s += AGAIN_S
    assert probe.answers(["/a"]) == {"/a": True}
    clock.now_s += AGAIN_S
    assert probe.answers(["/a"]) == {}


def test_paths_of_jobs_that_are_gone_are_forgotten(clock: Clock, disk: Disk) -> None:
    probe = PathProbe(disk.exists)
    answered(probe, "/a")
    clock.now_s += FORGOTTEN_S + 1
    answered(probe, "/b")
    assert disk.looks == ["/a", "/b"]
    answered(probe, "/a")
    assert disk.looks == ["/a", "/b", "/a"]


def test_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    for name, there in {"": True, "file": True, "file/": False, "no": False, "link": False}.items():
        assert exists_here(f"{tmp_path}/{name}") is there
    assert exists_here(f"{tmp_path}/{'x' * 5000}") is False
