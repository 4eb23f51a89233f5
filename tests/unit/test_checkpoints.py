"""Which checkpoint a start of a job reads, when it saves, and what it refuses."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from edl.checkpoint import format as files
from edl.checkpoint import safetensors
from edl.checkpoint.format import Owner, owner_of
from edl.checkpoint.location import Location, mount_point
from edl.checkpoint.store import Checkpoints, check_resumable
from edl.checkpoint.writer import CheckpointConfig, CheckpointPosition, JobRecords
from edl.config import Config
from edl.errors import CheckpointError, UsageError
from edl.events import CheckpointFailedDetails, Details
from edl.job.script import Arithmetic, DoneFit
from edl.job.state_share import WHOLE_STATE, StateShare
from edl.spec import JobSettings
from edl.step.batching import Batching, logical_batching
from edl.step.source import SUBSET, Source, TrainingLength
from edl.worker.checkpointing import Checkpointing
from edl.worker.coordinator import JobOfOne
from edl.worker.progress import LoaderProgress, Receive
from edl.worker.shared_state import SharedState

SOURCE = Source(total=100, batching=Batching(4), shuffle=True, seed=7, prefetch_batches=0)
LEARNED = {"seen": [[2, {"samples_per_s": 40.0, "steps": 9}]]}


class Replica:
    framework = "torch"

    def __init__(self, value: object = 0) -> None:
        self.value = value

    def capture(self, _share: StateShare = WHOLE_STATE) -> Any:
        return {"value": self.value}

    def restore(self, state: Any) -> None:
        self.value = state["value"]


class Start:
    def __init__(
        self,
        directory: Location,
        run: str = "r1",
        resume: Location | None = None,
        source: Source = SOURCE,
        **config: Any,
    ) -> None:
        self.logged: list[tuple[str, int, str]] = []
        self.saved: list[int] = []
        self.replica: Any = Replica()
        self.progress = LoaderProgress()
        self.progress.attach(source, 0)
        config = {"every_s": 1000.0, "save_timeout_s": 60.0, "job": "digits"} | config
        records = JobRecords(
            self._log, lambda _path, step: self.saved.append(step), lambda: LEARNED
        )
        how = CheckpointConfig(directory, keep=3, run=run, resume_from=resume, **config)
        self.checkpoints = Checkpoints(how, records)
        self.checkpoints.check_directory()

    def _log(self, details: Details, step: int, reason: str) -> None:
        self.logged.append((details.kind, step, reason))
        self.details = details

    def save(self, step: int) -> str:
        self.progress.step, self.replica.value = step, step
        return self.checkpoints.save_last(self.at, self.replica, timeout_s=10)

    @property
    def at(self) -> CheckpointPosition:
        return self.progress.place

    def restore(self) -> int | None:
        progress = self.progress
        found = self.checkpoints.restore(progress.source, self.replica, progress.resume)
        return None if found is None else found.manifest.step


def test_what_the_job_has_learned_is_saved(tmp_path: Path) -> None:
    Start(tmp_path).save(3)
    assert files.read_checkpoint(files.path_of(tmp_path, 3)).manifest.learned == LEARNED


def tear(directory: Path, step: int) -> None:
    path = files.path_of(directory, step)
    path.write_bytes(path.read_bytes()[:-1])


def test_a_fresh_start_finds_nothing(tmp_path: Path) -> None:
    assert Start(tmp_path / "new" / "one").restore() is None


def test_the_same_run_goes_on_from_its_newest(tmp_path: Path) -> None:
    first = Start(tmp_path)
    for step in (0, 10, 20):
        first.save(step)
    again = Start(tmp_path)
    assert again.restore() == 20
    assert (again.replica.value, again.progress.step) == (20, 20)
    assert again.progress.has_state
    assert again.saved == [20]


def test_another_run_is_refused_unless_it_resumes(tmp_path: Path) -> None:
    Start(tmp_path).save(10)
    with pytest.raises(CheckpointError, match=r"another run \(job digits, step 10\).*--resume"):
        Start(tmp_path, run="r2").restore()
    assert Start(tmp_path, run="r2", resume=tmp_path).restore() == 10


def test_a_torn_file_is_refused_and_the_one_before_is_used(tmp_path: Path) -> None:
    first = Start(tmp_path)
    first.save(10)
    first.save(20)
    tear(tmp_path, 20)
    again = Start(tmp_path)
    assert again.restore() == 10
    ((kind, _, reason),) = again.logged
    assert kind == "checkpoint_refused"
    assert "step-000000000020.safetensors is torn" in reason


def test_nothing_but_torn_files_is_an_error_that_names_them(tmp_path: Path) -> None:
    Start(tmp_path).save(10)
    tear(tmp_path, 10)
    with pytest.raises(CheckpointError, match=r"files in the way: .* is torn"):
        Start(tmp_path).restore()
    with pytest.raises(CheckpointError, match=r"there is no checkpoint in .*; refused: .* is torn"):
        Start(tmp_path, run="r2", resume=tmp_path).restore()


def test_resuming_without_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no checkpoint in"):
        Start(tmp_path, resume=tmp_path).restore()
    with pytest.raises(CheckpointError, match="there is no directory"):
        Start(tmp_path, resume=tmp_path / "nothing").restore()


def test_a_directory_to_resume_from_is_looked_into_first(tmp_path: Path) -> None:
    (tmp_path / "step-000000000030.safetensors").write_text("not one")
    with pytest.raises(CheckpointError, match=r"there is no checkpoint in .*; refused: .*000030"):
        check_resumable(tmp_path)
    Start(tmp_path).save(10)
    check_resumable(tmp_path)


def test_resuming_if_there_is_a_checkpoint_else_beginning(tmp_path: Path) -> None:
    assert Start(tmp_path, resume=tmp_path, or_begin=True).restore() is None
    Start(tmp_path).save(10)
    assert Start(tmp_path, run="r2", resume=tmp_path, or_begin=True).restore() == 10
    tear(tmp_path, 10)  # to begin afresh would write over what somebody may yet want
    with pytest.raises(CheckpointError, match=r"files in the way: .* is torn"):
        Start(tmp_path, run="r3", resume=tmp_path, or_begin=True).restore()


@pytest.mark.parametrize(
    ("before", "job", "or_begin", "warned"),
    [
        ("lr-0.1", "lr-0.01", True, True),
        ("lr-0.1", "lr-0.01", False, False),  # a user has asked for it
        ("lr-0.1", "lr-0.1", True, False),
        ("train-3f9a", "train-07c1", True, False),  # edl has made them up
        ("sweep-0001", "sweep-0002", True, True),
        ("alone", "lr-0.1", True, False),
    ],
)
def test_who_goes_on_from_a_job_of_another_name_is_told(
    before: str, job: str, or_begin: bool, warned: bool, tmp_path: Path, caplog: Any
) -> None:
    Start(tmp_path, job=before).save(700)
    again = Start(tmp_path, run="r2", resume=tmp_path, or_begin=or_begin, job=job)
    assert again.restore() == 700
    path = files.path_of(tmp_path, 700)
    said = f"job {job} goes on from a checkpoint of job {before}, {path}, and saves there from now"
    assert [text.startswith(said) for text in caplog.messages] == [True] * warned
    assert all(f"and job {before} cannot save there any more" in text for text in caplog.messages)


def test_a_job_that_does_not_go_on_from_another_ones_is_not_said_to(
    tmp_path: Path, caplog: Any
) -> None:
    Start(tmp_path, job="lr-0.1").save(700)
    again = Start(tmp_path, run="r2", resume=tmp_path, or_begin=True, job="lr-0.01")

    def refuse(_state: Any) -> None:
        raise CheckpointError("it is of another model")

    again.replica.restore = refuse
    with pytest.raises(CheckpointError, match="another model"):
        again.restore()
    assert caplog.messages == []


def test_resuming_from_another_directory_then_from_the_own_one(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    Start(old).save(10)
    second = Start(new, run="r2", resume=old)
    assert second.restore() == 10
    second.save(12)
    assert Start(new, run="r2", resume=old).restore() == 12
    with pytest.raises(CheckpointError, match="you resume from"):
        Start(new, run="r3", resume=old).restore()


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"cannot write into .*/file/saved"):
        Start(tmp_path / "file" / "saved")


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (
            Source(101, Batching(4), True, 7, 0),
            "a dataset of other size: 100 samples there, 101 samples in this script",
        ),
        (Source(100, Batching(4), True, 8, 0), r"seed \(.*generator\): 7 there, 8 in this"),
        (
            Source(100, Batching(4), False, 7, 0),
            "with another shuffle: True there, False in this script",
        ),
        (
            Source(100, Batching(4), True, 7, 0, "100 lines"),
            "other data: data of unknown files there, 100 lines in",
        ),
    ],
)
def test_other_data_are_refused(tmp_path: Path, source: Source, sentence: str) -> None:
    Start(tmp_path).save(10)
    with pytest.raises(CheckpointError, match=sentence):
        Start(tmp_path, source=source).restore()


@pytest.mark.parametrize(
    ("before", "now", "sentence"),
    [
        (4, 2, r"--logical 4 \(32 samples.* has --logical 2 \(16 samples.*; give --logical 4,"),
        (4, 0, "with --logical 4 .* has no logical workers; give --logical 4,"),
        (0, 4, "with no logical workers, .* has --logical 4 .*; leave out --logical,"),
    ],
)
def test_another_number_of_logical_workers_is_refused_unless_the_directory_is_named(
    before: int, now: int, sentence: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def source(logical: int) -> Source:
        batching = logical_batching("it", Batching(8), logical) if logical else Batching(8)
        return replace(SOURCE, batching=batching)

    Start(tmp_path, source=source(before)).save(10)
    again = {"run": "r2", "resume": tmp_path, "source": source(now)}
    with pytest.raises(CheckpointError, match=f"cannot resume: .*{sentence} .*--resume-from"):
        Start(tmp_path, **again).restore()
    assert Start(tmp_path, **again, names_directory=True).restore() == 10
    assert "the job goes on with these" in caplog.text
    assert Start(tmp_path, **again | {"source": source(before)}).restore() == 10


def test_a_subset_is_compared_with_what_is_known_of_the_one_before(tmp_path: Path) -> None:
    """An earlier edl knew nothing of the samples that a Subset chooses."""
    Start(tmp_path).save(10)
    source = replace(SOURCE, fingerprint=f"{SUBSET} of 100 samples (1)")
    again = Start(tmp_path, source=source)
    assert again.restore() == 10
    again.save(20)
    with pytest.raises(
        CheckpointError, match=r"with other data: a Subset .*\(1\) there, .*\(2\) in"
    ):
        Start(
            tmp_path, source=replace(SOURCE, fingerprint=f"{SUBSET} of 100 samples (2)")
        ).restore()


def test_another_seed_is_fine_if_the_order_does_not_follow_from_it(tmp_path: Path) -> None:
    """An older edl had 0 in the file where now is the seed of a generator, and the reverse."""
    source = replace(SOURCE, shuffle=False)
    Start(tmp_path, source=source).save(10)
    assert Start(tmp_path, source=replace(source, seed=8)).restore() == 10


def test_another_batch_size_is_fine_and_all_leases_are_free(tmp_path: Path) -> None:
    first = Start(tmp_path)
    first.progress.enter((0, 1, 2))
    first.save(10)
    held = sum(first.progress.ledger.held_samples(worker) for worker in (0, 1, 2))
    assert held > 0
    again = Start(tmp_path, source=Source(100, Batching(9), True, 7, 0))
    assert again.restore() == 10
    ledger = again.progress.ledger
    assert ledger.free_samples + ledger.held_samples(0) == 100
    assert ledger.held_by(0)[0][0] == 0


def test_a_checkpoint_of_the_end_of_an_epoch_begins_the_next(tmp_path: Path) -> None:
    first = Start(tmp_path)
    ledger = first.progress.ledger
    first.progress._ledger = type(ledger)(ledger.total, 4, ())
    first.save(10)
    again = Start(tmp_path)
    again.restore()
    assert again.progress.ledger.epoch == 5
    assert again.progress.ledger.done == 0


def test_a_fit_that_was_stopped_is_over_after_a_resumption(tmp_path: Path) -> None:
    start = Start(tmp_path)
    start.save(10)
    start.progress.fit_stopped = "w0 wants to stop"
    start.save(20)
    again = Start(tmp_path)
    assert (again.restore(), again.progress.fit_stopped) == (20, "w0 wants to stop")
    files.path_of(tmp_path, 20).unlink()
    assert (again.restore(), again.progress.fit_stopped) == (10, "")


def test_the_changes_of_the_global_batch_are_saved(tmp_path: Path) -> None:
    """A momentum that holds the learning rate was made with them; they are no ramp any more."""
    start = Start(tmp_path)
    start.progress.batches = ((0, 256), (7, 512))
    start.save(10)
    again = Start(tmp_path)
    again.restore()
    newcomer = Start(tmp_path).progress
    newcomer.take_over(again.progress.header(), Receive.ALL)
    for one in (again.progress, newcomer):
        assert (one.batches, one.batches_resumed) == ((), ((0, 256), (7, 512)))
        assert one.place.batches == ((0, 256), (7, 512)), "there was no step since"
        one.batches = ((10, 128),)
        assert one.place.batches == ((10, 128),)


def test_a_checkpoint_of_an_older_edl_says_nothing_of_a_stopped_fit_and_of_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = {"fit_stopped", "batches"}

    def asdict(manifest: files.Manifest) -> dict[str, Any]:
        return {name: value for name, value in vars(manifest).items() if name not in newer}

    monkeypatch.setattr(files, "asdict", asdict)
    start = Start(tmp_path)
    start.progress.batches = ((0, 256),)
    start.save(10)
    assert b"fit_stopped" not in files.path_of(tmp_path, 10).read_bytes()
    again = Start(tmp_path)
    assert (again.restore(), again.progress.fit_stopped) == (10, "")
    assert again.progress.batches_resumed == ()


def test_another_framework_is_refused(tmp_path: Path) -> None:
    Start(tmp_path).save(10)
    again = Start(tmp_path)
    again.replica.framework = "tensorflow"
    with pytest.raises(CheckpointError, match="is of a torch job, and this is a tensorflow script"):
        again.restore()


def test_the_first_step_is_saved_at_once_and_then_in_time(tmp_path: Path) -> None:
    start = Start(tmp_path)
    for step in range(3):
        start.progress.step = step
        start.checkpoints.save_if_due(start.at, start.replica)
        assert start.checkpoints.writer.wait(10)
    assert start.saved == [0]
    start.checkpoints._due_at = 0.0
    start.checkpoints.save_if_due(start.at, start.replica)
    assert start.checkpoints.writer.wait(10)
    assert start.saved == [0, 2]
    assert [kind for kind, _, _ in start.logged] == ["checkpoint", "checkpoint"]


def test_what_a_killed_writer_has_left_is_removed_when_the_job_resumes(tmp_path: Path) -> None:
    """A preempted job is killed while it saves, if the bound is too short."""
    Start(tmp_path).save(10)
    half = tmp_path / ".step-000000000020.safetensors.0a1b2c3d.tmp"
    half.write_bytes(b"half")
    again = Start(tmp_path)
    assert again.restore() == 10
    assert half.exists()
    again.checkpoints.save_if_due(again.at, again.replica)
    assert not half.exists()


def test_after_a_resumption_the_first_save_takes_its_time(tmp_path: Path) -> None:
    Start(tmp_path).save(0)
    again = Start(tmp_path)
    again.restore()
    again.checkpoints.save_if_due(again.at, again.replica)
    assert again.checkpoints.writer.wait(10)
    assert [kind for kind, _, _ in again.logged] == []


@pytest.mark.parametrize(("age_s", "due"), [(0.0, False), (900.0, False), (1001.0, True)])
def test_a_new_rank_0_saves_when_the_newest_is_old_enough(
    tmp_path: Path, age_s: float, due: bool
) -> None:
    """Else a job whose rank 0 changes again and again would never be saved."""
    Start(tmp_path).save(10)
    then = time.time() - age_s
    os.utime(files.path_of(tmp_path, 10), (then, then))
    successor = Start(tmp_path)
    successor.progress.step = 11
    successor.checkpoints.save_if_due(successor.at, successor.replica)
    successor.checkpoints.writer.wait(10)
    assert successor.saved == [11] * due


def test_a_new_rank_0_saves_at_the_end_of_a_fit(tmp_path: Path) -> None:
    """The old one died in the last step of the fit, so no boundary came before its end."""
    Start(tmp_path).save(10)
    successor = Start(tmp_path)
    successor.progress.step = 11
    successor.checkpoints.save_if_due(successor.at, successor.replica, at_once=True)
    successor.checkpoints.writer.wait(10)
    assert successor.saved == [11]


@pytest.mark.parametrize("now_s", [0.1, 0.3])  # 0.1 + 1000 - 1000 is not 0.1
def test_a_new_rank_0_of_a_job_that_was_never_saved(
    now_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    start = Start(tmp_path)
    start.progress.step = 3
    start.checkpoints.save_if_due(start.at, start.replica)
    start.checkpoints.writer.wait(10)
    assert start.saved == [3]


def test_a_ring_that_was_replaced_saves_no_more(tmp_path: Path) -> None:
    """It was cut off; the job was started again from its newest checkpoint, or anew."""
    cut_off, successor = Start(tmp_path), Start(tmp_path)
    cut_off.checkpoints.writer.take_over(1)
    assert cut_off.save(10) == ""
    cut_off.checkpoints.writer.generation = 3
    assert cut_off.save(20) == ""
    assert owner_of(tmp_path) == Owner("digits", "r1", 3)
    successor.checkpoints.writer.take_over(4)
    why = "the job goes on in generation 4, without this ring of generation 3"
    assert cut_off.save(30) == f"the checkpoint of step 30 was not written: {why}"
    assert cut_off.checkpoints.writer.superseded == why
    assert isinstance(cut_off.details, CheckpointFailedDetails)
    assert cut_off.details.superseded
    assert successor.save(21) == ""
    Start(tmp_path, run="r2", resume=tmp_path).checkpoints.writer.take_over(1)
    assert "belongs to generation 1 of another start of job digits" in successor.save(22)


def test_a_start_that_was_replaced_never_gets_the_directory_back(tmp_path: Path) -> None:
    """A host of it was cut off, or one of its processes slept, and it begins a ring only now."""
    first, second = Start(tmp_path), Start(tmp_path, run="r2", resume=tmp_path)
    first.checkpoints.writer.take_over(1)
    second.checkpoints.writer.take_over(1)
    why = "the directory belongs to generation 1 of another start of job digits by now"
    with pytest.raises(CheckpointError, match=why):
        first.checkpoints.writer.take_over(2)
    third = Start(tmp_path, run="r3", resume=tmp_path)
    third.checkpoints.writer.take_over(1)
    with pytest.raises(CheckpointError, match=why):
        first.checkpoints.writer.take_over(3)
    assert owner_of(tmp_path) == Owner("digits", "r3", 1, ("r1", "r2"))
    assert third.save(5) == ""


def test_a_claim_that_was_written_over_by_a_replaced_start_is_written_again(tmp_path: Path) -> None:
    """It had read the claim before, and was stopped before it wrote its own."""
    first, second = Start(tmp_path), Start(tmp_path, run="r2", resume=tmp_path)
    first.checkpoints.writer.take_over(1)
    second.checkpoints.writer.take_over(1)
    (tmp_path / ".edl-owner").write_text('{"job": "digits", "run": "r1", "generation": 2}')
    assert second.save(7) == ""
    assert owner_of(tmp_path) == Owner("digits", "r2", 1, ("r1",))
    assert "another start of job digits" in first.save(8)


def test_a_slow_write_is_given_up_if_another_start_has_the_directory_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Start(tmp_path), Start(tmp_path, run="r2", resume=tmp_path)
    first.checkpoints.writer.take_over(1)
    write = files.write

    def slowly(*given: Any) -> int:
        second.checkpoints.writer.take_over(1)
        return write(*given)

    monkeypatch.setattr(files, "write", slowly)
    assert "another start of job digits" in first.save(10)
    assert first.checkpoints.writer.superseded
    assert files.checkpoint_files(tmp_path) == []
    assert [path.name for path in tmp_path.iterdir()] == [".edl-owner"]


def test_a_slow_write_of_the_same_start_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 has left meanwhile, and its successor has saved."""
    first, successor = Start(tmp_path), Start(tmp_path)
    first.checkpoints.writer.take_over(1)
    write = files.write

    def slowly(*given: Any) -> int:
        successor.checkpoints.writer.take_over(2)
        return write(*given)

    monkeypatch.setattr(files, "write", slowly)
    assert first.save(10) == ""
    assert first.checkpoints.writer.superseded == ""


