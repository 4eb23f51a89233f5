"""Run jobs on a simulated cluster under virtual time; a policy decides which slots each job has.

:func:`simulate` does it, by :class:`Rules`. Time moves by these rules, which are those of Pollux'
simulator where a fixed interval is given:

1. The policy is asked at each multiple of the interval. Without an interval it is asked whenever a
   job arrives or ends, and whenever a node fails or comes back. It sees the jobs that have arrived
   by then and have not ended; while there is none, it is not asked. With ``live`` it is asked when
   the leader of a live cluster would ask it (:mod:`edl.cluster.allocate`).
2. Between two decisions each job advances alone, with the slots that it has. A job that ends leaves
   its slots idle until the next decision.
3. A job whose slots change does not train for the time that the change costs
   (:mod:`edl.simulator.costs`). A change of its batch costs nothing.
4. A job on several nodes that shares one of them with another such job loses the fraction
   ``interference`` of its speed.
5. A node that fails takes the slots of all jobs on it at once. These jobs keep the work done, have
   no slots until the next decision, and then pay for a restart.
6. With ``drop``, a job is rejected if the first decision after its arrival gives it no slots.
7. Time begins shortly before the first submission (:func:`_begin_s`) and never goes back. Nodes can
   fail from the beginning on.

Only the failures are random, and they are drawn by seed: the same arguments give the same result.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace

from edl.cluster.placing import JobSize, place_stably
from edl.cluster.state import (
    Allocation,
    ClusterJob,
    ClusterPolicy,
    ClusterState,
    Node,
    Placement,
    PolicyState,
    QueuePolicy,
    slot_count,
    total,
    violation,
)
from edl.errors import UsageError
from edl.policy.step_time import StepTimeSample
from edl.simulator.costs import Failures, ResizeCost, SlotChange, change_of
from edl.simulator.results import AllocationChange, BatchChange, JobResult, Result, with_isolated
from edl.simulator.workload import SubmittedJob
from edl.text import counted


def same_s(at_s: float) -> float:
    """Return the tolerance in seconds within which two times near `at_s` count as equal."""
    # Times are sums of floats, so equal times may differ a little.
    return max(1e-6, 4 * math.ulp(at_s))


@dataclass(frozen=True)
class _Newcomers:
    """New workers of a job that trains."""

    after_s: float  # the seconds until they are there
    slots: tuple[int, ...]  # the number of slots on each node that train from then on
    pause_s: float  # the seconds that the job stops then


class Progress:
    """The course of one job under virtual time: its progress, slots, batch and history."""

    def __init__(
        self, submission: SubmittedJob, whole_seconds: bool, keeps_start: bool = False
    ) -> None:
        self.submission = submission
        self.batch = submission.batch
        self.placement: Placement = ()
        self.dropped = False  # rejected
        self.end_s: float | None = None
        self.attained_slot_s = 0.0
        self.epoch = 0
        self.progress = 0.0
        self.history: list[AllocationChange] = []
        self.batches: list[BatchChange] = []
        self.speed = 1.0  # of the slowest of its nodes
        self.slowdown = 0.0  # by interference, as a fraction of its rate
        self._whole = whole_seconds
        self._keeps_start = keeps_start
        self._pause_s = 0.0
        self._steps: dict[tuple[int, int, float], StepTimeSample] = {}
        self._noise_scale: float | None = None
        self._slots: tuple[int, ...] = ()  # that train
        self._coming: list[_Newcomers] = []  # in the order in which they will be there
        self._size = 0
        self._rate: float | None = None
        self._seen: ClusterJob | None = None

    def view(self) -> ClusterJob:
        if self._seen is None:
            one = self.submission
            self._seen = ClusterJob(
                name=one.name,
                arrival_s=one.arrival_s,
                requested_slots=one.requested_slots,
                min_slots=one.min_slots,
                max_slots=one.max_slots,
                batch=self.batch,
                batches=one.batches,
                model=one.work.model(self.epoch, self.progress),
                attained_slot_s=self.attained_slot_s,
                preemptible=one.preemptible and not (self._keeps_start and self.starting_s),
                local_batches=one.local_batches,
                steps=tuple(self._steps.values()),
                noise_scale=self._noise_scale,
                weight=one.weight,
            )
        return self._seen

    @property
    def starting_s(self) -> float:
        """The seconds until a job that starts, or starts again, begins to train; 0: it does not."""
        starts = (SlotChange.START, SlotChange.RESTART)
        return self._pause_s if self.history and self.history[-1].change in starts else 0.0

    def place(self, placement: Placement, now_s: float, reason: str, cost: ResizeCost) -> None:
        change = change_of(self.placement, placement, bool(self.history))
        self._set(AllocationChange(now_s, change, placement, reason), cost)

    def train_with(self, batch: int, now_s: float) -> None:
        """Set the global batch of the job from its next step on, without a pause."""
        if batch != self.batch:
            self.batch, self._rate, self._seen = batch, None, None
            self.batches.append(BatchChange(now_s, batch))

    def reject(self, now_s: float) -> None:
        self.dropped, self.end_s = True, now_s

    def slow_down(self, part: float) -> None:
        """Set by what fraction of its full speed the job is slower than that, 0 to below 1."""
        if part != self.slowdown:
            self.slowdown, self._rate = part, None

    def fail(self, now_s: float, cost: ResizeCost) -> None:
        self._set(AllocationChange(now_s, SlotChange.FAILURE, ()), cost)

    def advance(self, now_s: float, seconds: float) -> None:
        if not self._size or self.end_s is not None or seconds <= 0:
            return
        self._seen = None
        while self._coming and self._coming[0].after_s <= seconds and self.end_s is None:
            part_s = self._coming[0].after_s
            self._train(now_s, part_s)
            self._pass(part_s)
            now_s, seconds = now_s + part_s, seconds - part_s
        if self.end_s is None:
            self._train(now_s, seconds)
            self._pass(seconds)

    def _pass(self, seconds: float) -> None:
        """Let time pass for the newcomers; those that are there train from now on."""
        self._coming = [replace(one, after_s=one.after_s - seconds) for one in self._coming]
        while self._coming and self._coming[0].after_s <= 0:
            there = self._coming.pop(0)
            self._slots, self._rate = there.slots, None
            self._pause_s = max(self._pause_s, there.pause_s)

    def _train(self, now_s: float, seconds: float) -> None:
        """Train the job for a time with the slots that train now, after the rest of a pause."""
        pause_s = min(self._pause_s, seconds)
        self._pause_s -= pause_s
        self.attained_slot_s += pause_s * self._size
        now_s, seconds = now_s + pause_s, seconds - pause_s
        while seconds > 0 and self.end_s is None:
            rate, goal = self._rate_now(), self.submission.work.end_of(self.epoch)
            took_s = (goal - self.progress) / rate
            if took_s > seconds + same_s(now_s):
                self.progress += rate * seconds
                self.attained_slot_s += seconds * self._size
                return
            took_s = min(float(round(took_s)) if self._whole else took_s, seconds)
            self.progress, self.epoch, self._rate = goal, self.epoch + 1, None
            self.attained_slot_s += took_s * self._size
            now_s, seconds = now_s + took_s, seconds - took_s
            if self.epoch == self.submission.work.epochs:
                self.end_s = now_s

    def ends_after_s(self) -> float:
        """Return the seconds until the job ends if nothing changes, its pause included."""
        if not self._size:
            return float("inf")
        if self._coming:
            twin = copy(self)
            twin._steps, twin._whole = {}, False
            twin.advance(0.0, float("inf"))
            assert twin.end_s is not None
            return twin.end_s
        work, total_s, progress = self.submission.work, self._pause_s, self.progress
        for epoch in range(self.epoch, work.epochs):
            goal = work.end_of(epoch)
            total_s += (goal - progress) / self._rate_in(epoch)
            progress = goal
        return total_s

    def result(self) -> JobResult:
        assert self.end_s is not None
        one = self.submission
        return JobResult(
            name=one.name,
            kind=one.kind,
            arrival_s=one.arrival_s,
            start_s=self.history[0].at_s if self.history else self.end_s,
            end_s=self.end_s,
            slot_s=self.attained_slot_s,
            history=tuple(self.history),
            batches=tuple(self.batches),
            dropped=self.dropped,
        )

    def _set(self, moment: AllocationChange, cost: ResizeCost) -> None:
        slots = tuple(count for _, count in moment.placement)
        newcomers = self._newcomers(moment, slots, cost)
        if newcomers is not None:
            self._coming = [*self._coming, newcomers]
        else:
            pending_s = self._pause_s if self.placement and moment.placement else 0.0
            self._pause_s = max(pending_s, cost.of(moment.change))
            self._slots, self._rate, self._coming = slots, None, []
        self.placement = moment.placement
        self._size = slot_count(moment.placement)
        self.history.append(moment)

    def _newcomers(
        self, moment: AllocationChange, slots: tuple[int, ...], cost: ResizeCost
    ) -> _Newcomers | None:
        """Return the newcomers that a change of slots lets come; None: it takes effect at once."""
        change = moment.change
        if change is SlotChange.LEAVE and self._coming and sum(slots) > sum(self._slots):
            last = self._coming[-1]
            self._coming = []
            return replace(last, slots=slots)
        grows = change in (SlotChange.JOIN, SlotChange.MIGRATE)
        if not grows or not cost.prepare or self.starting_s:
            return None
        return _Newcomers(cost.prepare, slots, cost.of(change))

    def _rate_now(self) -> float:
        if self._rate is None:  # after a change, or in a new epoch
            self._rate = self._rate_in(self.epoch)
            work = self.submission.work
            step, self._noise_scale = work.observed(self._slots, self.batch, self.epoch)
            # only the first step time of each combination
            self._steps.setdefault((step.hosts, step.workers, step.batch), step)
        return self._rate

    def _rate_in(self, epoch: int) -> float:
        rate = self.submission.work.rate(self._slots, self.batch, epoch)
        return rate * (1.0 - self.slowdown) * self.speed


DAY_S = 86_400.0
MAX_FAILURES = 1e7  # before the last submission; to draw so many takes some ten seconds
PATIENCE = 1000  # decisions in a row that start nothing, while nothing else can happen
OnTime = Callable[[float, int], None]


@dataclass(frozen=True)
class Rules:
    """The rules by which a simulation moves time."""

    interval_s: float = 60.0  # between two decisions; 0: on every event (rule 1)
    resize: ResizeCost = field(default_factory=ResizeCost)
    interference: float = 0.0  # a fraction of the speed (rule 4), 0 to below 1
    # the time to the end of an epoch is rounded, as in Pollux' simulator; not if `interval_s` is 0
    whole_seconds: bool = False
    # by kind of node; 1 for others. A job is as fast as its slowest node.
    speeds: Mapping[str, float] = field(default_factory=dict)
    failures: Failures | None = None  # None: nodes do not fail
    drop: bool = False  # a job is rejected rather than waits (rule 6)
    # as in a live cluster: decisions on every event, and at most `interval_s` after the last one
    # (0: on events only); a job that starts keeps its slots until it trains, and then the policy is
    # asked again; jobs that run keep their slots as far as they can (`stable_placing`)
    live: bool = False

    @property
    def on_events(self) -> bool:
        return self.live or self.interval_s == 0

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
    policy: ClusterPolicy,
    rules: Rules,
    on_time: OnTime | None = None,
) -> Result:
    check_jobs(jobs, nodes)
    begin_s = _begin_s(jobs, rules.interval_s)
    jobs = [replace(job, arrival_s=job.arrival_s - begin_s) for job in jobs]
    _check_span(jobs, nodes, rules.failures)
    timed = rules.interval_s or rules.live
    still = not timed and not rules.interference and rules.failures is None
    if still and isinstance(policy, QueuePolicy):
        run: _Simulation = _QueueRun(jobs, nodes, policy, rules, begin_s)
    else:
        run = _Simulation(jobs, nodes, policy, rules, begin_s)
    first_s = min((job.arrival_s for job in jobs), default=0.0)
    while run.unfinished:
        before_s = run.now_s
        run.move()
        assert run.now_s >= before_s, f"virtual time went back from {before_s} to {run.now_s} s"
        if run.due:
            run.decide()
            if on_time is not None:
                on_time(max(0.0, run.now_s - first_s), len(jobs) - run.unfinished)
    results = with_isolated(jobs, [job.result() for job in run.jobs], nodes)
    return Result(tuple(job.later(begin_s) for job in results), run.decisions)


def _begin_s(jobs: Sequence[SubmittedJob], interval_s: float) -> float:
    # It may count the seconds since 1970: a float of that size cannot tell apart times that differ
    # by less than a microsecond.
    first_s = min((job.arrival_s for job in jobs), default=0.0)
    unit_s = interval_s or DAY_S
    return max(0.0, first_s // unit_s - 1) * unit_s


def _check_span(
    jobs: Sequence[SubmittedJob], nodes: Sequence[Node], failures: Failures | None
) -> None:
    """Raise an error if nodes would fail more often during a trace than can be computed."""
    if failures is None:
        return
    span_s = max((job.arrival_s for job in jobs), default=0.0)
    expected = len(nodes) * span_s / (failures.mean_up_s + failures.mean_down_s)
    if expected > MAX_FAILURES:
        raise UsageError(
            f"between the first and the last submission, {span_s:.3g} s, {len(nodes)} nodes would "
            f"fail {expected:.2g} times; submissions are in seconds: give such, or a longer --mtbf"
        )


def check_jobs(jobs: Sequence[SubmittedJob], nodes: Sequence[Node]) -> None:
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


def _placed_stably(decision: Allocation, cluster: ClusterState) -> Allocation:
    """Return a decision with nodes as a live cluster chooses them: jobs keep what they have."""
    nodes = {node.name: node.slots for node in cluster.nodes}
    jobs = [
        JobSize(
            name=job.name,
            size=slot_count(suggested),
            present=dict(cluster.present.get(job.name, ())),
            suggested=suggested,
            limits=nodes,
            fit=lambda slots: slots,
        )
        for job in cluster.jobs
        if (suggested := decision.placements.get(job.name))
    ]
    placed = place_stably(jobs, nodes)
    return replace(decision, placements={name: tuple(at.items()) for name, at in placed.items()})


class _Simulation:
    """The state of one simulation: the nodes, the jobs, and the virtual time."""

    def __init__(
        self,
        jobs: Sequence[SubmittedJob],
        nodes: Sequence[Node],
        policy: ClusterPolicy,
        rules: Rules,
        begin_s: float = 0.0,
    ) -> None:
        self.policy, self.rules, self.nodes, self.begin_s = policy, rules, nodes, begin_s
        self.kinds = {node.name: node.kind for node in nodes}
        whole = rules.whole_seconds and rules.interval_s > 0
        self.jobs = [Progress(job, whole, rules.live) for job in jobs]
        submitted = sorted(self.jobs, key=lambda job: job.submission.arrival_s)
        self.coming = submitted[::-1]  # the next one to arrive is the last
        self.active: list[Progress] = []  # arrived and not ended, in order of submission
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
        self.decided_s = 0.0
        self.due = False
        self.decisions = 0
        self.idle = 0  # decisions in a row after which no job had slots

    @property
    def unfinished(self) -> int:
        return len(self.active) + len(self.coming)

    def move(self) -> None:
        if self.rules.interference:
            self._let_interfere()
        then_s = self._next_decision_s()
        self.due = True
        trouble_s = self.next_trouble[0] if self.next_trouble is not None else math.inf
        if trouble_s < then_s:
            then_s, self.due = trouble_s, self.rules.on_events
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
        if not self.active:
            return
        self.decided_s = self.now_s
        views = [job.view() for job in self.active]
        up = [node for node in self.nodes if node.name not in self.down]
        present = {job.submission.name: job.placement for job in self.active if job.placement}
        decision = self._decision(ClusterState(views, up, present, self.now_s, self.notes))
        self.decisions += 1
        for job in self.active:
            self._place(job, decision)
        if self.rules.drop:
            for job in self.active:
                if not job.history:
                    job.reject(self.now_s)
            self.active = [job for job in self.active if not job.dropped]
        self.idle = 0 if decision.placements or self.coming or self.down else self.idle + 1
        if self.idle > PATIENCE:
            self._refuse_to_wait()

    def _decision(self, cluster: ClusterState) -> Allocation:
        decision = self.policy(cluster)
        wrong = violation(decision, cluster)
        assert wrong is None, f"the policy's decision at {self.now_s} s is wrong: {wrong}"
        self.notes, self.reasons = decision.state, decision.reasons
        return _placed_stably(decision, cluster) if self.rules.live else decision

    def _place(self, job: Progress, decision: Allocation) -> None:
        name = job.submission.name
        job.train_with(decision.batches.get(name, job.batch), self.now_s)
        placement = decision.placements.get(name, ())
        if placement != job.placement:
            job.place(placement, self.now_s, decision.reasons[name], self.rules.resize)
            speeds = [self.rules.speeds.get(self.kinds[node], 1.0) for node, _ in placement]
            job.speed = min(speeds, default=1.0)

    def _next_decision_s(self) -> float:
        arrival_s = self.coming[-1].submission.arrival_s if self.coming else math.inf
        interval_s = self.rules.interval_s
        if interval_s and not self.rules.live:
            ticks = self.ticks + 1
            if not self.active:  # nothing to decide before a job arrives
                ticks = max(ticks, math.ceil(arrival_s / interval_s))
            return ticks * interval_s
        least_s = same_s(self.now_s)
        waits_s = [job.ends_after_s() for job in self.active]
        if self.rules.live and self.active:
            waits_s += [job.starting_s for job in self.active if job.starting_s]
            if interval_s:
                waits_s.append(self.decided_s + interval_s - self.now_s)
        return min(arrival_s, self.now_s + max(least_s, min(waits_s, default=math.inf)))

    def _sort_out(self) -> None:
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
        """Slow down jobs on several nodes that share a node with another such job."""
        spread = [job for job in self.active if len(job.placement) > 1]
        used = Counter(node for job in spread for node, _ in job.placement)
        for job in self.active:
            beside = len(job.placement) > 1 and any(used[node] > 1 for node, _ in job.placement)
            job.slow_down(self.rules.interference if beside else 0.0)

    def _refuse_to_wait(self) -> None:
        names = [job.submission.name for job in self.active]
        why = f" ({names[0]} {self.reasons[names[0]]})" if names[0] in self.reasons else ""
        waiting = counted(len(names), "job")
        raise UsageError(
            f"at {self.begin_s + self.now_s:g} s the policy lets {waiting} wait for ever, with all "
            f"{total(self.nodes)} slots free{why}; use another policy, or more nodes"
        )


class _QueueRun(_Simulation):
    """The state of a simulation whose policy only starts jobs: a faster `_Simulation`."""

    # The end of a job is known when it starts, for such a policy (`QueuePolicy`) never takes slots
    # away. It is asked about the waiting jobs and the free slots alone.

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
        self.changed = True  # whether something has changed by which a job may start

    @property
    def unfinished(self) -> int:
        return len(self.active) + len(self.running) + len(self.coming)

    def move(self) -> None:
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
        """Start the waiting jobs that the policy gives slots; with `drop`, reject all others."""
        if self.active or self.running:
            self.decisions += 1
        if self.changed:  # else nothing has come or gone that could let a job start
            self._start()
        self.changed = False
        if self.rules.drop:
            for job in self.active:
                job.reject(self.now_s)
            self.active = []

    def _start(self) -> None:
        """Start waiting jobs: ask the policy about the first 1, then the next 2, 4, and so on."""
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
        for name, count in job.placement:
            node = self.free[name]
            self.free[name] = replace(node, slots=node.slots - sign * count)
