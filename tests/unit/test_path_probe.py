"""Whether files are there, though a file system does not answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from edl.cluster.host import path_probe
from edl.cluster.host.path_probe import AGAIN_S, FORGOTTEN_S, HANGS_S, PathProbe, exists_here


class Clock:
    now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


class Disk:
    """Files by path; a look at one in ``hanging`` lasts until ``goes_on``.

    While it is ``slow``, a look lasts until the test lets one of them ``end``.
    """

    def __init__(self) -> None:
        self.there: set[str] = set()
        self.hanging: set[str] = set()
        self.slow = False
        self.begun = threading.Semaphore(0)
        self.end = threading.Semaphore(0)
        self.hangs = threading.Event()
        self.goes_on = threading.Event()
        self.looks: list[str] = []

    def exists(self, path: str) -> bool:
        self.looks.append(path)
        if path in self.hanging:
            self.hangs.set()
            assert self.goes_on.wait(30.0)
        if self.slow:
            self.begun.release()
            assert self.end.acquire(timeout=30.0)
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
    one.end.release(100)


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
    assert disk.hangs.wait(30.0)
    clock.now_s += AGAIN_S
    assert probe.answers(["/a"]) == {}


def test_to_wait_for_a_thread_is_no_look_that_hangs(
    clock: Clock, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With many paths on a slow disk some wait for longer than a look may last."""
    monkeypatch.setattr(path_probe, "MAX_THREADS", 1)
    probe, all_there = PathProbe(disk.exists), {"/a": True, "/b": True, "/c": True}
    disk.there = set(all_there)
    assert answered(probe, *all_there) == all_there
    disk.slow = True
    clock.now_s += AGAIN_S
    assert probe.answers(all_there) == all_there
    assert disk.begun.acquire(timeout=30.0)  # /a
    clock.now_s += AGAIN_S - 1
    disk.end.release()
    assert disk.begun.acquire(timeout=30.0)  # /b
    clock.now_s += AGAIN_S - 1
    assert probe.answers(all_there) == all_there
    clock.now_s += 1
    assert probe.answers(["/b"]) == {}, "its look hangs"
    assert probe.answers(["/c"]) == {}, "no thread is left that goes on"


def test_a_path_that_waits_has_another_thread_started(clock: Clock, disk: Disk) -> None:
    """Though the looks end one after another."""
    probe, paths = PathProbe(disk.exists), ["/a", "/b", "/c", "/d"]
    disk.slow = True
    probe.answers(paths, wait_s=0.0)
    assert disk.begun.acquire(timeout=30.0)
    clock.now_s += 0.6 * HANGS_S
    disk.end.release()
    assert disk.begun.acquire(timeout=30.0)
    probe.answers(paths, wait_s=0.0)
    assert disk.looks == ["/a", "/b"]
    clock.now_s += 0.6 * HANGS_S
    probe.answers(paths, wait_s=0.0)
    assert disk.begun.acquire(timeout=30.0)
    assert disk.looks == ["/a", "/b", "/c"]


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


def test_a_thread_that_cannot_be_started_is_started_later(
    disk: Disk, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    disk.there = {"/a"}
    probe, told = PathProbe(disk.exists), threading.Semaphore(0)
    probe.on_answer = told.release
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        assert probe.answers(["/a"], 0.0) == {}
    assert probe.answers(["/a"], 0.0) in ({}, {"/a": True})
    assert told.acquire(timeout=30.0)
    assert probe.answers(["/a"], 0.0) == {"/a": True}