def test_who_owns_a_directory_may_be_unknown(tmp_path: Path) -> None:
    (tmp_path / ".edl-owner").write_text("no JSON")
    assert Start(tmp_path).save(10) == ""


def test_the_same_step_is_not_written_twice(tmp_path: Path) -> None:
    start = Start(tmp_path)
    start.save(10)
    start.save(10)
    assert start.saved == [10]


def test_state_that_is_no_data_is_an_error_at_the_first_step_only(tmp_path: Path) -> None:
    start = Start(tmp_path)
    start.replica.value = object()
    with pytest.raises(CheckpointError, match=r"builtins.object"):
        start.checkpoints.save_if_due(start.at, start.replica)
    start.progress.step = 3
    start.checkpoints.save_last(start.at, start.replica, timeout_s=10)
    ((kind, step, reason),) = start.logged
    assert (kind, step) == ("checkpoint_failed", 3)
    assert reason.startswith("the checkpoint of step 3 was not written")


def test_plain_values_that_no_header_holds_are_an_error_at_the_first_step_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safetensors, "LONGEST_HEADER", 1 << 16)
    start = Start(tmp_path)
    start.replica.value = bytes(40_000)  # two digits for each
    with pytest.raises(CheckpointError, match=r"cannot be written: its header would have 0\.1 MB"):
        start.checkpoints.save_if_due(start.at, start.replica)
    assert not start.checkpoints.writer.is_writing
    start.progress.step = 3
    unsaved = start.checkpoints.save_last(start.at, start.replica, timeout_s=10)
    assert unsaved.startswith("the checkpoint of step 3 was not written: its header would have")


