"""When a preempted job has to end, what it says then, and with which exit code."""

from __future__ import annotations

import signal
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from launcher_texts import ZERO_S, given, process
from made import changed, make_job
from test_checkpoints import Start

from edl.checkpoint import format as files
from edl.host.job_end import result
from edl.host.process import AgentEnd, agent_exit_code, end_of_job, run_exit_code
from edl.host.supervision import noted
from edl.job.run import (
    HALTED_EXIT,
    UNSAVED_EXIT,
    bound_of_signal,
    halted,
    lookup_limit_s,
    save_limit_s,
    why_tight,
)
from edl.records import Job, JobState
from edl.worker.shared_state import SharedState

CAUSE = "edl preempt --within 30s"
SAVED = replace(make_job(), checkpoint="/runs/17", saved_step=100)
PREEMPTED = replace(SAVED, state=JobState.STOPPING, reason=CAUSE, end_within_s=30.0)


def test_a_job_whose_last_step_is_saved() -> None:
    end = halted(CAUSE, 120, 120, "/runs/17")
    assert (end.state, end.exit_code) == (JobState.STOPPED, HALTED_EXIT)
    assert end.reason == f"{CAUSE}: step 120 is saved in /runs/17; `edl run --resume` goes on"


def test_a_job_whose_last_steps_are_not_saved_names_the_newest_checkpoint() -> None:
    why = "the checkpoint of step 120 was not written: it takes longer than the bound of 30 s"
    end = halted(CAUSE, 120, 100, "/runs/17", why)
    assert end.exit_code == UNSAVED_EXIT
    assert end.reason == (
        f"{CAUSE}: {why}; the newest complete checkpoint is of step 100 in /runs/17, and "
        "`edl run --resume` goes on from it and trains 20 steps again"
    )
    assert "no checkpoint of step 120 was written in time" in halted(CAUSE, 120, 100, "x").reason
    assert "there is no checkpoint before it" in halted(CAUSE, 1, -1, "").reason


def test_a_job_of_which_nobody_knows_what_is_saved_names_the_directory() -> None:
    end = halted(CAUSE, 120, None, "/runs/17")
    assert end.exit_code == UNSAVED_EXIT
    assert end.reason == (
        f"{CAUSE}: no checkpoint of step 120 was written in time; the newest intact checkpoint in "
        "/runs/17 is not known now; `edl run --resume` goes on from it"
    )


@pytest.mark.parametrize(("within_s", "limit_s"), [(30.0, 27.0), (120.0, 117.0), (4.0, 3.0)])
def test_the_processes_have_time_to_end_after_the_save(within_s: float, limit_s: float) -> None:
    assert save_limit_s(within_s) == limit_s
    assert limit_s < limit_s + lookup_limit_s(within_s) < within_s


def test_a_bound_that_is_probably_too_short_is_said_before() -> None:
    assert why_tight(30.0, 27.0) == ""
    assert why_tight(30.0, 45.25).startswith(
        "the newest checkpoint took 45.2 s to save, and a bound of 30 s leaves 27 s for the last"
    )


@pytest.mark.parametrize(
    ("job", "number", "bound_s"),
    [
        (changed(SAVED, preempt_within_s=25.0), signal.SIGTERM, 25.0),
        (changed(SAVED, preempt_within_s=25.0), signal.SIGUSR2, 25.0),
        (changed(SAVED, preempt_within_s=25.0), signal.SIGINT, 0.0),
        (SAVED, signal.SIGTERM, 0.0),
        (changed(make_job(), preempt_within_s=25.0), signal.SIGTERM, 0.0),  # no checkpoint
    ],
)
def test_a_signal_preempts_only_where_it_is_asked_for(
    job: Job, number: signal.Signals, bound_s: float
) -> None:
    assert bound_of_signal(job, number) == bound_s


def test_an_agent_counts_the_bound_from_when_it_first_reads_of_it() -> None:
    """Also when the job is over; what follows stands in `scenarios/agent/2-stopping.txt`."""
    now, mine = given("", job=PREEMPTED)
    mine = noted(mine, now, ZERO_S)
    over = replace(now, job=replace(PREEMPTED, state=JobState.STOPPED))
    assert noted(mine, over, ZERO_S + 20).preempted_since == ZERO_S


@pytest.mark.parametrize(
    ("code", "end"), [(HALTED_EXIT, AgentEnd.HALTED), (UNSAVED_EXIT, AgentEnd.UNSAVED)]
)
@pytest.mark.parametrize("is_submitter", [True, False])
def test_each_agent_ends_with_a_code_of_its_own(
    code: int, end: AgentEnd, is_submitter: bool
) -> None:
    job = replace(PREEMPTED, state=JobState.STOPPED, exit_code=code)
    assert result(job, given("submitter" if is_submitter else "")[1]) == code
    assert end_of_job(job) is end
    assert (agent_exit_code(end, code), run_exit_code(end, code)) == (code, code)
    under_horovodrun = replace(job, driver="127.0.0.1:1")
    assert result(under_horovodrun, given("")[1]) == 0, "its driver would bar the host"


