"""What the page of a job says of an incident: what happened, why, what to do, what followed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from shown_job import CREATED, event, generation, snapshot, switch, training

from edl.core.dashboard.incidents import (
    MOST_INCIDENTS,
    SHOWN,
    IncidentLog,
    ShownIncident,
    shown_incidents,
    with_a_wrong_loss,
)
from edl.core.events import (
    CheckpointDetails,
    CheckpointFailedDetails,
    Event,
    EvictedDetails,
    GenerationDetails,
    LogFailedDetails,
    LogResumedDetails,
    LossSpikeDetails,
    NoTemplateDetails,
    SlowWorkerDetails,
    StalledDetails,
    WorkerFailedDetails,
    WorkerFrozenDetails,
    ZookeeperBackDetails,
)
from edl.core.learning_curve import LossSpike
from edl.core.status import JobStatus, job_status

HOSTS = {"w0": "node0", "w1": "node1", "w2": "node0", "w3": "node1"}
FULL = "No space left on device"


def status(**changes: Any) -> JobStatus:
    return replace(job_status(snapshot(status=training()), "zk"), **changes)


def told(*events: Event, now: JobStatus | None = None) -> list[ShownIncident]:
    log = IncidentLog().with_hosts(HOSTS)
    for one in (generation(0, 1, ("w0", "w1")), *events):
        log = log.with_event(one)
    return shown_incidents(log, now or status(), 0.0)


def killed(at_s: float, worker: str = "w1", code: int | None = -9, said: str = "") -> Event:
    details = WorkerFailedDetails(worker, HOSTS[worker], 0, code, said)
    return event(at_s, details, 1, 195, f"{worker} on {HOSTS[worker]} was killed")


def evicted(at_s: float, worker: str, why: str) -> Event:
    return event(at_s, EvictedDetails(worker), 1, 195, f"{worker} was evicted: {why}")


class TestAKilledWorker:
    STORY = (
        killed(10),
        generation(10.1, 2, ("w0",), left=("w1",), repair=True),
        evicted(10.1, "w1", "its process is gone: 127.0.0.1:1 refuses connections"),
        switch(10.3, 2, 0.14, detect_s=0.44),
        generation(39, 3, ("w0", "w2"), joined=("w2",)),
    )

    def test_it_is_one_incident(self) -> None:
        (one,) = told(*self.STORY, now=status(world_size=3))
        assert (one.kind, one.tone, one.at_s, one.step) == (
            "worker_failed",
            "over",
            CREATED + 10,
            195,
        )
        assert (
            one.what == "Worker w1 on host node1 was killed by signal 9 (SIGKILL), after step 195."
        )
        assert "the memory of node1 was used up" in one.why
        assert "`edl logs digits w1`" in one.advice
        assert "dmesg -T" in one.advice
        assert one.since == (
            "The other worker went on from step 10. No step was complete for 0.8 s. "
            "w2 joined 29 s after it: 2 workers train."
        )

    @pytest.mark.parametrize("order", [(1, 2, 0), (2, 1, 0), (1, 0, 2)])
    def test_in_whatever_order_it_is_told(self, order: tuple[int, int, int]) -> None:
        (one,) = told(*(self.STORY[at] for at in order), *self.STORY[3:])
        assert one.what.startswith("Worker w1 on host node1 was killed by signal 9")

    def test_a_place_that_is_empty_is_said(self) -> None:
        (one,) = told(*self.STORY[:4], now=status(world_size=1, desired={"node0": 2}))
        assert one.tone == "warning"
        assert "Nobody has taken its place yet: 1 of 2 workers trains." in one.since
        (one,) = told(*self.STORY, now=status(world_size=1, desired={"node0": 2}))
        assert one.tone == "over"

    def test_a_ring_without_it_that_did_not_break_goes_on_too(self) -> None:
        (one,) = told(killed(10), generation(10.1, 2, ("w0",), left=("w1",)))
        assert "went on from step 10" in one.since
        assert told(generation(10.1, 2, ("w0",), left=("w1",))) == []

    def test_while_nobody_goes_on_it_is_not_over(self) -> None:
        assert told(killed(10))[0].tone == "bad"

    def test_two_at_once_are_one_incident(self) -> None:
        (one,) = told(killed(10), killed(11, "w2", 1, "ValueError: no"))
        assert "Worker w1 on host node1 was killed" in one.what
        assert "w2 on host node0 ended with exit code 1" in one.what
        assert "ValueError: no" in one.why

    def test_an_hour_later_it_is_another_one(self) -> None:
        assert len(told(*self.STORY, killed(3700, "w2"))) == 2

    def test_an_error_of_the_script_is_named(self) -> None:
        (one,) = told(killed(10, code=1, said="KeyError: 'x'"))
        assert "KeyError: 'x'" in one.why

    def test_a_crash_of_native_code(self) -> None:
        (one,) = told(killed(10, code=-11))
        assert "SIGSEGV" in one.what
        assert "Native code" in one.why


class TestAFrozenHost:
    def test_it_says_which_host_and_how_it_is_known(self) -> None:
        why = (
            "it is frozen or cut off: w1 (rank 1, host node1) left ZooKeeper, 10.0.0.2:4 does not "
            "answer and no step completes for 6.2 s"
        )
        stalled = event(9, StalledDetails(("w1",)), 1, 195, "stalled: w1 does not answer")
        found = told(
            stalled,
            generation(12, 2, ("w0",), left=("w1",), repair=True),
            evicted(12, "w1", why),
        )
        (one,) = found
        assert one.what == "Worker w1 on host node1 stopped answering after step 195."
        assert "all of host node1 was stopped" in one.why
        assert "no step completes for 6.2 s" in one.why
        assert "`ping`" in one.advice
        assert "The other worker went on" in one.since

    def test_a_frozen_process_that_its_agent_ends(self) -> None:
        frozen = WorkerFrozenDetails("w1", "node1", 0, "/tmp/w1.stacks")
        (one,) = told(event(10, frozen, 1, 195), killed(11))
        assert "was killed by signal 9" in one.what
        assert "/tmp/w1.stacks" in told(event(10, frozen, 1, 195))[0].advice

    def test_what_it_does_when_it_wakes_is_added(self) -> None:
        story = (
            evicted(12, "w1", "it is frozen or cut off: no answer"),
            generation(12, 2, ("w0",), left=("w1",), repair=True),
            killed(60, code=1),
        )
        (one,) = told(*story)
        assert "stopped answering" in one.what
        assert "w1 ended with exit code 1, when it was lost already" in one.since


class TestASlowWorker:
    SLOW = event(10, SlowWorkerDetails("w1", 0.257, 0.063), 1, 919)

    def test_it_says_who_where_and_how_slow(self) -> None:
        (one,) = told(self.SLOW, now=status(slowest="w1"))
        assert (
            "wait for worker w1 on host node1 in each step: it computes 257 ms, 4.1 times"
            in one.what
        )
        assert "`top`" in one.advice
        assert "`edl drain digits w1`" in one.advice
        assert (one.tone, one.since) == ("warning", "")

    def test_it_says_when_that_is_over(self) -> None:
        (one,) = told(self.SLOW)
        assert (one.tone, one.since) == ("over", "No worker waits for it now.")

    def test_a_worker_that_was_lost_since_is_not_waited_for(self) -> None:
        now = status(slowest="w1")
        (lost, slow) = told(self.SLOW, killed(30), now=now)
        assert lost.kind == "worker_failed"
        assert (slow.tone, slow.since) == ("over", "w1 is not in the job any more.")

    def test_in_another_ring_it_is_the_same_incident(self) -> None:
        (one,) = told(self.SLOW, replace(self.SLOW, time=CREATED + 70), now=status(slowest="w1"))
        assert "It has happened 2 times in all." in one.since


class TestFullDisks:
    def test_of_logs(self) -> None:
        reason = "{} trains on without its log: " + f"{FULL}: /var/log/x"
        found = told(
            event(10, LogFailedDetails("w0", "node0", "/l"), 1, 7, reason.format("w0")),
            event(11, LogFailedDetails("w2", "node0", "/l"), 1, 7, reason.format("w2")),
            event(12, LogFailedDetails("w1", "node1", "/l"), 1, 7, reason.format("w1")),
        )
        assert [one.why for one in found] == [
            "The disk of host node1 that has /var/log is full.",
            "The disk of host node0 that has /var/log is full.",
        ]
        assert (
            f"Worker w0 on host node0 cannot write its log: {FULL}: /var/log/x; worker w2"
            in found[1].what
        )
        assert "`df -h /var/log`" in found[1].advice

    def test_of_logs_that_are_written_again(self) -> None:
        failed = event(10, LogFailedDetails("w0", "node0", "/l"), 1, 7, f"no log: {FULL}: /l/x")
        (one,) = told(failed, event(30, LogResumedDetails("w0", "node0", 700), 1, 60))
        assert (one.tone, one.since) == ("over", "w0 writes its log again; 700 bytes are lost.")

    def test_of_checkpoints(self) -> None:
        why = f"the checkpoint of step 50 was not written: {FULL}: /data/ckpt"
        failed = event(10, CheckpointFailedDetails(), 1, 50, why)
        (one,) = told(failed, replace(failed, time=CREATED + 20))
        assert (
            one.what == f"The checkpoint of step 50 was not written: {FULL}: /data/ckpt "
            "(worker w0 on host node0)."
        )
        assert one.why == "The disk of host node0 that has /data is full."
        assert "2 times" in one.since
        saved = event(30, CheckpointDetails("/ckpt/60", 5, 0.1, 0.1), 1, 60)
        (one,) = told(failed, saved)
        assert (one.tone, one.since) == ("over", "The checkpoint of step 60 is written.")


def test_zookeeper_was_away() -> None:
    (one,) = told(event(60, ZookeeperBackDetails(12.34), 1, 700))
    assert (one.at_s, one.tone) == (CREATED + 60 - 12.34, "over")
    assert one.what.startswith("ZooKeeper did not answer for 12.3 s, until step 700;")
    assert "disk" in one.advice
    assert one.since == "Training went on; ZooKeeper answers again."


class TestAWrongLearningRate:
    @staticmethod
    def told_of(spike: LossSpike) -> ShownIncident:
        return told(event(10, LossSpikeDetails(522, spike), 1, 522, "x"))[0]

    def test_that_rose(self) -> None:
        one = self.told_of(LossSpike(1.73, 0.236, 388, 2.3, 20.0, 0.05, 502, 2, 2))
        assert one.what == (
            "The loss has risen to 1.73 at step 522, 7.33 times its lowest value "
            "(0.236 at step 388)."
        )
        assert "rose from 0.05 to 20 at about step 502." in one.why
        assert "checkpoint of step 501 or before" in one.advice
        assert "the learning rate that it had (0.05)" in one.advice
        assert one.tone == "bad"

    def test_that_rose_with_the_workers(self) -> None:
        one = self.told_of(LossSpike(None, 0.2, 388, 2.3, 0.4, 0.1, 502, 1, 4))
        assert one.what == (
            "The loss is not finite (inf or nan) at step 522; it was 0.2 at step 388."
        )
        assert "the number of workers" in one.why

    def test_from_the_start(self) -> None:
        one = self.told_of(LossSpike(1e6, 2.3, 1, 2.3, 10.0))
        assert "too high for this model from the start" in one.why
        assert one.advice == (
            "Stop the job (`edl stop digits`) and start it again, with a tenth of the learning "
            "rate (1), and a tenth of that until the loss falls. If no rate helps, look at the "
            "data, and at the loss in float32."
        )

    def test_what_follows_of_the_same_rise_is_added(self) -> None:
        spikes = [
            event(
                at,
                LossSpikeDetails(step, LossSpike(loss, 0.2, 5, 2.3, 9.0, 0.1, 30, 2, 2)),
                1,
                step,
            )
            for at, step, loss in ((10, 41, 324.0), (12, 75, 35.6), (14, 90, None))
        ]
        (one,) = told(*spikes)
        assert one.what.startswith("The loss has risen to 324 at step 41")
        assert one.since == "At step 90 it was not finite."

    def test_the_header_says_so(self) -> None:
        one = self.told_of(LossSpike(None))
        assert with_a_wrong_loss("training", "good", [one])[1] == "bad"
        assert with_a_wrong_loss("stopped", "over", [one]) == ("stopped", "over")
        assert with_a_wrong_loss("training", "good", []) == ("training", "good")

    def test_that_is_not_known(self) -> None:
        one = self.told_of(LossSpike(None))
        assert "and never was" in one.what
        assert "edl does not know it here" in one.why


def test_hosts_are_known_from_the_events_alone() -> None:
    """Of a job that has ended no worker is in ZooKeeper, which would say where it ran."""
    start = GenerationDetails(1, ("w0", "w1"), ("w0", "w1"), (), True, hosts={"a": ("w0", "w1")})
    log = IncidentLog().with_event(event(0, start, 1))
    log = log.with_event(event(9, SlowWorkerDetails("w7", 0.2, 0.1, "b"), 1, 5))
    log = log.with_event(evicted(10, "w1", "it is frozen or cut off: no answer"))
    found = shown_incidents(log, status(slowest="w7"), 0.0)
    assert "worker w1 on host a" in found[0].what.lower()
    assert "worker w7 on host b" in found[1].what


def test_the_end_of_a_job_is_no_loss_of_workers() -> None:
    assert told(generation(10, 2, (), left=("w0", "w1"), repair=True)) == []


def test_a_stall_is_over_when_steps_complete() -> None:
    why = "stalled in step 196: w1 (rank 1, host node1) has been in its own code, a.py:3, for 12 s"
    stalled = event(10, StalledDetails(("w1",)), 1, 195, why)
    now = status(step=195)
    log = IncidentLog().with_hosts(HOSTS).with_event(stalled)
    (one,) = shown_incidents(log, now, 20.0)
    assert "a.py:3" in one.what
    assert one.tone == "bad"
    (one,) = shown_incidents(log, status(step=300), 0.0)
    assert (one.tone, one.since) == ("over", "Steps complete again: the job is at step 300.")


def test_other_events_tell_what_is_known_of_their_kind() -> None:
    (one,) = told(event(10, NoTemplateDetails("node0"), 1, 5, "host node0 starts each anew"))
    assert one.what == "Host node0 starts each anew."
    assert one.tone == "warning"
    assert told(generation(10, 2, ("w0", "w1", "w2"), joined=("w2",))) == []


def test_a_week_of_incidents_stays_small() -> None:
    log = IncidentLog()
    for number in range(500):
        details = WorkerFailedDetails(f"w{number}", f"h{number}", 0, -9, "")
        log = log.with_event(event(1000.0 * number, details))
    assert len(log.incidents) == MOST_INCIDENTS
    assert len(log.hosts) <= 400
    found = shown_incidents(log, status(), 0.0)
    assert len(found) == SHOWN
    assert found[0].what.startswith("Worker w499 ")