def test_a_failed_write_is_said_and_training_goes_on(tmp_path: Path) -> None:
    start = Start(tmp_path / "saved")
    (tmp_path / "saved").rmdir()
    unsaved = start.save(3)
    ((kind, step, reason),) = start.logged
    assert (kind, step, reason) == ("checkpoint_failed", 3, unsaved)
    path = str(tmp_path / "saved")
    assert start.details == CheckpointFailedDetails(path, mount_point(tmp_path), superseded=False)
    assert unsaved.startswith("the checkpoint of step 3 was not written: ")
    assert start.saved == []
    (tmp_path / "saved").mkdir()
    assert start.save(3) == "", "the next one counts"


def test_a_write_that_fails_in_another_way_is_said_too(tmp_path: Path) -> None:
    """Here the position is no JSON. The writing thread ended, and no event said so."""
    start = Start(tmp_path)
    start.progress.fits = (DoneFit(1, [0], {"on": [date(2026, 11, 21)]}),)
    unsaved = start.save(3)
    assert start.logged == [("checkpoint_failed", 3, unsaved)]
    said = "the checkpoint of step 3 was not written: TypeError: Object of type date is not JSON"
    assert unsaved.startswith(said)
    assert start.saved == []


_, ALONE = JobOfOne(Config()).start()


