"""Signals to the `edl-worker` of a slot of horovodrun."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any, cast

from made import make_job, wanted

from edl.core.host.horovodrun_slot import SlotLimits
from edl.core.job.placement import Placement
from edl.core.snapshot import Snapshot
from edl.launch.horovodrun.driver import RankAssignment
from edl.launch.horovodrun.slot import SlotSupervisor

LIMITS = SlotLimits()
JOB = make_job(driver="10.0.0.1:9000")


class Job:
    """The records of a job with a discovery script, as an `edl-worker` reads and writes them."""

    def __init__(self, **hosts: int) -> None:
        self.assigned: Placement = hosts
        self.desired: Placement = hosts

    def assign(self, change: Callable[[Placement], Placement]) -> None:
        self.assigned = change(self.assigned)

    def set_desired(self, change: Callable[[Placement], Placement], *_: object) -> None:
        self.desired = change(self.desired)

    @property
    def snapshot(self) -> Snapshot:
        return Snapshot(JOB, **wanted(self.desired, by_slot=True))


class Driver:
    """The driver of horovodrun, which places the slots as a test says."""

    def __init__(self) -> None:
        self.newest = RankAssignment(0, 4, 4)
        self.asking = self.gone = False

    def allow(self, may_ask: bool, said: RankAssignment) -> None: ...

    def place(self, local_size: int) -> None:
        self.newest = RankAssignment(0, local_size, local_size)


def test_each_signal_releases_a_slot_if_the_driver_takes_back_others() -> None:
    """The driver takes back the highest slot; this one starts again, and may be asked again."""
    job, driver = Job(a=4), Driver()
    slot = SlotSupervisor(
        cast(Any, job), cast(Any, driver), "a", 0, ["x"], cast(Any, ()), LIMITS, 0
    )
    now = 100.0
    for desired in (3, 2, 1):
        slot._signals[signal.SIGTERM] += 1
        slot._handle_signal(job.snapshot, now)
        now += LIMITS.shutdown_s
        slot._handle_signal(job.snapshot, now)
        assert job.desired == {"a": desired}
        slot._handle_signal(job.snapshot, now + 1.0)
        assert job.desired == {"a": desired}, "once for each signal"
        driver.place(desired)
        slot._follow_driver(job.snapshot, now + 1.0)
        assert slot._own.ending_since is None
        now += 1.0 + LIMITS.given_up_s