def test_a_worker_of_a_preempted_job_has_not_failed() -> None:
    gone = process(f"w0(exit={HALTED_EXIT} stopped)")
    assert not gone.failed
    assert replace(gone, stopped=False).failed, "a script's own code"


class Clock:
    def __init__(self) -> None:
        self.time_s = 50.0

    def now_s(self) -> float:
        return self.time_s

    def condition(self) -> threading.Condition:
        return threading.Condition()


def test_a_worker_counts_from_when_it_heard_of_it_first() -> None:
    clock = Clock()
    shared = SharedState(clock=clock)  # type: ignore[arg-type]
    shared.preempt("", 0.0)
    assert shared.preemption is None
    shared.preempt(CAUSE, 30.0)
    clock.time_s = 60.0
    shared.preempt(CAUSE, 30.0)
    assert shared.preemption is not None
    assert shared.preemption.save_until_s == 77.0


def test_a_save_that_takes_too_long_leaves_the_checkpoint_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Start(tmp_path)
    start.save(10)
    may_write, write = threading.Event(), files.write

    def late(*arguments: object) -> int:
        assert may_write.wait(60)
        return write(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(files, "write", late)
    start.progress.step = 20
    sentence = "it takes longer than the bound of 1 s allows"
    unsaved = start.checkpoints.save_last(start.at, start.replica, 0.01, sentence)
    assert unsaved == f"the checkpoint of step 20 was not written: {sentence}"
    assert start.checkpoints.newest_saved(20, 60) == (10, str(tmp_path))
    again = start.checkpoints.save_last(start.at, start.replica, 0.0, sentence)
    assert again == unsaved, "nothing more is copied when the time is over"
    may_write.set()
    assert start.checkpoints.writer.wait(60)
    assert Start(tmp_path).restore() == 20


def test_the_newest_that_is_saved_has_an_intact_header(tmp_path: Path) -> None:
    start = Start(tmp_path)
    assert start.checkpoints.newest_saved(20, 60) == (-1, str(tmp_path))
    start.save(10)
    files.path_of(tmp_path, 20).write_bytes(b"torn")
    assert start.checkpoints.newest_saved(20, 60) == (10, str(tmp_path))


def save_damaged(start: Start, directory: Path, step: int) -> None:
    start.progress.step, start.replica.value = step, np.zeros(3)
    assert start.checkpoints.save_last(start.at, start.replica, timeout_s=10) == ""
    path = files.path_of(directory, step)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert files.read_manifest(path).step == step


@pytest.mark.parametrize("step", [15, 20, 25])
@pytest.mark.parametrize("run", ["r1", "r2"])  # all workers of one start died, or it is another
def test_a_damaged_checkpoint_that_the_job_was_not_resumed_from_is_not_saved(
    run: str, step: int, tmp_path: Path
) -> None:
    """The job was preempted after ``step``, and its last save failed."""
    before = Start(tmp_path)
    before.save(10)
    save_damaged(before, tmp_path, 20)
    start = Start(tmp_path, run=run, resume=tmp_path)
    assert start.restore() == 10
    assert start.checkpoints.newest_saved(step, 60) == (10, str(tmp_path))


def test_a_worker_that_has_not_restored_names_no_later_step_than_the_jobs(tmp_path: Path) -> None:
    """It was not the state source. A file of the job's own step is of an earlier start."""
    before = Start(tmp_path)
    for step in (10, 20, 30):
        before.save(step)
    start = Start(tmp_path, run="r2", resume=tmp_path)
    assert start.checkpoints.newest_saved(25, 60) == (20, str(tmp_path))
    assert start.checkpoints.newest_saved(20, 60) == (None, str(tmp_path)), "it may be damaged"
    assert start.checkpoints.newest_saved(5, 60) == (-1, str(tmp_path))
    assert start.checkpoints.newest_saved(None, 60) == (30, str(tmp_path)), "it has no state yet"


def test_a_checkpoint_that_a_dead_worker_has_restored_may_be_there(tmp_path: Path) -> None:
    """The job does not say that it has to begin again."""
    Start(tmp_path).save(20)
    dead, start = [Start(tmp_path, run="r2", resume=tmp_path) for _ in range(2)]
    assert dead.restore() == 20
    assert start.checkpoints.newest_saved(20, 60) == (None, str(tmp_path))


def test_what_another_rank_0_of_this_start_has_saved_counts(tmp_path: Path) -> None:
    before = Start(tmp_path)
    before.save(10)
    save_damaged(before, tmp_path, 40)
    first = Start(tmp_path, run="r2", resume=tmp_path)
    assert first.restore() == 10
    first.checkpoints.writer.take_over(1)
    another = Start(tmp_path, run="r2")
    another.checkpoints.writer.generation = 1
    assert another.save(30) == ""
    assert first.checkpoints.newest_saved(50, 60) == (30, str(tmp_path))
    assert first.checkpoints.newest_saved(30, 60) == (30, str(tmp_path))
