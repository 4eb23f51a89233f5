"""An invented job for tests of the dashboard: records and events as a real job writes them.

``python tests/shown_job.py [--port N] [--workers N]`` serves its page, which then changes each
second: for work on the page where no job runs.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from edl.errors import CoordinationError, UnknownJob
from edl.events import (
    CheckpointDetails,
    DesiredDetails,
    Details,
    Event,
    EvictedDetails,
    GenerationDetails,
    LeaderDetails,
    SlowWorkerDetails,
    SwitchDetails,
    WorkerFailedDetails,
)
from edl.job.profile import Curve, Point
from edl.job.snapshot import Snapshot
from edl.policy.observation import SizeMeasurement
from edl.policy.scaling_profile import ScalingProfile
from edl.policy.step_time import StepTime
from edl.policy.stragglers import Times
from edl.records import (
    Desired,
    Generation,
    Host,
    Job,
    JobState,
    Leader,
    Member,
    RingMember,
    Stage,
    SwitchParts,
    TrainingStatus,
)
from edl.spec import JobSpec, Sizes
from edl.zookeeper.events import OnUnreadable, leave_out

NAME, SECRET = "digits", "s" * 32
CREATED = 1_763_632_000.0


def ring(members: tuple[int, ...]) -> tuple[RingMember, ...]:
    return tuple(RingMember(n, f"node{n % 2}", n // 2, "127.0.0.1", 40000 + n) for n in members)


def members(numbers: tuple[int, ...], stages: dict[int, Stage] | None = None) -> tuple[Member, ...]:
    return tuple(
        Member(
            id=n,
            host=f"node{n % 2}",
            slot=n // 2,
            address="127.0.0.1",
            port=40000 + n,
            pid=5000 + n,
            attempt_id="a",
            stage=(stages or {}).get(n, Stage.ACTIVE),
            generation=1,
        )
        for n in numbers
    )


def snapshot(
    numbers: tuple[int, ...] = (0, 1, 2),
    status: TrainingStatus | None = None,
    state: JobState = JobState.RUNNING,
    stages: dict[int, Stage] | None = None,
    number: int = 5,
) -> Snapshot:
    """Return the records of a job whose ring has the workers ``numbers``, but for newcomers."""
    newcomers = (Stage.PREPARING, Stage.READY)
    seated = tuple(n for n in numbers if (stages or {}).get(n) not in newcomers)
    spec = JobSpec(("python", "train.py"), 2, Sizes(min_np=1, max_np=6))
    return Snapshot(
        job=Job(NAME, spec, state, created=CREATED, saved_step=400),
        hosts=(Host("node0", 3, "127.0.0.1"), Host("node1", 3, "127.0.0.1")),
        members=members(numbers, stages),
        desired=Desired({"node0": 2, "node1": 1}),
        generation=Generation(number, 2, ring(seated), seated[0], (), (), "why")
        if seated
        else None,
        leader=Leader(2, seated[0]) if seated else None,
        status=status or training(),
    )


def training(at_s: float = CREATED + 600.0, step: int = 1000, **more: Any) -> TrainingStatus:
    values = {
        "step": step,
        "epoch": 3,
        "epoch_done": step * 96 % 60_000,
        "epoch_total": 60_000,
        "left": 240_000.0,
        "median_step_s": 0.21,
        "global_batch": 96,
        "samples_per_s": 420.0,
        "quiet_s": 0.1,
        "updated_at_s": at_s,
    }
    return TrainingStatus(**(values | more))


def event(
    at_s: float, details: Details, generation: int = 1, step: int = 0, why: str = ""
) -> Event:
    return Event(CREATED + at_s, generation, step, why or f"why {details.kind}", details)


def generation(
    at_s: float,
    number: int,
    names: tuple[str, ...],
    joined: tuple[str, ...] = (),
    left: tuple[str, ...] = (),
    repair: bool = False,
    rate: float = 0.0,
    why: str = "",
) -> Event:
    details = GenerationDetails(2, names, joined, left, repair, samples_per_s=rate)
    return event(at_s, details, number, int(at_s), why)


def switch(at_s: float, number: int, *stalls: float, detect_s: float = 0.0) -> Event:
    """Return the switch into a generation: each stall is that of an old worker."""
    workers = {
        f"w{n}": SwitchParts(
            detect_s=detect_s,
            survivor_report_s=0.4 * stall if detect_s else 0.0,
            wait_s=0.4 * stall,
            shutdown_s=0.0 if detect_s else 0.1 * stall,
            init_s=0.4 * stall,
            broadcast_s=0.2 * stall if detect_s else 0.1 * stall,
            stall_s=stall,
            first_step_s=0.25,
            median_step_s=0.2,
        )
        for n, stall in enumerate(stalls)
    }
    return event(at_s, SwitchDetails(len(stalls), workers), number, int(at_s), "the ring is built")


def story() -> list[Event]:
    """Return the events of ten minutes: a join, a crash, its replacement, and a planned leave."""
    three, two = ("w0", "w1", "w2"), ("w0", "w1")
    killed = WorkerFailedDetails("w2", "node0", 1, -9, "")
    return [
        event(0, DesiredDetails("launcher", {}, {"node0": 1, "node1": 1}), 0, 0, "edl run -np 2"),
        event(2, LeaderDetails("w0"), 0, 0, "w0 leads in term 1"),
        generation(3, 1, two, two, why="the job begins with 2 workers"),
        event(90, DesiredDetails("person", {"node0": 1}, {"node0": 2}), 1, 300, "edl scale --np 3"),
        generation(98, 2, three, ("w2",), rate=290.0, why="w2 joined: 2 -> 3 workers, 3 wanted"),
        switch(99, 2, 0.11, 0.09),
        event(150, CheckpointDetails("/ckpt/400", 5_200_000, 0.012, 0.2), 2, 400, "saved"),
        event(
            240, SlowWorkerDetails("w1", 0.31, 0.14), 2, 800, "w1 computes 0.31 s, others 0.14 s"
        ),
        event(300, killed, 2, 1000, "w2 on node0 was killed by SIGKILL"),
        event(300.1, EvictedDetails("w2"), 2, 1000, "w2 is gone: 127.0.0.1:40002 refuses"),
        generation(300.2, 3, two, (), ("w2",), True, 420.0, "w2 died: 3 -> 2 workers"),
        switch(301, 3, 0.21, 0.18, detect_s=0.02),
        generation(320, 4, ("w0", "w1", "w3"), ("w3",), (), rate=285.0, why="w3 joined: 2 -> 3"),
        switch(321, 4, 0.1, 0.12),
        generation(480, 5, ("w0", "w1", "w3"), (), (), rate=430.0, why="Horovod was tuned anew"),
        switch(481, 5, 0.08, 0.07, 0.06),
    ]


def learned(numbers: tuple[int, ...] = (0, 1, 2)) -> ScalingProfile:
    times = tuple(
        Times(n, f"node{n % 2}", 32.0, 0.14 + (0.1 if n == 1 else 0.004 * n), 0.012, 0.03, 50)
        for n in numbers
    )
    longest = max(one.own_s for one in times)
    times = tuple(replace(one, reduce_s=0.02 + longest - one.own_s) for one in times)
    return ScalingProfile(
        seen=(
            (1, SizeMeasurement(160.0, 60, 32.0)),
            (2, SizeMeasurement(292.0, 300, 32.0, 2)),
            (3, SizeMeasurement(420.0, 700, 32.0, 2)),
        ),
        np=len(numbers),
        steps=200,
        times=times,
        data_part=0.05,
        change_s=0.9,
        step_time=StepTime(0.05, 0.0046, 0.01, 0.004, 0.016, 0.006, 1.6),
    )


def curve() -> Curve:
    return Curve(NAME, CREATED, (Point(1, 158.0, 0.2, 50, 10.0), Point(4, 520.0, 0.25, 50, 12.0)))


@dataclass
class ShownStore:
    """A stand-in for a :class:`edl.zookeeper.store.JobStore`, which a test changes."""

    now: Snapshot = field(default_factory=snapshot)
    log: list[Event | None] = field(default_factory=lambda: list(story()))  # None: not readable
    first: int = 0  # the number of the oldest event that is kept
    measured: ScalingProfile = field(default_factory=learned)
    error: CoordinationError | UnknownJob | None = None  # of each read
    connected: bool = False  # whether the session then has a connection
    reads: int = 0
    name: str = NAME

    def snapshot(self, wake: Callable[[], None] | None = None) -> Snapshot:
        self.reads += 1
        if self.error is not None:
            raise self.error
        return self.now

    @property
    def session(self) -> Any:
        return SimpleNamespace(
            hosts="127.0.0.1:2181",
            access=SimpleNamespace(secret=SECRET, job=NAME),
            connected=self.connected,
        )

    @property
    def nodes(self) -> Any:
        return SimpleNamespace(run="run-of-the-job")

    @property
    def events(self) -> Any:
        return SimpleNamespace(read_known=self._read)

    def _read(
        self, after: int = -1, unreadable: OnUnreadable = leave_out
    ) -> list[tuple[int, Event]]:
        new = [one for one in enumerate(self.log, self.first) if one[0] > after]
        for number in (number for number, event in new if event is None):
            unreadable(number, "this is not an Event")
        return [(number, event) for number, event in new if event is not None]

    @property
    def policy(self) -> Any:
        return SimpleNamespace(learned=lambda: self.measured)

    @property
    def profile(self) -> Any:
        return SimpleNamespace(get=curve)


class LivingStore(ShownStore):
    """A store whose job trains: each read has other steps and another speed."""

    def __init__(self, workers: int = 3) -> None:
        super().__init__()
        self._numbers = (0, 1, 3) if workers == 3 else tuple(range(workers))
        self._late_s = time.time() - CREATED - 600.0
        self.log = [replace(one, time=one.time + self._late_s) for one in story()]
        self.measured = learned(self._numbers[:20])

    def snapshot(self, wake: Callable[[], None] | None = None) -> Snapshot:
        super().snapshot(wake)
        now_s = time.time()
        rate = 420.0 + 12.0 * math.sin(now_s / 7) + 6.0 * math.sin(now_s / 2.3)
        step = 2000 + int(4 * (now_s - self._late_s - CREATED - 600.0))
        status = training(now_s, step, samples_per_s=rate)
        found = snapshot((*self._numbers, 99), status, stages={99: Stage.PREPARING})
        return replace(found, job=replace(found.job, created=CREATED + self._late_s))


def main() -> None:
    from edl.api.listening import ListenAddress
    from edl.dashboard.server import run_dashboard

    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--workers", type=int, default=3)
    given = parser.parse_args()
    store: Any = LivingStore(given.workers)
    run_dashboard(
        store, ListenAddress("127.0.0.1", given.port), lambda text: print(text, flush=True)
    )


if __name__ == "__main__":
    main()
