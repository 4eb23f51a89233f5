"""What the page of a job says of an incident that is over, and who took the place of whom."""

from __future__ import annotations

from dataclasses import replace

import test_incidents as incidents
from shown_job import event, generation, snapshot, training
from test_incidents import (
    FULL,
    evicted,
    killed,
    log_failed,
    not_saved,
    status,
    told,
)

from edl.dashboard.view.incidents import IncidentLog, ShownIncident, shown_incidents, with_incidents
from edl.events import CheckpointDetails, Event, LossSpikeDetails, NoTemplateDetails, StalledDetails
from edl.learning import LossSpike
from edl.records import Stage
from edl.status import job_status


class TestTheTense:
    """What is over is told in the past tense: that "w1 leads now" becomes false."""

    def test_of_a_slow_worker(self) -> None:
        (lasts,), (over,) = (
            told(incidents.TestASlowWorker.SLOW, now=status(slowest="w1")),
            told(incidents.TestASlowWorker.SLOW),
        )
        assert lasts.what.startswith("All workers wait for worker w1")
        assert lasts.why.startswith("Something else runs on host node1, its GPU or processor is")
        assert over.what == (
            "All workers waited for worker w1 on host node1 in each step: it computed 257 ms, 4.1 "
            "times as long as the others (63 ms)."
        )
        assert over.why.startswith("Something else ran on host node1, its GPU or processor was")

    def test_of_a_full_disk(self) -> None:
        failed = (log_failed(10, "w0", "/data/x", "/data"), not_saved(11, 50))
        saved = event(99, CheckpointDetails("/data/ckpt/60", 5, 0.1, 0.1), 1, 60)
        (lasts,), (over,) = told(*failed), told(*failed, saved)
        assert "is full" in lasts.what
        assert "Training goes on" in lasts.why
        assert over.what == (
            "The disk at /data of host node0 was full: the checkpoint of step 50 was not written; "
            "w0 could not write its log."
        )
        assert over.why == (
            f"The system said `{FULL}` when edl wrote to /data and /data/ckpt. What had filled the "
            "disk, edl does not know. Training went on without what could not be written."
        )

    def test_of_a_stall(self) -> None:
        stalled = event(10, StalledDetails(("w1",)), 1, 195, "stalled: w1 does not answer")
        (lasts,) = shown_incidents(IncidentLog().with_event(stalled), status(step=195), 20.0)
        (over,) = shown_incidents(IncidentLog().with_event(stalled), status(step=300), 0.0)
        assert lasts.what.startswith("No step completes since step 195")
        assert over.what.startswith("No step completed after step 195")


def saved(at_s: float, step: int) -> Event:
    return event(at_s, CheckpointDetails("/data/ckpt/60", 5, 0.1, 0.1), 1, step)


def test_a_full_disk_says_where_a_loss_of_all_workers_goes_back_to() -> None:
    (one,) = told(saved(5, 1049), saved(6, 1086), not_saved(11, 1114), not_saved(12, 1143))
    assert (
        "edl tries the next checkpoint by itself; until one is written, the job goes back to step "
        "1,086 if all workers are lost." in one.advice
    )
    (one,) = told(not_saved(11, 50))
    assert "until one is written, only those from before can be resumed from." in one.advice


class TestTheLastGoodCheckpoint:
    """A wrong loss spoils the checkpoints after it, which push out the good ones."""

    SPIKE = LossSpike(3.78e11, 0.00741, 1134, 2.3, 30.0, 0.05, 2074, 2, 2)
    ROSE = event(40, LossSpikeDetails(2088, SPIKE), 1, 2088, "x")

    def test_is_named_with_how_many_are_spoiled(self) -> None:
        good = (saved(20, 2001), saved(30, 2043))
        (one,) = told(*good, self.ROSE)
        assert "is that of step 2,043, those after it will be spoiled, and only" in one.advice
        (one,) = told(*good, saved(39, 2080), self.ROSE)
        assert "is that of step 2,043, the one after it is spoiled, and only" in one.advice
        (one,) = told(*good, saved(39, 2080), self.ROSE, saved(50, 2120))
        assert one.advice == (
            "Stop the job now (`edl stop digits`): the last good checkpoint is that of step "
            "2,043, the 2 after it are spoiled, and only the newest are kept (`keep` in the "
            "script, 3 by default). Copy it into a directory of its own (`edl checkpoint list` "
            "shows the path), and go on from there (`edl run --resume-from DIRECTORY`), or start "
            "again if it is gone, with the learning rate of before (0.05), or one that rises "
            "slowly."
        )

    def test_is_the_one_that_was_written_after_a_resume(self) -> None:
        old, new = (saved(20, 2001), saved(30, 2060)), saved(35, 2030)
        (one,) = told(*old, new, self.ROSE)
        assert "is that of step 2,030, those after it will be" in one.advice


