"""Choose slots and batches for the least mean job completion time, without starving any job.

This is edl's own policy, :class:`EdlPolicy`. It allocates slots by goodput (progress in a second)
and by the remaining work, and counts the cost of a change of slots (a resize). k_min is the fewest
slots that a job may have, K the number of slots of all nodes.

1. **Goodput.** On k slots a job makes the progress R(k) in a second, with the best batch of its
   range (:mod:`edl.cluster.policies.edl`). The speed of a job is s(k) = k_min * R(k) /
   R(k_min). Its size x is the slot-seconds left on k_min slots.
2. **Price.** With w_j the weight of job j and y_j = x_j / w_j, a slot-second of work on it is worth

       v_j = W_j^p        W_j = sum over all jobs i, including j, of  w_i y_i / (y_i + y_j)

   W_j is the total weight that can be expected to end after j, j itself counted by half: y_i / (y_i
   + y_j) would be the chance that j ends first if lengths were exponentially distributed around x,
   and is 1/2 among equals. p says how jobs scale as a rule, speed = k^p. The slots are those that
   make sum v_j s_j(k_j) largest, exactly, by the program of :mod:`edl.cluster.policies.jsa`.

   If all lengths were certain, all jobs scaled as k^p and no other job came, the least sum of
   completion times would be sum v_j x_j / K^p, with v_j nearly proportional to the p-th power of
   j's rank, 1 for the largest (heSRPT: Berg, Vesilo and Harchol-Balter, Performance Evaluation
   2020). A rank exaggerates small differences of length. W_j, which replaces it here, is edl's own.

   A rigid job has k_min slots or none. For such jobs alone p is 1, the shortest first: with r the
   part of all remaining work that is of rigid jobs, p = r + (1 - r) ``exponent``. In W_j the x of
   a rigid job counts k_min times: of two jobs of the same x the narrower comes first, as it finds
   its slots sooner, and the wider one leaves more of them idle if it does not fit.
3. **Resizes.** If a job has slots, the value of any other number is reduced by the fraction
   resize_s / min(horizon_s, what would be left then): a change has to repay within that time. To
   take all of its slots costs as much, or what its last start has taken and what it has trained
   without saving, if that is more. A start counts in the x of a job without slots.
4. **Errors.** If the speeds have the relative error e, by what the job's model says of its own
   error, any other number than the present one has to be better by sqrt(2) e, too: by the standard
   error of the difference of two speeds. Else, of many sizes, one would look better by chance.
5. **Starvation.** A job that has waited for its fair wait is *due*, and has a turn of
   ``quantum_s``, in which it has at least k_min slots before all jobs that are not due
   (:mod:`edl.cluster.policies.edl`). Due jobs are ordered by deadline: the time since when they
   are due, plus ``rest_weight`` times what is left of them, of which at most ``rest_most_s``
   counts. So short jobs pass long ones, but none that become due later than the product of the two
   after them. While a due job waits, no job starts that may not be preempted, unless its deadline
   is earlier. The policy sees that a job is due at the next decision.
6. **Speeds of nodes.** Where kinds of nodes differ in speed (``speeds``), each job is placed within
   the nodes of one speed (:mod:`edl.cluster.placing`), as it would be as slow as the
   slowest. The fastest nodes are given out first, to the jobs to which they are worth most; a job
   on slower ones gains only by what it is faster, less the cost of the change.

If a job's model estimates a wrong remaining time, the order of the jobs is wrong, too.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from edl.cluster.placing import NodePool, compact, node_pools, parse_speeds, reserve, slowest_pool
from edl.cluster.policies.jsa import Values, best_sizes
from edl.cluster.state import Allocation, ClusterJob, ClusterState, slot_count
from edl.spec import setting
from edl.text import counted, duration_in_words

# ------------------------------------------------------------
# Decide which jobs of policy `edl` are due: they have waited long enough, and have a turn.
#
# `next_wait` moves the account of one job from one decision to the next:
#
# 1. A job that has not had a turn is *due* once it has been there for its fair wait, with slots or
#    without (`fair_wait_s`).
# 2. A due job has a turn: it comes before all jobs that are not due, until it has had slots for a
#    quantum of time. If what is left of it then takes no longer than another quantum, its turn
#    lasts to its end.
# 3. After a turn, it is due again once it has been without slots for its fair wait.
#
# A short job ends within its turn. A long one has the slots that it would have anyway, gives them
# to shorter jobs when these come in a burst, and never waits for more than its fair wait in
# between, unless more jobs are due than fit. `first_in_turn` says who comes first then.


LEAST_S = 1e-6  # a shorter rest of a wait or a turn is none: times are sums of floats


class JobWait(NamedTuple):
    """The account of one job: its wait until it is due, or its turn."""

    left_s: float  # the seconds that are left of its fair wait; if it is due, of its turn
    due_s: float | None = None  # on the clock of the decisions; None: it is not due
    served: bool = False  # whether it has had a turn


class JobDeadline(NamedTuple):
    name: str
    least: int  # the fewest slots that it may have
    deadline_s: float  # the time by which due jobs are ordered


def fair_wait_s(
    alone_s: float, least: int, slots: int, patience: float, wide_patience: float
) -> float:
    part = (least - 1) / max(1, slots - 1)
    return alone_s * (patience + part * (wide_patience - patience))


def next_wait(
    known: JobWait,
    span_s: float,
    runs: bool,
    now_s: float,
    wait_s: float,
    quantum_s: float,
    rest_s: float,
) -> JobWait:
    # A turn counts the time with slots, the wait after one the time without.
    counts = runs if known.due_s is not None else not (runs and known.served)
    left_s = known.left_s - (span_s if counts else 0.0)
    if left_s > LEAST_S:
        return known._replace(left_s=left_s)
    if known.due_s is not None and rest_s <= quantum_s:
        return known._replace(left_s=0.0)
    if known.due_s is not None:
        return JobWait(wait_s, None, True)
    return JobWait(quantum_s, now_s + min(left_s, 0.0), known.served)


def first_in_turn(due: Sequence[JobDeadline], slots: int) -> tuple[set[str], str]:
    """Return the due jobs that get their fewest slots, and the first that does not fit, or ""."""
    chosen: set[str] = set()
    for one in sorted(due, key=lambda one: one.deadline_s):
        slots -= one.least
        if slots < 0:
            return chosen, one.name
        chosen.add(one.name)
    return chosen, ""


def read_waits(state: Mapping[str, Sequence[float | None]]) -> dict[str, JobWait]:
    return {
        name: JobWait(float(left_s or 0.0), due_s, bool(served))
        for name, (left_s, due_s, served) in state.items()
    }


# ------------------------------------------------------------
# Take noise out of predicted step times, as far as their known error says that it is noise.
#
# A model whose answers are measurements errs in each of them, and anew at each decision. `averaged`
# takes the mean over decisions, and `smoothed` the noise out of the means.


Vector = npt.NDArray[np.float64]
Means = Mapping[str, Sequence[float]]

"""By what was measured: the mean of the logarithms of its times, and of how many."""

MAX_AVERAGED = 32  # then the oldest ones lose weight, as the true times may change


def averaged(
    step_s: Sequence[float], of: Sequence[Hashable], before: Means
) -> tuple[Vector, float, dict[str, list[float]]]:
    found: dict[str, list[float]] = {}
    for seconds, what in zip(step_s, of, strict=True):
        mean, count = before.get(str(what), (0.0, 0.0))
        count = min(count + 1, MAX_AVERAGED)
        found[str(what)] = [mean + (math.log(seconds) - mean) / count, count]
    means, counts = np.array(list(found.values())).T
    return np.exp(means), float(np.median(counts)), found


def smoothed(
    step_s: Vector, slots: Vector, nodes: Vector, batches: Vector, deviation: float
) -> tuple[Vector, float]:
    k, b = np.log(slots), np.log(batches)
    # A single slot, and several nodes, synchronise in other ways.
    one, far = (slots == 1).astype(float), (nodes > 1).astype(float)
    columns = (np.ones(len(k)), k, k * k, b, b * b, k * b, one, far, one * b, far * b)
    terms = np.stack(columns, axis=1)
    count, rank = len(step_s), int(np.linalg.matrix_rank(terms))
    if count < 2 * rank:
        return step_s, deviation
    logs = np.log(step_s)
    fitted = terms @ np.linalg.lstsq(terms, logs, rcond=None)[0]
    rest = logs - fitted
    variance = float(rest @ rest) / (count - rank)
    # James-Stein: towards the function by the part of the noise in the variance around it.
    kept = 1 - min(deviation**2, variance) / variance if variance else 0.0
    return np.exp(fitted + kept * rest), deviation * math.sqrt(kept + (1 - kept) * rank / count)


# ------------------------------------------------------------
# Compute the speed, the remaining time and the best batch of a job by its number of slots.
#
# `curve` does it, for policy `edl`. On k slots a job trains with the batch b of its range that
# makes most progress, R(k) = max b * efficiency(b) / step_s(k, b), with its present efficiency
# (Pollux, OSDI 2021, section 3). Batches are the smallest one, doubled up to the largest. All
# numbers of slots up to a node are tried, beyond that only whole nodes, so that jobs seldom lie on
# more nodes than they need. If the job's model says that its step times have errors of their own,
# they are averaged over decisions and smoothed first (`smoothing`).


@dataclass(frozen=True)
class SlotValues:
    """The speed, the remaining time and the batch of one job, by its number of slots from 0 on."""

    job: ClusterJob  # its limits, its present slots and its measurements
    had: int  # the slots that the job has now, if it may have as many again; else 0
    least: int  # the fewest slots that it can have; 0 if it cannot have any
    # by the number of slots k, the speed s(k), which is 0 for k = 0 and k_min on k_min slots (the
    # fewest); minus infinity where the job cannot have so many slots, or where that number is not
    # tried
    speeds: Values
    # by the number of slots, the seconds until the job's end; infinite for 0 slots, where it cannot
    # have so many, or where that number is not tried
    left_s: Values
    batches: Sequence[int]  # by the number of slots: that which makes most progress
    deviation: float = 0.0  # of the logarithm of a speed, by its error; 0: none is known
    readings: Means = field(default_factory=dict)  # means over decisions, if any are kept

    @property
    def is_rigid(self) -> bool:
        return self.job.max_slots == self.least

    @property
    def size_slot_s(self) -> float:
        """The work left: the seconds until the end on the fewest slots, times these slots."""
        start_s = 0.0 if self.had else self.job.start_s
        return (float(self.left_s[self.least]) + start_s) * self.least

    @property
    def requested_s(self) -> float:
        # Not of a job that can have no slots; of a number that was not tried, the next smaller one.
        known = self.left_s[self.least : max(self.job.requested_slots, self.least) + 1]
        return float(known[np.isfinite(known)][-1])

    def reason(self, slots: int, price: float) -> str:
        if not self.least:
            needs = counted(self.job.min_slots, "slot")
            return f"waits: it needs {needs}, and there are fewer"
        if not slots:
            left = self._left_in_words(self.least)
            left = left and f"{left} to go on its fewest slots; "
            return f"waits: {left}price {price:.2f}"
        has = f"has {counted(slots, 'slot')}"
        if len(set(self.job.batches)) > 1:
            has += f" and a batch of {self.batches[slots]}"
        left = self._left_in_words(slots)
        return f"{has}: {left and f'{left} to go; '}price {price:.2f}"

    def _left_in_words(self, slots: int) -> str:
        if not self.job.is_measured:
            return ""
        left_s = float(self.left_s[slots])
        if not math.isfinite(left_s):
            return "an unknown time"
        return f"about {duration_in_words(left_s)}"


def curve(
    job: ClusterJob, had: int, slots_a_node: int, slots: int, before: Means | None = None
) -> SlotValues:
    most = min(job.max_slots, slots)
    smallest, largest = job.batches
    doubled = {smallest << n for n in range((largest // smallest).bit_length())}
    worth = {
        batch: batch * job.model.efficiency(batch)
        for batch in sorted({min(batch, largest) for batch in doubled} | {largest})
    }
    nodes = {*range(job.min_slots, slots_a_node + 1), *range(0, most + 1, slots_a_node)}
    counts = sorted(n for n in nodes | {job.min_slots, had, most} if job.min_slots <= n <= most)
    fewest = job.local_batches[0] if job.local_batches else 0
    tried = [(count, batch) for count in counts for batch in worth if batch >= count * fewest]
    step_s, deviation, readings = _step_times(job, tried, slots_a_node, before or {})
    rates, batches = np.full(max(most, 0) + 1, -math.inf), [job.batch] * (max(most, 0) + 1)
    for (count, batch), seconds in zip(tried, step_s, strict=True):
        rate = worth[batch] / seconds
        if rate > rates[count]:
            rates[count], batches[count] = rate, batch
    possible = np.flatnonzero(rates > -math.inf)
    left_s = np.full(len(rates), math.inf)
    rates[0] = 0.0
    if not len(possible):
        return SlotValues(job, 0, 0, rates, left_s, batches)
    least = int(possible[0])
    batch = batches[least]
    longest_s = job.model.steps_left(batch) * step_s[tried.index((least, batch))]
    left_s[possible] = longest_s * rates[least] / rates[possible]
    return SlotValues(
        job,
        had if had < len(rates) and rates[had] > 0 else 0,
        least,
        least * rates / rates[least],
        left_s,
        batches,
        deviation,
        readings,
    )


def _step_times(
    job: ClusterJob, tried: Sequence[tuple[int, int]], slots_a_node: int, before: Means
) -> tuple[Sequence[float], float, dict[str, list[float]]]:
    placements = [compact(count, slots_a_node) for count, _ in tried]
    step_s = [
        job.model.step_s(placement, batch)
        for placement, (_, batch) in zip(placements, tried, strict=True)
    ]
    error = job.model.error
    if not error.deviation or error.readings or not tried:
        return step_s, error.deviation, {}
    keys = [f"{count} {batch}" for count, batch in tried]
    means, times, readings = averaged(step_s, keys, before)
    counts, batches = np.array(tried, float).T
    nodes = np.array([len(placement) for placement in placements], float)
    deviation = error.deviation / math.sqrt(times)
    found, left = smoothed(means, counts, nodes, batches, deviation)
    return found.tolist(), left, readings


TINY = 1e-9  # slot-seconds; no job is shorter


@dataclass(frozen=True)
class EdlPolicy:
    """The cluster policy `edl`: least mean job completion time, by goodput and remaining work."""

    exponent: float = setting(0.5, "p: as a rule k slots are k^p times as fast as one", least=0)
    resize_s: float = setting(30.0, "what a change of slots costs")
    horizon_s: float = setting(600.0, "within which a change has to repay")
    patience: float = setting(0.1, "times what it takes alone, a job of one slot waits until due")
    wide_patience: float = setting(10.0, "the same of a job that needs all slots of the cluster")
    # its turn goes on if it ends itself within as many
    quantum_s: float = setting(3600.0, "for which a due job has slots before all others")
    rest_weight: float = setting(24.0, "times what is left of a due job, it may be passed")
    rest_most_s: float = setting(900.0, "of what is left of a due job, at most this counts there")
    speeds: str = setting("", "relative speeds of kinds of hosts, like h100=4,t4=1")

    def __post_init__(self) -> None:
        parse_speeds(self.speeds)

    def __call__(self, cluster: ClusterState) -> Allocation:
        readings, fixed = cluster.state.get("readings", {}), cluster.fixed
        curves = [
            curve(
                job,
                slot_count(cluster.present.get(job.name, ())),
                cluster.per_node,
                cluster.slots,
                readings.get(job.name),
            )
            for job in cluster.jobs
            if job.name not in fixed
        ]
        waits = self._waits(cluster, curves)
        widest = max((one.least for one in curves), default=0)
        pools = node_pools(cluster, parse_speeds(self.speeds), widest)
        due = self._due(curves, waits)
        first, waiting = first_in_turn(due, sum(pool.free for pool in pools))
        urgent = {one.name: one.least for one in due if one.name in first}
        candidates = self._candidates(cluster, curves, pools, urgent, held=bool(waiting))
        placements = {name: cluster.present[name] for name in fixed}
        for pool, sizes in zip(pools, self._sizes(candidates, pools), strict=True):
            placements |= pool.place(sizes, cluster)
        reasons = dict.fromkeys(fixed, "keeps its slots: it may not be preempted")
        batches = {}
        for candidate in candidates:
            one, name = candidate.curve, candidate.name
            slots = slot_count(placements.get(name, ()))
            reasons[name] = one.reason(slots, candidate.price)
            if name in first:
                due_s = cluster.now_s - (waits[name].due_s or 0.0)
                past = f"{duration_in_words(due_s)} " if one.job.is_measured else ""
                reasons[name] += f"; {past}past its fair wait"
            if slots and one.batches[slots] != one.job.batch:
                batches[name] = one.batches[slots]
        state = {
            "at_s": cluster.now_s,
            "waits": {name: list(wait) for name, wait in waits.items()},
            "readings": {one.job.name: one.readings for one in curves if one.readings},
        }
        return Allocation(placements, reasons, state, batches)

    def _candidates(
        self,
        cluster: ClusterState,
        curves: Sequence[SlotValues],
        pools: Sequence[NodePool],
        urgent: Mapping[str, int],
        held: bool,
    ) -> list[_Candidate]:
        homes = {
            one.job.name: slowest_pool(cluster.present.get(one.job.name, ()), pools)
            for one in curves
        }
        rigid = {one.job.name for one in curves if not one.job.preemptible}
        reserved, waiting = reserve(urgent, homes, pools, rigid)
        # While a due job waits, no job starts that may not be preempted.
        late = rigid - {*reserved, waiting} if held or waiting else set()
        able = [one for one in curves if one.least]
        weights = np.array([one.job.weight for one in able])
        sizes = [one.size_slot_s * (one.least if one.is_rigid else 1) for one in able]
        lengths = np.maximum(sizes, TINY) / weights
        behind = (lengths[None, :] / (lengths[None, :] + lengths[:, None])) @ weights
        # p: 1 for rigid jobs, `exponent` for others, the mean by their remaining work.
        work = sum(max(one.size_slot_s, TINY) for one in able)
        rigid_work = sum(max(one.size_slot_s, TINY) for one in able if one.is_rigid)
        part = rigid_work / work if work else 0.0
        powers = behind ** (part + (1 - part) * self.exponent)
        prices = {one.job.name: float(price) for one, price in zip(able, powers, strict=True)}
        return [
            _Candidate(
                curve=one,
                price=prices.get(one.job.name, 1.0),
                pool=homes[one.job.name],
                reserved=reserved.get(one.job.name),
                held=one.job.name in late,
            )
            for one in curves
        ]

    def _waits(self, cluster: ClusterState, curves: Sequence[SlotValues]) -> dict[str, JobWait]:
        now_s, then_s = cluster.now_s, float(cluster.state.get("at_s", cluster.now_s))
        known = read_waits(cluster.state.get("waits", {}))
        # Those whose slots may not change keep their account.
        waits = {job.name: known[job.name] for job in cluster.jobs if job.name in known}
        for one in curves:
            name = one.job.name
            if not one.least:
                continue
            wait_s = fair_wait_s(
                one.requested_s, one.least, cluster.slots, self.patience, self.wide_patience
            )
            before = waits.get(name)
            if before is None:
                before, since_s, runs = JobWait(wait_s), one.job.arrival_s, False
            else:
                since_s, runs = then_s, name in cluster.present
            span_s, rest_s = max(0.0, now_s - since_s), float(one.left_s[one.least])
            waits[name] = next_wait(before, span_s, runs, now_s, wait_s, self.quantum_s, rest_s)
        return waits

    def _due(self, curves: Sequence[SlotValues], waits: Mapping[str, JobWait]) -> list[JobDeadline]:
        found = []
        for one in curves:
            due_s = waits[one.job.name].due_s if one.least else None
            if due_s is not None:
                rest_s = min(float(one.left_s[one.least]), self.rest_most_s)
                deadline_s = due_s + self.rest_weight * rest_s
                found.append(JobDeadline(one.job.name, one.least, deadline_s))
        return sorted(found, key=lambda one: one.deadline_s)

    def _sizes(
        self, candidates: Sequence[_Candidate], pools: Sequence[NodePool]
    ) -> list[dict[str, int]]:
        found: list[dict[str, int]] = []
        left = list(candidates)
        for at, pool in enumerate(pools):
            values = [self._values(candidate, at, pools) for candidate in left]
            # The program gives each job at least one slot, so each count is one too high.
            chosen = best_sizes(values, pool.free + len(left))
            assert chosen is not None, "those that are due fit, and the others may have none"
            found.append(
                {
                    candidate.name: count - 1
                    for candidate, count in zip(left, chosen, strict=True)
                    if count > 1
                }
            )
            left = [candidate for candidate in left if candidate.name not in found[-1]]
        return found

    def _values(self, candidate: _Candidate, at: int, pools: Sequence[NodePool]) -> Values:
        one, own = candidate.curve, candidate.pool
        worth = candidate.price * pools[at].speed * one.speeds
        if candidate.held:
            worth[1:] = -math.inf
        if one.had and own is not None:
            repay_s = np.minimum(self.horizon_s, one.left_s / pools[at].speed)
            # A change that costs nothing loses nothing, even if no time is left.
            lost = self.resize_s / np.maximum(repay_s, max(self.resize_s, TINY))
            # Minus infinity, of a size that the job cannot have, times 0 would be no number.
            lost[np.isneginf(worth)] = 0.0
            present = worth[one.had]
            worth = worth * (1 - lost) - math.sqrt(2) * one.deviation * present
            worth[0] = 0.0
            if own == at:
                # To lose all slots costs the next start, and what was not saved, in full.
                halt_s = one.job.start_s + one.job.lost_s
                halted = halt_s / max(float(repay_s[one.had]), self.resize_s, TINY)
                halted = max(float(lost[one.had]), halted)
                worth[0] = -present * (halted + math.sqrt(2) * one.deviation)
                worth[one.had] = present
            elif own > at:
                # It keeps what it has there if it gets nothing here.
                worth[1:] -= candidate.price * pools[own].speed * one.speeds[one.had]
        if candidate.reserved == at:
            worth[0] = -math.inf
        # Entry k + 1 is of k slots: the program gives each job at least one.
        return np.concatenate(([-math.inf], worth))


class _Candidate(NamedTuple):
    curve: SlotValues  # its speed, remaining time and batch, by its number of slots
    price: float  # the worth of a slot-second of its work
    pool: int | None  # the place of the pool that it is in; None: it has no slots
    reserved: int | None  # of the pool in which it must have slots at the latest; else None
    held: bool  # whether the job must not be started by this decision

    @property
    def name(self) -> str:
        return self.curve.job.name