def checkpointing(**settings: Any) -> Checkpointing:
    config = Config(job_settings=JobSettings(**settings))
    progress = LoaderProgress()
    progress.attach(SOURCE, 0)
    return Checkpointing(config, SharedState(), progress, JobOfOne(config))


@pytest.mark.parametrize(
    ("now", "warned"),
    [(Arithmetic(4, "AVX2"), False), (Arithmetic(8, "AVX2"), True), (Arithmetic(), False)],
)
def test_a_resumption_with_other_arithmetic_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, now: Arithmetic, warned: bool
) -> None:
    start = Start(tmp_path)
    start.progress.step = 3
    at = replace(start.at, arithmetic=Arithmetic(4, "AVX2").to_json())
    assert start.checkpoints.save_last(at, start.replica, timeout_s=10) == ""
    one = checkpointing(resume="1", logical=4)
    one._shared.arithmetic = lambda: now
    one.replica = start.replica
    one.attach(tmp_path, 1.0, 1)
    one.begin(ALONE, warmed_up=False)
    sentence = "computes with 8 threads, AVX2, and computed with 4 threads, AVX2 when"
    assert (sentence in caplog.text) is warned


def resumed(
    directory: Path, before: TrainingLength, now: TrainingLength, **how: Any
) -> TrainingLength:
    return resumed_progress(directory, before, now, **how).length


