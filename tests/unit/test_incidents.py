"""What the page of a job says of an incident: what happened, why, what to do, what followed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from shown_job import CREATED, event, generation, snapshot, switch, training

from edl.dashboard.view.incidents import (
    MAX_INCIDENTS,
    MAX_SHOWN,
    IncidentLog,
    IncidentView,
    incident_views,
    with_incidents,
)
from edl.event_text import LAST_WORDS
from edl.events import (
    CheckpointDetails,
    CheckpointFailedDetails,
    Event,
    EvictedDetails,
    GenerationDetails,
    JobFailedDetails,
    LogFailedDetails,
    LogResumedDetails,
    LossSpikeDetails,
    NoTemplateDetails,
    ResumedDetails,
    SlowWorkerDetails,
    StalledDetails,
    WorkerFailedDetails,
    WorkerFrozenDetails,
)
from edl.learning import LossSpike
from edl.records import Stage
from edl.status import JobStatus, job_status

HOSTS = {"w0": "node0", "w1": "node1", "w2": "node0", "w3": "node1"}
FULL = "No space left on device"


def status(**changes: Any) -> JobStatus:
    return replace(job_status(snapshot(status=training()), "zk"), **changes)


def told(*events: Event, now: JobStatus | None = None) -> list[IncidentView]:
    log = IncidentLog().with_hosts(HOSTS)
    for one in (generation(0, 1, ("w0", "w1")), *events):
        log = log.with_event(one)
    return incident_views(log, now or status(), 0.0)


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
            10,
        ), "the ring knows the step exactly, its agent a little later"
        assert (
            one.what == "Worker w1 on host node1 was killed by signal 9 (SIGKILL), after step 10."
        )
        assert "the memory of its host was used up" in one.why
        assert "Read its last lines with `edl logs digits w1`." in one.advice
        assert "dmesg -T" in one.advice
        assert one.since == (
            "The other worker went on from step 10. "
            "w2 joined 29 s after it: 2 workers trained then."
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

    def test_when_none_is_left_others_begin_at_a_checkpoint(self) -> None:
        (one,) = told(
            killed(10, "w0"),
            killed(10.1, "w1"),
            generation(17, 2, ("w2", "w3"), joined=("w2", "w3"), left=("w0", "w1"), repair=True),
            event(18, ResumedDetails("/ckpt/474", 19), 2, 474),
            now=status(world_size=2),
        )
        assert (one.tone, one.step) == ("over", 195)
        assert "the memory of its host was used up" in one.why
        assert one.since == (
            "No worker was left that could go on; others were started. w2 and w3 joined 7 s after "
            "it: 2 workers trained then. They went on from the checkpoint of step 474; at least 19 "
            "steps are trained again."
        )

    def test_newcomers_of_the_same_switch_have_not_gone_on(self) -> None:
        (one,) = told(
            killed(10), generation(11, 2, ("w0", "w2"), joined=("w2",), left=("w1",), repair=True)
        )
        assert "The other worker went on from step 11." in one.since

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
        assert one.what == "Worker w1 on host node1 stopped answering, after step 12."
        assert "all of host node1 was stopped" in one.why
        assert "no step completes for 6.2 s" in one.why
        assert "`ping`" in one.advice
        assert "if it runs again, as after `kill -CONT`, it ends by itself." in one.advice
        assert "The other worker went on" in one.since

    def test_a_frozen_process_that_its_agent_ends(self) -> None:
        frozen = WorkerFrozenDetails("w1", "node1", 0, "/tmp/w1.stacks")
        (one,) = told(event(10, frozen, 1, 195), killed(11))
        assert "was killed by signal 9" in one.what
        assert "/tmp/w1.stacks" in told(event(10, frozen, 1, 195))[0].advice

    def test_a_suspended_process_that_its_agent_kills(self) -> None:
        suspended = WorkerFrozenDetails("w1", "node1", 0, "")
        (one,) = told(
            event(10, suspended, 1, 195),
            evicted(11, "w1", "its process is gone: it refuses connections"),
            generation(12, 2, ("w0",), left=("w1",), repair=True),
        )
        assert one.what.startswith("Worker w1 on host node1 was suspended, after step ")
        assert "SIGSTOP" in one.why
        assert "EDL_SUSPENDED_S=60" in one.advice

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
            "waited for worker w1 on host node1 in each step: it computed 257 ms, 4.1 times"
            in one.what
        )
        assert "`top`" in one.advice
        assert "`edl drain digits w1`" in one.advice
        assert (one.tone, one.since) == ("warning", "")

    def test_it_says_when_that_is_over(self) -> None:
        (one,) = told(self.SLOW)
        assert (one.tone, one.since) == ("over", "Then no worker waited for it any more.")

    def test_a_worker_that_was_lost_since_is_not_waited_for(self) -> None:
        now = status(slowest="w1")
        (lost, slow) = told(self.SLOW, killed(30), now=now)
        assert lost.kind == "worker_failed"
        assert (slow.tone, slow.since) == ("over", "w1 is not in the job any more.")

    def test_in_another_ring_it_is_the_same_incident(self) -> None:
        (one,) = told(self.SLOW, replace(self.SLOW, time=CREATED + 70), now=status(slowest="w1"))
        assert "It has happened 2 times in all." in one.since


def log_failed(at_s: float, worker: str, path: str = "/var/log/x", disk: str = "/var") -> Event:
    reason = f"{worker} trains on without its log: {FULL}: {path}"
    return event(at_s, LogFailedDetails(worker, HOSTS[worker], path, disk), 1, 7, reason)


def not_saved(at_s: float, step: int, disk: str = "/data") -> Event:
    reason = f"the checkpoint of step {step} was not written: {FULL}: /data/ckpt/.new-{step}/model"
    return event(at_s, CheckpointFailedDetails("/data/ckpt", disk), 1, step, reason)


class TestAFullDisk:
    def test_its_logs_are_one_incident(self) -> None:
        logs = [log_failed(10 + n, worker) for n, worker in enumerate(("w0", "w2", "w1"))]
        (one,) = told(*logs)
        assert one.what == (
            "The disk at /var on host node0 ran out of space; w0 could not write its log; w2 could "
            "not write its log; w1 could not write its log."
        )
        assert f"`{FULL}` when edl wrote to /var/log." in one.why
        assert "Free space there on host node1: `df -h /var`" in one.advice
        assert "`du -xh --max-depth=2 /var`" in one.advice
        assert (one.tone, one.at_s, one.since) == ("bad", CREATED + 10, "")

    def test_its_checkpoints_are_one_incident_with_their_number(self) -> None:
        (one,) = told(not_saved(10, 50))
        assert one.what == (
            "The disk at /data on host node0 ran out of space; the checkpoint of step 50 was not "
            "written."
        )
        tries = [not_saved(10 + 1800 * n, 50 + n) for n in range(5)]  # seldom: each half hour
        (one,) = told(*tries)
        assert one.what.endswith("the checkpoint of step 54 was not written.")
        assert one.since == "It has happened 5 times in all."
        assert one.advice.startswith("Free space there on host node0: `df -h /data`")
        assert "only those from before can be resumed from" in one.advice
        (one,) = told(*tries, event(9999, CheckpointDetails("/data/ckpt/60", 5, 0.1, 0.1), 1, 60))
        assert (one.tone, one.until_s) == ("over", CREATED + 9999)
        assert one.since.endswith("The checkpoint of step 60 was written.")

    def test_logs_and_checkpoints_on_it_are_one_incident(self) -> None:
        (one,) = told(log_failed(10, "w0", "/data/logs/w0.log", "/data"), not_saved(11, 50))
        assert "w0 could not write its log; the checkpoint of step 50 was not written" in one.what

    def test_another_disk_is_another_incident(self) -> None:
        assert len(told(log_failed(10, "w0"), not_saved(11, 50))) == 2

    def test_logs_that_are_written_again(self) -> None:
        back = [event(30 + n, LogResumedDetails(f"w{n}", "a", 700), 1, 60) for n in range(2)]
        (one,) = told(log_failed(10, "w0"), log_failed(11, "w1"), *back)
        assert (one.tone, one.until_s) == ("over", CREATED + 30)
        assert one.since == (
            "w0 wrote its log again; 700 bytes of output were lost. w1 wrote its log again; 700 "
            "bytes of output were lost."
        )

    def test_that_is_soon_full_again_is_the_same_one(self) -> None:
        back = event(30, LogResumedDetails("w0", "node0", 700), 1, 60)
        (one,) = told(log_failed(10, "w0"), back, log_failed(40, "w0"))
        assert (one.tone, one.until_s, one.at_s) == ("bad", None, CREATED + 10)
        assert len(told(log_failed(10, "w0"), back, log_failed(9000, "w0"))) == 2

    def test_of_workers_that_are_gone_is_over(self) -> None:
        (lost, disk) = told(log_failed(10, "w1"), killed(30))
        assert lost.kind == "worker_failed"
        assert (disk.tone, disk.since) == ("over", "w1 is not in the job any more.")

    def test_that_an_older_edl_tells_of_is_known_by_its_directory(self) -> None:
        (one,) = told(log_failed(10, "w0", disk=""), log_failed(11, "w1", disk=""))
        assert "`df -h /var/log`" in one.advice

    def test_a_checkpoint_of_a_ring_that_was_left_behind_is_not_missing(self) -> None:
        why = "the checkpoint of step 50 was not written: the job goes on in generation 5"
        details = CheckpointFailedDetails("/data/ckpt", "/data", superseded=True)
        assert told(event(10, details, 4, 50, why)) == []

    def test_a_directory_that_is_missing_is_none(self) -> None:
        why = "the checkpoint of step 50 was not written: No such file or directory: /data/ckpt"
        failed = event(10, CheckpointFailedDetails("/data/ckpt", "/data"), 1, 50, why)
        (one,) = told(failed, replace(failed, time=CREATED + 5000))
        assert one.what.endswith("directory: /data/ckpt (worker w0 on host node0).")
        assert one.since == "It has happened 2 times in all."
        saved = event(6000, CheckpointDetails("/ckpt/60", 5, 0.1, 0.1), 1, 60)
        (one,) = told(failed, saved)
        assert (one.tone, one.since) == ("over", "The checkpoint of step 60 was written.")
        why = "w0 trains on without its log: No such file or directory: /l/x"
        gone = event(10, LogFailedDetails("w0", "node0", "/l/x", "/"), 1, 7, why)
        (one,) = told(gone, event(30, LogResumedDetails("w0", "node0", 7), 1, 60))
        assert one.what.startswith("Worker w0 on host node0 could not write its log: No such")
        assert one.since == "w0 wrote its log again; 7 bytes of output were lost."


def test_what_is_not_over_stays_on_the_page() -> None:
    later = [killed(2000.0 * n, f"w{n % 3}") for n in range(2, 2 + MAX_SHOWN)]
    rings = [
        generation(2000.0 * n + 1, n, ("w3",), left=(f"w{n % 3}",)) for n in range(2, 2 + MAX_SHOWN)
    ]
    story = sorted([*later, *rings], key=lambda one: one.time)
    found = told(not_saved(10, 50), *story)
    assert (len(found), found[-1].kind) == (MAX_SHOWN, "checkpoint_failed")


class TestAWrongLearningRate:
    @staticmethod
    def told_of(spike: LossSpike) -> IncidentView:
        return told(event(10, LossSpikeDetails(522, spike), 1, 522, "x"))[0]

    def test_that_rose(self) -> None:
        one = self.told_of(LossSpike(1.73, 0.236, 388, 2.3, 20.0, 0.05, 502, 2, 2))
        assert one.what == (
            "The loss rose to 1.73 at step 522, 7.33 times its lowest value (0.236 at step 388)."
        )
        assert "rose from 0.05 to 20 at about step 502." in one.why
        assert "checkpoints after step 501 are spoiled, and only the newest are kept" in one.advice
        assert "Copy one of before into a directory of its own (`edl checkpoint list`" in one.advice
        assert "or start again if it is gone, with the learning rate of before (0.05)" in one.advice
        assert one.tone == "bad"

    def test_that_has_fallen_since(self) -> None:
        one = self.told_of(LossSpike(1.7, 0.2, 388, 2.3, 0.02, 0.1, 502, 2, 2, rate_after=0.4))
        assert "rose from 0.1 to 0.4 at about step 502." in one.why

    def test_that_rose_with_the_workers(self) -> None:
        one = self.told_of(LossSpike(None, 0.2, 388, 2.3, 0.4, 0.1, 502, 1, 4))
        assert one.what == (
            "The loss was not finite (inf or nan) at step 522; it was 0.2 at step 388."
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
        assert one.what.startswith("The loss rose to 324 at step 41")
        assert one.since == "At step 90 it was not finite."

    def test_the_header_says_so(self) -> None:
        one = self.told_of(LossSpike(None))
        assert with_incidents("training", "good", [one], 0)[1] == "bad"
        assert with_incidents("stopped", "over", [one], 0) == ("stopped", "over")
        assert with_incidents("training", "good", [], 0) == ("training", "good")

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
    found = incident_views(log, status(slowest="w7"), 0.0)
    assert "worker w1 on host a" in found[0].what.lower()
    assert "worker w7 on host b" in found[1].what


def test_the_end_of_a_job_is_no_loss_of_workers() -> None:
    assert told(generation(10, 2, (), left=("w0", "w1"), repair=True)) == []


def test_a_stall_is_over_when_steps_complete() -> None:
    why = "stalled in step 196: w1 (rank 1, host node1) has been in its own code, a.py:3, for 12 s"
    stalled = event(10, StalledDetails(("w1",)), 1, 195, why)
    now = status(step=195)
    log = IncidentLog().with_hosts(HOSTS).with_event(stalled)
    (one,) = incident_views(log, now, 20.0)
    assert "a.py:3" in one.what
    assert one.tone == "bad"
    (one,) = incident_views(log, status(step=300), 0.0)
    assert (one.tone, one.since) == ("over", "Steps completed again: the job is at step 300.")


STALL = "stalled in step 41: w0 (rank 1, host node0) has been in its own code, a.py:3, for 0 s"


def test_a_late_report_of_an_evicted_worker_is_no_stall() -> None:
    """The healthy worker, which trains alone, would be said to hold the job up."""
    late = event(22, StalledDetails(("w0",)), 1, 40, STALL)
    gone = evicted(12, "w1", "it is frozen or cut off: no answer")
    ring = event(12, generation(12, 2, ("w0",), left=("w1",), repair=True).details, 2, 40)
    (one,) = told(gone, ring, replace(switch(12.1, 2, 3.1, detect_s=3), step=40), late)
    assert one.kind == "evicted", "the new ring has trained a step"
    saved = event(20, CheckpointDetails("/ckpt/42", 5, 0.1, 0.1), 2, 42)
    (one,) = told(gone, ring, saved, late)
    assert one.kind == "evicted", "a later step is complete"


def test_a_stall_in_the_step_of_a_checkpoint_is_one() -> None:
    """Workers end a step one after the other, and a job may begin again further back."""
    stalled = event(22, StalledDetails(("w0",)), 1, 40, STALL)
    for step in (40, 41):
        assert told(event(20, CheckpointDetails("/x", 5, 0.1, 0.1), 1, step), stalled)
    saved = event(5, CheckpointDetails("/x", 5, 0.1, 0.1), 1, 60)
    assert told(saved, event(18, ResumedDetails("/x", 19), 2, 40), stalled)


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
    assert len(log.incidents) == MAX_INCIDENTS
    assert len(log.hosts) <= 400
    found = incident_views(log, status(), 0.0)
    assert len(found) == MAX_SHOWN
    assert found[0].what.startswith("Worker w499 ")


class TestFailuresOfTheScript:
    STORY = (
        killed(10, "w1", 1, "ValueError: boom (x.py:3)"),
        generation(10.1, 2, ("w0",), left=("w1",), repair=True),
        generation(12, 3, ("w0", "w2"), joined=("w2",)),
        evicted(20.0, "w2", "its process is gone: 127.0.0.1:1 refuses connections"),
        generation(20.1, 4, ("w0",), left=("w2",), repair=True),
        killed(20.2, "w2", 1, "ValueError: boom (x.py:3)"),
    )

    def test_of_replacements_are_counted_together(self) -> None:
        (one,) = told(*self.STORY)
        assert one.what.startswith("Worker w1 on host node1 ended with exit code 1; worker w2 on")
        assert one.since.startswith("It has happened 2 times in all.")
        assert one.at_s == CREATED + 10

    def test_of_other_causes_are_not(self) -> None:
        assert len(told(*self.STORY, killed(30, "w0", 1, "KeyError: 7 (x.py:9)"))) == 2
        assert len(told(killed(10), generation(12, 2, ("w0",)), killed(90, "w0"))) == 2

    def test_are_told_once_where_the_job_fails_by_them(self) -> None:
        failed = event(
            20.3, JobFailedDetails(), 4, 195, f"all died{LAST_WORDS}w2: ValueError: boom"
        )
        (one,) = told(*self.STORY, failed)
        assert one.why == "Its script has ended by itself: ValueError: boom (x.py:3)."
        assert one.since.endswith("The job failed: all died.")
        assert "A replacement" not in one.advice
        assert told(failed)[0].kind == "job_failed", "of another cause"


def saved(at_s: float, step: int) -> Event:
    return event(at_s, CheckpointDetails("/data/ckpt/60", 5, 0.1, 0.1), 1, step)


def test_a_full_disk_says_where_a_loss_of_all_workers_goes_back_to() -> None:
    (one,) = told(saved(5, 1049), saved(6, 1086), not_saved(11, 1114), not_saved(12, 1143))
    assert (
        "until a checkpoint is written, the job goes back to step 1,086 if all workers are lost"
        in one.advice
    )
    (one,) = told(not_saved(11, 50))
    assert "until a checkpoint is written, only those from before can be resumed from" in one.advice


class TestTheLastGoodCheckpoint:
    """A wrong loss spoils the checkpoints after it, which push out the good ones."""

    SPIKE = LossSpike(3.78e11, 0.00741, 1134, 2.3, 30.0, 0.05, 2074, 2, 2)
    ROSE = event(40, LossSpikeDetails(2088, SPIKE), 1, 2088, "x")

    def test_is_named(self) -> None:
        good = (saved(20, 2001), saved(30, 2043))
        (one,) = told(*good, saved(39, 2080), self.ROSE, saved(50, 2120))
        assert one.advice == (
            "Stop the job now (`edl stop digits`): checkpoints after step 2,073 are spoiled, and "
            "only the newest are kept (`keep` in the script, 3 by default). The last good "
            "checkpoint is that of step 2,043. Copy it into a directory of its own (`edl "
            "checkpoint list` shows the path), and go on from there (`edl run --resume-from "
            "DIRECTORY`), or start again if it is gone, with the learning rate of before (0.05), "
            "or one that rises slowly."
        )

    def test_is_the_one_that_was_written_after_a_resume(self) -> None:
        old, new = (saved(20, 2001), saved(30, 2060)), saved(35, 2030)
        (one,) = told(*old, new, self.ROSE)
        assert "The last good checkpoint is that of step 2,030." in one.advice


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
        (one,) = told(*TestAKilledWorker.STORY[:4], now=now)
        assert one.tone == "warning"
        assert one.since.endswith(
            "Nobody has taken its place yet; w2 on host node0 prepares to join: 1 of 2 workers "
            "trains."
        )


class TestTheHeader:
    """It is not plainly green while an entry needs somebody to act."""

    @staticmethod
    def of(found: list[IncidentView], joining: int = 0) -> tuple[str, str]:
        return with_incidents("training", "good", found, joining)

    def test_while_a_worker_is_slow_or_nothing_is_saved(self) -> None:
        amber = ("training; see what happened", "warning")
        assert self.of(told(TestASlowWorker.SLOW, now=status(slowest="w1"))) == amber
        assert self.of(told(TestASlowWorker.SLOW)) == ("training", "good")
        assert self.of(told(not_saved(11, 50))) == amber
        assert self.of(told(log_failed(11, "w0"))) == amber
        assert self.of(told(not_saved(11, 50), saved(99, 60))) == ("training", "good")

    def test_while_a_place_is_empty_and_nobody_prepares_to_take_it(self) -> None:
        now = status(world_size=1, desired={"node0": 2})
        found = told(*TestAKilledWorker.STORY[:4], now=now)
        assert self.of(found)[1] == "warning"
        assert self.of(found, joining=1) == ("training", "good")

    def test_of_a_warning_whose_end_nobody_tells(self) -> None:
        found = told(event(10, NoTemplateDetails("node0"), 1, 5, "host node0 starts each anew"))
        assert self.of(found) == ("training", "good")

    def test_stays_as_it_is_if_the_job_does_not_train_well(self) -> None:
        assert with_incidents("stopping", "warning", told(not_saved(1, 5)), 0)[0] == "stopping"