class TestAReplacement:
    FROZEN = "it is frozen or cut off: no answer"
    LOST = (
        generation(9, 2, ("w0", "w1", "w2")),
        killed(10, "w2"),
        generation(10.1, 3, ("w0", "w1"), left=("w2",), repair=True),
        evicted(20, "w1", FROZEN),
        generation(20.1, 4, ("w0",), left=("w1",), repair=True),
    )

    def test_is_told_of_in_the_entry_of_the_worker_whose_place_it_takes(self) -> None:
        """Newer entries are of other places, or of none."""
        stalled = event(21, StalledDetails(("w0",)), 4, 195, "stalled: w0 is in its own code")
        new = generation(31, 5, ("w0", "w3"), joined=("w3",))  # on node1, as w1
        later = generation(33, 6, ("w0", "w3", "w4"), joined=("w4",))
        stall, frozen, gone = told(*self.LOST, stalled, new, later)
        assert "joined" not in stall.since
        assert "w3 joined 11 s after it: 2 workers trained then." in frozen.since
        assert "w4 joined 23 s after it: 3 workers trained then." in gone.since

    def test_on_another_host_takes_the_place_that_is_empty(self) -> None:
        first = generation(12, 3, ("w0", "w3"), joined=("w3",))
        more = generation(40, 4, ("w0", "w3", "w4"), joined=("w4",))  # a larger size, later
        (one,) = told(
            killed(10, "w1"), generation(10.1, 2, ("w0",), left=("w1",), repair=True), first, more
        )
        assert "w3 joined 2 s after it" in one.since
        assert "w4" not in one.since

    def test_that_prepares_is_named(self) -> None:
        now = job_status(snapshot((0, 2), training(), stages={2: Stage.PREPARING}), "zk")
        now = replace(now, desired={"node0": 2})
        (one,) = told(*incidents.TestAKilledWorker.STORY[:4], now=now)
        assert one.tone == "warning"
        assert one.since.endswith(
            "Nobody has taken its place yet; w2 on host node0 prepares to join: 1 of 2 workers "
            "trains."
        )


class TestTheHeader:
    """It is not plainly green while an entry needs somebody to act."""

    @staticmethod
    def of(found: list[ShownIncident], joining: int = 0) -> tuple[str, str]:
        return with_incidents("training", "good", found, joining)

    def test_while_a_worker_is_slow_or_nothing_is_saved(self) -> None:
        amber = ("training; see what happened", "warning")
        assert self.of(told(incidents.TestASlowWorker.SLOW, now=status(slowest="w1"))) == amber
        assert self.of(told(incidents.TestASlowWorker.SLOW)) == ("training", "good")
        saved = event(99, CheckpointDetails("/data/ckpt/60", 5, 0.1, 0.1), 1, 60)
        assert self.of(told(not_saved(11, 50))) == amber
        assert self.of(told(log_failed(11, "w0"))) == amber
        assert self.of(told(not_saved(11, 50), saved)) == ("training", "good")

    def test_while_a_place_is_empty_and_nobody_prepares_to_take_it(self) -> None:
        now = status(world_size=1, desired={"node0": 2})
        found = told(*incidents.TestAKilledWorker.STORY[:4], now=now)
        assert self.of(found)[1] == "warning"
        assert self.of(found, joining=1) == ("training", "good")

    def test_of_a_warning_whose_end_nobody_tells(self) -> None:
        found = told(event(10, NoTemplateDetails("node0"), 1, 5, "host node0 starts each anew"))
        assert self.of(found) == ("training", "good")

    def test_stays_as_it_is_if_the_job_does_not_train_well(self) -> None:
        assert with_incidents("stopping", "warning", told(not_saved(1, 5)), 0)[0] == "stopping"


def test_a_sentence_writes_steps_as_the_rest_of_the_page_does() -> None:
    (one,) = told(not_saved(11, 1114), not_saved(12, 1143), saved(20, 1200))
    assert "from step 1,114 to step 1,143" in one.what
    assert one.since == "The checkpoint of step 1,200 was written."
