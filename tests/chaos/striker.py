"""Seeded faults on a running job, at random instants, whatever the job is doing just then.

Unlike `edl chaos` it waits for no recovery: the next fault may strike in the middle of it. It
spares the job's state: somebody who holds it, and is neither dead nor frozen, is always left.
"""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from edl.chaos.fault_schedule import Action, ObservedWorker, Order, choose_worker
from edl.chaos.faults import ENDPOINTS, health, is_process_of, post_fault, send_signal
from edl.errors import CoordinationError, RingError
from edl.job.snapshot import Snapshot
from edl.records import JobState, Member, RequestedBy, Stage
from edl.zookeeper.store import JobStore

POLL_S = 0.05
TARGETS = ("worker", "worker", "worker", "leader", "newcomer")


@dataclass
class Striker:
    """Strikes ``store``'s job. ``actions``: relative weights; ``veterans`` are not killed."""

    store: JobStore
    seed: int
    mean_pause_s: float
    actions: Mapping[Action, float]
    freeze_s: tuple[float, float] = (0.1, 2.0)
    veterans: frozenset[int] = frozenset()
    struck: list[str] = field(default_factory=list)
    counts: Counter[Action] = field(default_factory=Counter)
    _doomed: set[int] = field(default_factory=set)  # killed, or asked to leave, by us
    _frozen: dict[int, tuple[Member, float]] = field(default_factory=dict)
    _wanted: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def strike(self, count: int | None, deadline: float) -> int:
        """Strike ``count`` times, or until ``deadline`` or the end of the job; how often it did."""
        before = len(self.struck)
        while count is None or len(self.struck) - before < count:
            pause = self._random.uniform(0, 2 * self.mean_pause_s)
            order = Order(self._action(), self._random.choice(TARGETS))
            if not self._wait(time.monotonic() + pause, deadline):
                break
            while not self._once(order, *self._facts()):
                if not self._wait(time.monotonic() + POLL_S, deadline):
                    return len(self.struck) - before
                # There may be no newcomer for long, and the leader may be a veteran.
                order = Order(self._action(), self._random.choice(TARGETS))
        return len(self.struck) - before

    def _action(self) -> Action:
        return self._random.choices(list(self.actions), list(self.actions.values()))[0]

    def thaw_all(self) -> None:
        """Nobody stays frozen."""
        self._thaw(float("inf"))

    def _wait(self, until: float, deadline: float) -> bool:
        """Wait, thaw who is due, and keep the size; False when it is over."""
        while True:
            now = time.monotonic()
            self._thaw(now)
            if now >= deadline or self._facts()[0].job.state is not JobState.RUNNING:
                return False
            if now >= until:
                return True
            time.sleep(min(POLL_S, until - now))

    def _facts(self) -> tuple[Snapshot, list[ObservedWorker]]:
        while True:
            try:
                snapshot = self.store.snapshot()
                break
            except CoordinationError:
                time.sleep(POLL_S)
        desired = snapshot.desired.hosts
        if not self._wanted:
            self._wanted = dict(desired)
        elif desired != self._wanted and snapshot.job.state is JobState.RUNNING:
            self.store.set_desired(
                lambda _: self._wanted, RequestedBy.PERSON, "a departure has lowered it"
            )
        return snapshot, [self._worker(member, snapshot) for member in snapshot.members]

    def _worker(self, member: Member, snapshot: Snapshot) -> ObservedWorker:
        known = snapshot.generation is not None and snapshot.generation.knows(member.id)
        able = member.id not in self._doomed and member.id not in self._frozen
        here = able and member.stage is not Stage.FINISHED and is_process_of(member)
        ring = health(member).generation if here and known else 0
        in_ring = here and known and member.generation > 0 and member.id not in snapshot.evicted
        return ObservedWorker(member.id, in_ring, here, trained=ring > 0)

    def _once(self, order: Order, snapshot: Snapshot, workers: list[ObservedWorker]) -> bool:
        if order.action not in ENDPOINTS:
            workers = [
                ObservedWorker(w.id, w.in_ring, w.here and w.id not in self.veterans, w.trained)
                for w in workers
            ]
        leader = snapshot.leader.worker if snapshot.leader else None
        chosen, _ = choose_worker(order, workers, leader, self._random)
        if chosen is None:
            return False
        member = next(m for m in snapshot.members if m.id == chosen)
        for_s = self._random.uniform(*self.freeze_s)
        try:
            self._do(order.action, member, for_s)
        except (OSError, RingError):
            return False  # it has died by itself meanwhile, or cannot answer
        led = " (leader)" if chosen == leader else ""
        frozen = f" for {for_s:.1f} s" if order.action is Action.FREEZE else ""
        self.struck.append(
            f"{time.strftime('%H:%M:%S')} {order.action} w{chosen}{led}{frozen}, "
            f"{member.stage} in generation {member.generation}"
        )
        self.counts[order.action] += 1
        return True

    def _do(self, action: Action, member: Member, for_s: float) -> None:
        if action in ENDPOINTS:
            status = post_fault(self.store, member, action)
            assert status == 200, f"w{member.id} answered {status}"
        elif action is Action.FREEZE:
            send_signal(member, signal.SIGSTOP)
            self._frozen[member.id] = (member, time.monotonic() + for_s)
        else:
            send_signal(member, signal.SIGKILL if action is Action.KILL else signal.SIGTERM)
            self._doomed.add(member.id)

    def _thaw(self, now: float) -> None:
        for worker, (member, until) in list(self._frozen.items()):
            if now >= until:
                del self._frozen[worker]
                try:
                    send_signal(member, signal.SIGCONT)
                except ProcessLookupError:
                    self._doomed.add(worker)  # it was evicted, and killed by its agent
