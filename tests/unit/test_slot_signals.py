"""Signals to the `edl-worker` of a slot of horovodrun."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from typing import Any, cast

from made import make_job, wanted

from edl.host.horovodrun.decide import SlotLimits
from edl.host.horovodrun.driver import RankAssignment
from edl.host.horovodrun.slot import SlotSupervisor
from edl.job.placement import Placement
from edl.job.snapshot import Snapshot
from edl.records import SlotRecord

LIMITS = SlotLimits()
JOB = make_job(driver="10.0.0.1:9000")


class Job:
    def __init__(self, **hosts: int) -> None:
        self.assigned: Placement = hosts
        self.desired: Placement = hosts
        self.slots = self
        self.ending = False

    def put(self, slot: SlotRecord) -> None:
        self.ending = slot.ending

    def assign(self, change: Callable[[Placement], Placement]) -> None:
        self.assigned = change(self.assigned)

    def set_desired(self, change: Callable[[Placement], Placement], *_: object) -> None:
        self.desired = change(self.desired)

    @property
    def snapshot(self) -> Snapshot:
        return Snapshot(JOB, **wanted(self.desired, by_slot=True))


class Driver:
    def __init__(self) -> None:
        self.newest = RankAssignment(0, 4, 4)
        self.asking = self.gone = False

    def allow(self, may_ask: bool, said: RankAssignment) -> None: ...

    def place(self, local_size: int) -> None:
        self.newest = RankAssignment(0, local_size, local_size)


def supervisor(job: Job, driver: Driver, workers: Sequence[int]) -> SlotSupervisor:
    return SlotSupervisor(
        cast(Any, job), cast(Any, driver), "a", 0, ["x"], cast(Any, workers), LIMITS, 0
    )


def test_each_signal_releases_a_slot_if_the_driver_takes_back_others() -> None:
    """The driver takes back the highest slot; this one starts again, and may be asked again."""
    job, driver = Job(a=4), Driver()
    slot = supervisor(job, driver, [])
    now = 100.0
    for desired in (3, 2, 1):
        slot._signals[signal.SIGTERM] += 1
        slot._handle_signal(job.snapshot, now)
        slot._follow(job.snapshot, now)
        assert job.ending
        now += LIMITS.shutdown_s
        slot._handle_signal(job.snapshot, now)
        assert job.desired == {"a": desired}
        slot._handle_signal(job.snapshot, now + 1.0)
        assert job.desired == {"a": desired}, "once for each signal"
        driver.place(desired)
        slot._follow(job.snapshot, now + 1.0)
        assert slot._state.ending_since is None
        assert not job.ending
        now += 1.0 + LIMITS.given_up_s


def test_a_worker_that_ends_late_is_started_again_in_a_slot_that_is_kept() -> None:
    """The driver has taken back another slot meanwhile, and says nothing more of this one."""
    job, driver, living = Job(a=2), Driver(), [1]
    slot = supervisor(job, driver, living)
    slot._signals[signal.SIGTERM] += 1
    for now in (100.0, 100.0 + LIMITS.shutdown_s):
        slot._handle_signal(job.snapshot, now)
    driver.place(1)
    slot._follow(job.snapshot, 107.0)
    assert slot._state.ending_since == 100.0
    assert job.ending
    living.clear()
    slot._follow(job.snapshot, 110.0)
    assert slot._state.ending_since is None
    assert not job.ending


def test_an_answer_before_the_slot_is_given_back_does_not_keep_it() -> None:
    """The driver placed the slots for another reason, and does not know of the signal yet."""
    job, driver, living = Job(a=2), Driver(), [1]
    slot = supervisor(job, driver, living)
    slot._signals[signal.SIGTERM] += 1
    slot._handle_signal(job.snapshot, 100.0)
    driver.place(2)
    slot._follow(job.snapshot, 103.0)
    living.clear()
    slot._follow(job.snapshot, 105.0)
    slot._handle_signal(job.snapshot, 106.0)
    assert slot._state.ending_since == 100.0
    assert job.desired == {"a": 1}


def test_a_signal_after_the_slot_was_kept_counts_again() -> None:
    job, driver, living = Job(a=2), Driver(), [1]
    slot = supervisor(job, driver, living)
    slot._signals[signal.SIGTERM] += 1
    for now in (100.0, 106.0):
        slot._handle_signal(job.snapshot, now)
    driver.place(1)
    slot._follow(job.snapshot, 107.0)
    slot._signals[signal.SIGTERM] += 1
    slot._handle_signal(job.snapshot, 109.5)
    living.clear()
    slot._follow(job.snapshot, 110.0)
    assert slot._state.ending_since == 109.5
    assert job.ending


def test_a_signal_to_the_slots_of_a_barred_host_is_not_one_to_the_job() -> None:
    """The driver sends it. The job goes on, or begins again, on other hosts."""
    driver = Driver()
    slot = supervisor(Job(a=2), driver, [])
    slot._lost_slots.barred = frozenset({"a"})
    driver.asking = True
    slot._signals[signal.SIGTERM] += 1
    slot._handle_signal(Job(a=2).snapshot, 100.0)
    assert not slot._record.ending
    slot._lost_slots.barred = frozenset({"b"})
    assert slot._record.ending


def test_a_users_signal_on_a_barred_host_counts() -> None:
    """As Ctrl-C when the job holds, because the driver would bar its only host."""
    slot = supervisor(Job(a=2), Driver(), [])
    slot._lost_slots.barred = frozenset({"a"})
    slot._signals[signal.SIGTERM] += 1
    slot._handle_signal(Job(a=2).snapshot, 100.0)
    assert slot._record.ending
