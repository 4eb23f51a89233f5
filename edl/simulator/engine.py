"""Jobs on a cluster under virtual time; a policy says who has which slots.

Time moves by these rules, those of Pollux' simulator where a fixed interval is given:

1. The policy is asked at each multiple of the interval, or, without one, whenever a job arrives or
   ends and a node fails or comes back. It sees the jobs that have arrived by then.
2. Between two decisions each job advances alone, with the slots that it has. A job that ends leaves
   its slots idle until the next decision.
3. A job whose slots change does not train for what the change costs (:mod:`edl.simulator.resize`).
   Another batch costs nothing.
4. Of jobs on several nodes, those that share a node with another such job are slowed down by
   ``interference``, a part of their rate.
5. A node that fails takes the slots of all jobs on it at once; they keep the work done, have none
   until the next decision, and then pay for a restart.
6. With ``drop``, a job that the first decision after its arrival gives no slots is turned away.
7. Time begins shortly before the first submission (:func:`_begin_s`), nodes can fail from then on,
   and it never goes back.

Nothing is random but the failures, and these by seed: the same arguments give the same result.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from edl.core.cluster.state import (
    Allocation,
    ClusterState,
    Node,
    Policy,
    PolicyState,
    QueuePolicy,
    total,
)
from edl.core.cluster.validity import violation
from edl.core.plural import counted
from edl.errors import UsageError
from edl.simulator.failures import Failures
from edl.simulator.fairness import with_isolated
from edl.simulator.progress import Progress, same_s
from edl.simulator.resize import ResizeCost
from edl.simulator.results import Result
from edl.simulator.work import SubmittedJob

DAY_S = 86_400.0
MOST_FAILURES = 1e7  # that are drawn before the last submission: some ten seconds of computing
PATIENCE = 1000  # decisions in a row that start nothing, while nothing else can happen
OnTime = Callable[[float, int], None]


@dataclass(frozen=True)
class Rules:
    """How time moves.

    Attributes:
        interval_s: between two decisions; 0: on every arrival and end.
        interference: part of its rate that a job on several nodes loses beside another; 0 to 1.
        whole_seconds: ends of epochs are rounded as published; with an interval only.
        speeds: kind of node -> its speed, where it is not 1; a job is as fast as its slowest node.
        drop: jobs for which there are no slots are turned away in place of waiting.
    """

    interval_s: float = 60.0
    resize: ResizeCost = field(default_factory=ResizeCost)
    interference: float = 0.0
    whole_seconds: bool = False
    speeds: Mapping[str, float] = field(default_factory=dict)
    failures: Failures | None = None
    drop: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.interval_s < math.inf:
            raise UsageError(
                f"the interval is {self.interval_s:g} s; give seconds, or 0 for on every event"
            )
        if not 0 <= self.interference < 1:
            raise UsageError(f"the interference is {self.interference:g}; give 0 to below 1")


def simulate(
    jobs: Sequence[SubmittedJob],
    nodes: Sequence[Node],
    policy: Policy,
    rules: Rules,
    on_time: OnTime | None = None,
) -> Result:
    """Run all jobs to their ends.

    Args:
        on_time: is told the virtual time and how many jobs have ended, after each decision.

    Raises:
        UsageError: a job asks for more slots than there are, a name comes twice, a placement was
            not measured, or the policy lets jobs wait for ever.
    """
    check(jobs, nodes)
    begin_s = _begin_s(jobs, rules.interval_s)
    jobs = [replace(job, arrival_s=job.arrival_s - begin_s) for job in jobs]
    _check_span(jobs, nodes, rules.failures)
    still = rules.interval_s == 0 and not rules.interference and rules.failures is None
    if still and isinstance(policy, QueuePolicy):
        run: _Run = _QueueRun(jobs, nodes, policy, rules, begin_s)
    else:
        run = _Run(jobs, nodes, policy, rules, begin_s)
    while run.unfinished:
        before_s = run.now_s
        run.move()
        assert run.now_s >= before_s, f"virtual time went back from {before_s} to {run.now_s} s"
        if run.due:
            run.decide()
            if on_time is not None:
                on_time(begin_s + run.now_s, len(jobs) - run.unfinished)
    results = with_isolated(jobs, [job.result() for job in run.jobs], nodes)
    return Result(tuple(job.later(begin_s) for job in results), run.decisions)


def _begin_s(jobs: Sequence[SubmittedJob], interval_s: float) -> float:
    """Return the time of the trace at which the simulated clock is 0.

    A trace may have the clock of a computer, in which seconds since 1970 leave a float no room for
    what is shorter than a microsecond. The begin is at least one interval before the first
    submission, and a multiple of the interval, so decisions come when they came without it.
    """
    first_s = min((job.arrival_s for job in jobs), default=0.0)
    unit_s = interval_s or DAY_S
    return max(0.0, first_s // unit_s - 1) * unit_s


def _check_span(
    jobs: Sequence[SubmittedJob], nodes: Sequence[Node], failures: Failures | None
) -> None:
    """Refuse a trace during which nodes would fail more often than can be computed.

    Raises:
        UsageError: see above.
    """
    if failures is None:
        return
    span_s = max((job.arrival_s for job in jobs), default=0.0)
    expected = len(nodes) * span_s / (failures.mean_up_s + failures.mean_down_s)
    if expected > MOST_FAILURES:
        raise UsageError(
            f"between the first and the last submission, {span_s:.3g} s, {len(nodes)} nodes would "
            f"fail {expected:.2g} times; submissions are in seconds: give such, or a longer --mtbf"
        )


def check(jobs: Sequence[SubmittedJob], nodes: Sequence[Node]) -> None:
    """Refuse jobs that could never run.

    Raises:
        UsageError: see :func:`simulate`.
    """
    slots = total(nodes)
    for job in jobs:
        if job.requested_slots > slots:
            raise UsageError(
                f"job {job.name} asks for {job.requested_slots} slots, and the cluster has {slots} "
                f"on {len(nodes)} nodes; give it more nodes"
            )
    twice = [name for name, count in Counter(job.name for job in jobs).items() if count > 1]
    if twice:
        raise UsageError(f"two jobs are named {twice[0]}; names must differ")


class _Run:
    """One run: what :func:`simulate` holds between two moves."""

    def __init__(
        self,
        jobs: Sequence[SubmittedJob],
        nodes: Sequence[Node],
        policy: Policy,
        rules: Rules,
        begin_s: float = 0.0,
    ) -> None:
        """Prepare a run at virtual time 0, which is ``begin_s`` in the clock of the trace."""
        self.policy, self.rules, self.nodes, self.begin_s = policy, rules, nodes, begin_s
        self.kinds = {node.name: node.kind for node in nodes}
        whole = rules.whole_seconds and rules.interval_s > 0
        self.jobs = [Progress(job, whole) for job in jobs]
        submitted = sorted(self.jobs, key=lambda job: job.submission.arrival_s)
        self.coming = submitted[::-1]  # the next one last
        self.active: list[Progress] = []  # arrived and not ended, as submitted
        self.order = {id(job): at for at, job in enumerate(submitted)}
        self.down: set[str] = set()
        failures = rules.failures
        self.trouble: Iterator[tuple[float, str, bool]] = (
            failures.events(nodes) if failures else iter(())
        )
        self.next_trouble = next(self.trouble, None)
        self.notes: PolicyState = {}
        self.reasons: Mapping[str, str] = {}
        self.now_s = 0.0
        self.ticks = 0
        self.due = False
        self.decisions = 0
        self.idle = 0  # decisions in a row after which nobody had slots

    @property
    def unfinished(self) -> int:
        """Jobs that have not ended."""
        return len(self.active) + len(self.coming)

    def move(self) -> None:
        """Let time pass until a decision is due, or a node fails or comes back."""
        if self.rules.interference:
            self._let_interfere()
        then_s = self._next_decision_s()
        self.due = True
        trouble_s = self.next_trouble[0] if self.next_trouble is not None else math.inf
        if trouble_s < then_s:
            then_s, self.due = trouble_s, self.rules.interval_s == 0
        if then_s == math.inf:
            self._refuse_to_wait()
        for job in self.active:
            job.advance(self.now_s, then_s - self.now_s)
        self.now_s = then_s
        if interval_s := self.rules.interval_s:
            # A node may fail long after the last decision, on an idle cluster.
            self.ticks = round(then_s / interval_s) if self.due else int(then_s // interval_s)
        while self.next_trouble is not None and self.next_trouble[0] <= then_s:
            self._fail_or_repair(*self.next_trouble[1:])
            self.next_trouble = next(self.trouble, None)
        self._sort_out()

    def decide(self) -> None:
        """Ask the policy, and give the jobs the slots and the batches that it says."""
        if not self.active:
            return
        views = [job.view() for job in self.active]
        up = [node for node in self.nodes if node.name not in self.down]
        present = {job.submission.name: job.placement for job in self.active if job.placement}
        decision = self._decision(ClusterState(views, up, present, self.now_s, self.notes))
        self.decisions += 1
        for job in self.active:
            self._place(job, decision)
        if self.rules.drop:
            self._reject()
        self.idle = 0 if decision.placements or self.coming or self.down else self.idle + 1
        if self.idle > PATIENCE:
            self._refuse_to_wait()

    def _decision(self, cluster: ClusterState) -> Allocation:
        decision = self.policy(cluster)
        wrong = violation(decision, cluster)
        assert wrong is None, f"the policy's decision at {self.now_s} s is wrong: {wrong}"
        self.notes, self.reasons = decision.state, decision.reasons
        return decision

    def _place(self, job: Progress, decision: Allocation) -> None:
        """Give it the batch and the slots that it has from now on."""
        name = job.submission.name
        job.train_with(decision.batches.get(name, job.batch), self.now_s)
        placement = decision.placements.get(name, ())
        if placement != job.placement:
            job.place(placement, self.now_s, decision.reasons[name], self.rules.resize)
            job.speed = self._speed(job)

    def _reject(self) -> None:
        """Drop those that have just been seen by a decision, and were given nothing."""
        for job in self.active:
            if not job.history:
                job.reject(self.now_s)
        self.active = [job for job in self.active if not job.dropped]

    def _next_decision_s(self) -> float:
        arrival_s = self.coming[-1].submission.arrival_s if self.coming else math.inf
        interval_s = self.rules.interval_s
        if interval_s:
            ticks = self.ticks + 1
            if not self.active:  # nothing to decide before somebody arrives
                ticks = max(ticks, math.ceil(arrival_s / interval_s))
            return ticks * interval_s
        least_s = same_s(self.now_s)
        ends_s = (self.now_s + max(least_s, job.ends_after_s()) for job in self.active)
        return min(arrival_s, min(ends_s, default=math.inf))

    def _sort_out(self) -> None:
        """Take those that have ended from the active ones, and add those that have arrived."""
        if any(job.end_s is not None for job in self.active):
            self.active = [job for job in self.active if job.end_s is None]
        came = False
        while self.coming and self.coming[-1].submission.arrival_s <= self.now_s:
            self.active.append(self.coming.pop())
            came = True
        if came:
            self.active.sort(key=lambda job: self.order[id(job)])

    def _fail_or_repair(self, node: str, up: bool) -> None:
        if up:
            self.down.discard(node)
            return
        self.down.add(node)
        for job in self.active:
            if job.end_s is None and any(at == node for at, _ in job.placement):
                job.fail(self.now_s, self.rules.resize)

    def _let_interfere(self) -> None:
        spread = [job for job in self.active if len(job.placement) > 1]
        used = Counter(node for job in spread for node, _ in job.placement)
        for job in self.active:
            beside = len(job.placement) > 1 and any(used[node] > 1 for node, _ in job.placement)
            job.slow_down(self.rules.interference if beside else 0.0)

    def _speed(self, job: Progress) -> float:
        speeds = self.rules.speeds
        return min((speeds.get(self.kinds[node], 1.0) for node, _ in job.placement), default=1.0)

    def _refuse_to_wait(self) -> None:
        names = [job.submission.name for job in self.active]
        why = f" ({names[0]} {self.reasons[names[0]]})" if names[0] in self.reasons else ""
        waiting = counted(len(names), "job")
        raise UsageError(
            f"at {self.begin_s + self.now_s:g} s the policy lets {waiting} wait for ever, with all "
            f"{total(self.nodes)} slots free{why}; use another policy, or more nodes"
        )


class _QueueRun(_Run):
    """The same where nobody loses slots: only jobs that start or end are looked at.

    The end of a job that starts is known, and the policy is asked about those that wait, on the
    slots that are free. The time for an event grows with the nodes that have free slots and, unless
    jobs start in order, with those that wait; not with those that run.
    """

    def __init__(
        self,
        jobs: Sequence[SubmittedJob],
        nodes: Sequence[Node],
        policy: QueuePolicy,
        rules: Rules,
        begin_s: float = 0.0,
    ) -> None:
        super().__init__(jobs, nodes, policy, rules, begin_s)
        self.in_order = policy.in_order
        self.free = {node.name: node for node in nodes}  # each with the slots that are free
        self.running: list[tuple[float, int, float, Progress]] = []  # end, tie, start: a heap
        self.changed = True  # so that somebody may start

    @property
    def unfinished(self) -> int:
        """Jobs that have not ended; ``active`` are those that wait."""
        return len(self.active) + len(self.running) + len(self.coming)

    def move(self) -> None:
        """Let time pass until a job arrives or ends."""
        end_s = self.running[0][0] if self.running else math.inf
        then_s = min(end_s, self.coming[-1].submission.arrival_s if self.coming else math.inf)
        if then_s == math.inf:
            self._refuse_to_wait()
        self.now_s, self.due = then_s, True
        while self.running and self.running[0][0] <= then_s + same_s(then_s):
            _, _, start_s, job = heapq.heappop(self.running)
            job.advance(start_s, then_s - start_s)
            assert job.end_s is not None, f"{job.submission.name} did not end when it had to"
            self._take(job, -1)
            self.changed = True
        while self.coming and self.coming[-1].submission.arrival_s <= then_s:
            self.changed |= not (self.in_order and self.active)
            self.active.append(self.coming.pop())

    def decide(self) -> None:
        """Start those of which the policy says so."""
        if self.active or self.running:
            self.decisions += 1
        if self.changed:
            self._start()
        self.changed = False
        if self.rules.drop:
            for job in self.active:
                job.reject(self.now_s)
            self.active = []

    def _start(self) -> None:
        """In order, ask about the first one, and about twice as many as long as all start."""
        count = 1 if self.in_order else len(self.active)
        while self.active:
            nodes = [node for node in self.free.values() if node.slots]
            if not nodes:
                return
            asked = self.active[:count]
            views = [job.view() for job in asked]
            decision = self._decision(ClusterState(views, nodes, {}, self.now_s, self.notes))
            started = [job for job in asked if job.submission.name in decision.placements]
            for job in started:
                self._place(job, decision)
                self._take(job, 1)
                end_s = self.now_s + max(same_s(self.now_s), job.ends_after_s())
                tie = self.order[id(job)]
                heapq.heappush(self.running, (end_s, tie, self.now_s, job))
            waiting = [job for job in asked if not job.placement]
            self.active[:count] = waiting
            if waiting:
                return
            count *= 2

    def _take(self, job: Progress, sign: int) -> None:
        """Its slots from those that are free, or with -1 back to them."""
        for name, count in job.placement:
            node = self.free[name]
            self.free[name] = replace(node, slots=node.slots - sign * count)
