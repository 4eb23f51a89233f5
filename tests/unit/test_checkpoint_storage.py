"""What a job does when the storage of its checkpoints hangs, or fails now and then."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import pytest
from test_checkpoints import ALONE, SOURCE, Replica, Start

from edl.checkpoint import format, store
from edl.checkpoint import format as files
from edl.checkpoint.format import Owner
from edl.checkpoint.location import mount_point
from edl.config import Config
from edl.errors import CheckpointError, EdlError
from edl.events import CheckpointFailedDetails
from edl.http.server import DaemonServer
from edl.job.run import UNSAVED_EXIT, JobEnd
from edl.job.state_share import WHOLE_STATE
from edl.records import JobState
from edl.spec import JobSettings
from edl.worker.checkpointing import Checkpointing
from edl.worker.coordinator import JobOfOne
from edl.worker.progress import LoaderProgress
from edl.worker.shared_state import SharedState

T = TypeVar("T")


class FileServer:
    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._directory, self._monkeypatch = directory, monkeypatch
        self.back = threading.Event()

    def goes_away(self) -> None:
        self._hang(files, "write")
        self._hang(files, "checkpoint_files")
        self._hang(os.path, "realpath")

    def _hang(self, module: Any, name: str) -> None:
        real = getattr(module, name)

        def hangs(path: Any, *given: Any, **named: Any) -> Any:
            if Path(path).is_relative_to(self._directory):
                self.back.wait(60)
            return real(path, *given, **named)

        self._monkeypatch.setattr(module, name, hangs)

    def answer(self, call: Callable[[], T]) -> T:
        found: list[T] = []
        thread = threading.Thread(target=lambda: found.append(call()), daemon=True)
        thread.start()
        thread.join(5)
        hangs = thread.is_alive()
        if hangs:
            self.back.set()
            thread.join(60)
        assert not hangs, "it waits for a file server that is away"
        return found[0]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    one = FileServer(tmp_path, monkeypatch)
    yield one
    one.back.set()
    for thread in threading.enumerate():
        if thread.name.startswith("edl-checkpoint"):
            thread.join(60)


def test_the_last_save_ends_in_time_though_the_storage_hangs(
    tmp_path: Path, server: FileServer
) -> None:
    start = Start(tmp_path)
    start.progress.step = 5
    disk = mount_point(tmp_path)
    server.goes_away()
    unsaved = server.answer(lambda: start.checkpoints.save_last(start.at, start.replica, 0.01))
    assert unsaved.endswith("it takes longer than 0.01 s (EDL_SAVE_TIMEOUT_S)")
    assert start.details == CheckpointFailedDetails(str(tmp_path), disk)


def test_a_preempted_job_ends_in_time_though_the_storage_hangs(
    tmp_path: Path, server: FileServer
) -> None:
    config = Config(job_settings=JobSettings(preempt_within_s=0.04))
    job, progress = JobOfOne(config), LoaderProgress()
    progress.attach(SOURCE, 0)
    one = Checkpointing(config, SharedState(), progress, job)
    one.replica = Replica()
    one.attach(tmp_path, 1000.0, 1)
    one.begin(ALONE, warmed_up=False)
    progress.has_state, progress.step = True, 5
    server.goes_away()
    job.leave_requested = True

    def ends_with() -> object:
        with pytest.raises(SystemExit) as end:
            one.save_if_due(WHOLE_STATE, ALONE.number)
        return end.value.code

    assert server.answer(ends_with) == UNSAVED_EXIT


@pytest.mark.parametrize("known", [10, None])
def test_what_is_saved_is_said_from_memory_if_the_storage_hangs(
    known: int | None, tmp_path: Path, server: FileServer
) -> None:
    start = Start(tmp_path)
    if known is not None:
        assert start.save(known) == ""
    server.goes_away()
    newest = server.answer(lambda: start.checkpoints.newest_saved(20, 0.0))
    assert newest == (known, str(tmp_path))


def test_a_new_rank_0_counts_from_now_if_the_storage_hangs(
    tmp_path: Path, server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "LOOK_S", 0.0)
    start = Start(tmp_path)
    start.progress.step = 3
    server.goes_away()
    server.answer(lambda: start.checkpoints.save_if_due(start.at, start.replica))
    assert not start.checkpoints.writer.is_writing
    assert start.logged == []


def test_a_worker_that_has_restored_removes_no_file_that_another_one_writes(tmp_path: Path) -> None:
    """It becomes rank 0 later, and the rank 0 before it has left, but still writes."""
    assert Start(tmp_path).save(10) == ""
    start = Start(tmp_path)
    start.restore()
    start.progress.step = 20
    (tmp_path / ".step-000000000019.safetensors.0123.tmp").touch()
    start.checkpoints.save_if_due(start.at, start.replica)
    assert len(list(tmp_path.glob(".step-*.tmp"))) == 1


def test_a_save_that_does_not_end_is_told_once(tmp_path: Path, server: FileServer) -> None:
    """No other checkpoint is written meanwhile, and nobody would know before the job's end."""
    start = Start(tmp_path, every_s=0.0, save_timeout_s=0.0)
    server.goes_away()
    for step in range(4):
        start.progress.step = step
        start.checkpoints.save_if_due(start.at, start.replica)
    ((kind, step, reason),) = start.logged
    assert (kind, step) == ("checkpoint_failed", 1)
    assert reason.startswith("the checkpoint of step 1 was not written: that of step 0 has been ")
    assert reason.endswith(" s, and is not complete")
    server.back.set()
    assert start.checkpoints.writer.wait(60)
    assert start.saved == [0]
    start.logged.clear()
    server.back.clear()
    for step in (5, 6):
        start.progress.step = step
        start.checkpoints.save_if_due(start.at, start.replica)
    assert [(kind, step) for kind, step, _ in start.logged] == [("checkpoint_failed", 6)]