def resumed_progress(
    directory: Path,
    before: TrainingLength,
    now: TrainingLength,
    fits: tuple[DoneFit, ...] = (),
    *,
    warmed_up: bool = False,
    resume: str = "1",
    stopped: str = "",
) -> LoaderProgress:
    start = Start(directory, resume=directory)
    start.progress.length, start.progress.fits = before, fits
    start.progress.fit_stopped = stopped
    assert start.save(3) == ""
    one = checkpointing(resume=resume)
    one._loader.length, one._loader.fits = now, fits
    one.replica = start.replica
    one.attach(directory, 1.0, 1)
    one.begin(ALONE, warmed_up)
    newcomer = Start(directory).progress
    newcomer.take_over(one._loader.header(), Receive.ALL)
    return newcomer


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        (TrainingLength(6), TrainingLength(3), "trains 6 epochs, and .* asks for 3 epochs"),
        (TrainingLength(6), TrainingLength(0), "trains 6 epochs, and .* asks for 0 epochs"),
        (
            TrainingLength(6, 90),
            TrainingLength(3, 90),
            "at most 90 updates, and this script asks for 3 epochs, at most 90 updates",
        ),
    ],
)
def test_a_resumed_job_is_not_shorter(
    tmp_path: Path, before: TrainingLength, now: TrainingLength, words: str
) -> None:
    """A script that subtracts what a file of its own says would end in the midst, as a success."""
    with pytest.raises(match=f"^cannot resume: .*{words}; give .* for the whole job"):
        resumed(tmp_path, before, now)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (TrainingLength(6), TrainingLength(6)),
        (TrainingLength(6), TrainingLength(9)),
        (TrainingLength(6), TrainingLength(max_steps=1)),
        (TrainingLength(max_steps=90), TrainingLength(1)),
        (TrainingLength(6), TrainingLength(6, 40)),
        (TrainingLength(), TrainingLength(1)),
        (TrainingLength(6), TrainingLength()),
        (TrainingLength(6, 90), TrainingLength(6, 40)),  # len(loader) is half with more workers
    ],
)
def test_a_resumed_job_may_be_longer_or_say_it_in_another_way(
    tmp_path: Path, before: TrainingLength, now: TrainingLength
) -> None:
    assert resumed(tmp_path, before, now) == now