@pytest.mark.parametrize(("every_s", "save_timeout_s"), [(0.0, 60.0), (60.0, 0.0)])
def test_a_save_is_not_told_before_its_time(
    every_s: float, save_timeout_s: float, tmp_path: Path, server: FileServer
) -> None:
    start = Start(tmp_path, every_s=every_s, save_timeout_s=save_timeout_s)
    server.goes_away()
    for step in range(4):
        start.progress.step = step
        start.checkpoints.save_if_due(start.at, start.replica, at_once=True)
    assert start.logged == []


@pytest.mark.parametrize("fails", ["unlink", "listdir"])
def test_a_leftover_that_cannot_be_removed_does_not_end_the_job(
    fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is another user's file in a directory with the sticky bit, or its NFS handle is stale."""
    start = Start(tmp_path)
    stale, other = (tmp_path / f".step-00000000000{n}.safetensors.0123.tmp" for n in (1, 2))
    stale.touch()
    other.touch()
    real = getattr(os, fails)

    def fail(path: Any, *given: Any, **named: Any) -> Any:
        if Path(path) in (stale, tmp_path):
            monkeypatch.setattr(os, fails, real)
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        return real(path, *given, **named)

    monkeypatch.setattr(os, fails, fail)
    start.checkpoints.save_if_due(start.at, start.replica)
    assert start.checkpoints.writer.wait(10)
    assert start.saved == [0]
    assert "Stale file handle" in caplog.text
    assert other.exists() is (fails == "listdir")


ALL_READS = 4  # of a claim: the first one, and one after each pause


def fail_reads(monkeypatch: pytest.MonkeyPatch, first: int = 1, times: int = ALL_READS) -> None:
    real, numbers = Path.read_text, count(1)
    monkeypatch.setattr(format, "PAUSES_S", (0.0,) * (ALL_READS - 1), raising=False)

    def read(path: Path, *given: Any, **named: Any) -> str:
        if path.name == format.FILE and first <= next(numbers) < first + times:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return real(path, *given, **named)

    monkeypatch.setattr(Path, "read_text", read)


def test_a_replaced_start_does_not_get_the_directory_back_by_a_failed_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Start(tmp_path), Start(tmp_path, run="r2", resume=tmp_path)
    first.checkpoints.writer.take_over(1)
    second.checkpoints.writer.take_over(1)
    fail_reads(monkeypatch)
    assert f"Input/output error: {tmp_path / format.FILE}" in first.save(10)
    assert format.owner_of(tmp_path) == Owner("digits", "r2", 1, ("r1",))
    assert "another start of job digits" in first.save(11)
    assert files.checkpoint_files(tmp_path) == []


@pytest.mark.parametrize("number", [1, 2])
def test_a_save_that_cannot_read_whose_the_directory_is_fails_and_is_tried_again(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Start(tmp_path)
    start.checkpoints.writer.take_over(1)
    fail_reads(monkeypatch, number)
    assert "Input/output error" in start.save(10)
    assert start.save(10) == ""
    assert start.saved == [10]


@pytest.mark.parametrize("number", [1, 2])
def test_a_save_reads_again_whose_the_directory_is(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Start(tmp_path)
    start.checkpoints.writer.take_over(1)
    fail_reads(monkeypatch, number, ALL_READS - 1)
    assert start.save(10) == ""


@pytest.mark.parametrize("is_superseded", [False, True])
def test_a_job_that_cannot_claim_its_directory_ends(
    is_superseded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But not if it goes on in a newer ring."""
    job, progress, ends = JobOfOne(Config()), LoaderProgress(), list[JobEnd]()
    progress.attach(SOURCE, 0)
    monkeypatch.setattr(job, "end_job", lambda end, _event: ends.append(end))
    one = Checkpointing(Config(), SharedState(), progress, job)
    one.replica = Replica()
    one.attach(tmp_path, 1000.0, 1)
    format.take_over(tmp_path, Owner("alone", job.run, ALONE.number + is_superseded))
    if not is_superseded:
        fail_reads(monkeypatch)
    with pytest.raises(CheckpointError) as error:
        one.begin(ALONE, warmed_up=False)
    ended = [] if is_superseded else [JobEnd(JobState.FAILED, str(error.value), exit_code=1)]
    assert ends == ended


@pytest.mark.parametrize("lives", [True, False])
def test_a_job_does_not_resume_beside_a_living_one(lives: bool, tmp_path: Path) -> None:
    server = DaemonServer("127.0.0.1", 0, health=lambda: {"run": "r1" if lives else "another"})
    server.start()
    job, progress = JobOfOne(Config(job_settings=JobSettings(resume="1"))), LoaderProgress()
    progress.attach(SOURCE, 0)
    one = Checkpointing(Config(), SharedState(), progress, job)
    one.replica = Replica()
    one.attach(tmp_path, 1000.0, 1)
    place = f"127.0.0.1:{server.port}"
    format.take_over(tmp_path, Owner("digits", "r1", 1, (), (place,)))
    why = f"job digits trains and saves into {tmp_path} .it answers at {place}" if lives else "no "
    try:
        with pytest.raises(EdlError, match=why):
            one.begin(ALONE, warmed_up=False)
    finally:
        server.close()


def test_a_start_that_cannot_read_whose_the_directory_is_does_not_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would not know which starts it replaces, and one of them could take its directory."""
    Start(tmp_path).checkpoints.writer.take_over(1)
    second = Start(tmp_path, run="r2", resume=tmp_path)
    fail_reads(monkeypatch)
    with pytest.raises(CheckpointError, match=f"cannot claim {tmp_path}: Input/output error"):
        second.checkpoints.writer.take_over(1)
    second.checkpoints.writer.take_over(1)
    assert format.owner_of(tmp_path) == Owner("digits", "r2", 1, ("r1",))


def test_a_damaged_claim_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / format.FILE).write_text("no JSON")
    assert format.owner_of(tmp_path) is None
    assert f"{tmp_path / format.FILE} is damaged, and counts as no claim" in caplog.text