@pytest.mark.parametrize(("epochs", "stopped"), [(6, "out of time"), (9, "")])
def test_a_fit_that_was_stopped_goes_on_if_it_is_resumed_for_longer(
    tmp_path: Path, epochs: int, stopped: str
) -> None:
    now = TrainingLength(epochs)
    found = resumed_progress(tmp_path, TrainingLength(6), now, stopped="out of time")
    assert (found.length, found.fit_stopped) == (now, stopped)


def test_a_job_that_its_cluster_resumes_is_as_long_as_it_was_or_longer(tmp_path: Path) -> None:
    before = TrainingLength(6, 90)
    asked = TrainingLength(4, 40)
    assert resumed(tmp_path / "a", before, asked, resume="auto") == TrainingLength(6, 40)
    asked = TrainingLength(8)
    assert resumed(tmp_path / "b", before, asked, resume="auto") == asked


def test_a_job_that_restarts_itself_is_as_long_as_it_was(tmp_path: Path) -> None:
    """Its script subtracts what is trained already; an older edl has saved no length."""
    before, asked = TrainingLength(6, 90), TrainingLength(4)
    assert resumed(tmp_path / "saved", before, asked, warmed_up=True) == before
    assert resumed(tmp_path / "old", TrainingLength(), asked, warmed_up=True) == asked


@pytest.mark.parametrize("warmed_up", [False, True])
def test_a_later_fit_has_a_length_of_its_own(tmp_path: Path, warmed_up: bool) -> None:
    """Early stopping has ended the one before."""
    asked = TrainingLength(8)
    job = resumed(tmp_path, TrainingLength(100), asked, fits=(DoneFit(3),), warmed_up=warmed_up)
    assert job == asked


@pytest.mark.parametrize(
    ("values", "sentence"),
    [({"every_s": 0.0}, "every_s is 0.0"), ({"keep": 0}, "keep is 0; it must be at least 1")],
)
def test_wrong_values(tmp_path: Path, values: dict[str, Any], sentence: str) -> None:
    arguments = {"directory": tmp_path, "every_s": 1.0, "keep": 1, **values}
    with pytest.raises(UsageError, match=sentence):
        checkpointing().attach(**arguments)


def test_wrong_moments(tmp_path: Path) -> None:
    one = checkpointing()
    one.attach(tmp_path, 1.0, 1)
    with pytest.raises(UsageError, match="was called before"):
        one.attach(tmp_path, 1.0, 1)
    with pytest.raises(UsageError, match=r"create an edl\.Optimizer"):
        one.begin(ALONE, warmed_up=False)
    late = checkpointing()
    late.progress.has_state = True
    with pytest.raises(UsageError, match=r"before `for epoch in loader\.epochs"):
        late.attach(tmp_path, 1.0, 1)


@pytest.mark.parametrize("resume", ["1", "TRUE", "/somewhere"])
def test_resuming_a_script_that_saves_nothing(resume: str) -> None:
    with pytest.raises(UsageError, match=r"the script does not call edl.checkpoint"):
        checkpointing(resume=resume).begin(ALONE, warmed_up=False)


@pytest.mark.parametrize("resume", ["", "0", "no"])
def test_not_resuming(resume: str) -> None:
    checkpointing(resume=resume).begin(ALONE, warmed_up=False)
