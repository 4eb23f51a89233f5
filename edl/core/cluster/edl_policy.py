"""Choose slots and batches for the least mean job completion time, without starving any job.

This is edl's own policy, :class:`EdlPolicy`. It allocates slots by goodput (progress in a second)
and by the remaining work, and counts the cost of a change of slots (a resize). k_min is the fewest
slots that a job may have, K the number of slots of all nodes.

1. **Goodput.** On k slots a job makes the progress R(k) in a second, with the best batch of its
   range (:mod:`edl.core.cluster.slot_values`). The speed of a job is s(k) = k_min * R(k) /
   R(k_min). Its size x is the slot-seconds left on k_min slots.
2. **Price.** With w_j the weight of job j and y_j = x_j / w_j, a slot-second of work on it is worth

       v_j = W_j^p        W_j = sum over all jobs i, including j, of  w_i y_i / (y_i + y_j)

   W_j is the total weight that can be expected to end after j, j itself counted by half: y_i / (y_i
   + y_j) would be the chance that j ends first if lengths were exponentially distributed around x,
   and is 1/2 among equals. p says how jobs scale as a rule, speed = k^p. The slots are those that
   make sum v_j s_j(k_j) largest, exactly, by the program of :mod:`edl.core.cluster.jsa_program`.

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
   (:mod:`edl.core.cluster.fair_wait`). Due jobs are ordered by deadline: the time since when they
   are due, plus ``rest_weight`` times what is left of them, of which at most ``rest_most_s``
   counts. So short jobs pass long ones, but none that become due later than the product of the two
   after them. While a due job waits, no job starts that may not be preempted, unless its deadline
   is earlier. The policy sees that a job is due at the next decision.
6. **Speeds of nodes.** Where kinds of nodes differ in speed (``speeds``), each job is placed within
   the nodes of one speed (:mod:`edl.core.cluster.node_pools`), as it would be as slow as the
   slowest. The fastest nodes are given out first, to the jobs to which they are worth most; a job
   on slower ones gains only by what it is faster, less the cost of the change.

If a job's model estimates a wrong remaining time, the order of the jobs is wrong, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from edl.core.cluster.fair_wait import (
    JobDeadline,
    JobWait,
    fair_wait_s,
    first_in_turn,
    next_wait,
    read_waits,
)
from edl.core.cluster.jsa_program import Values, best_sizes
from edl.core.cluster.node_pools import NodePool, node_pools, parse_speeds, reserve, slowest_pool
from edl.core.cluster.slot_values import SlotValues, curve
from edl.core.cluster.state import Allocation, ClusterState, slot_count
from edl.core.duration import duration_in_words
from edl.core.settings import setting

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
        curves = self._curves(cluster)
        waits = self._waits(cluster, curves)
        widest = max((one.least for one in curves), default=0)
        pools = node_pools(cluster, parse_speeds(self.speeds), widest)
        due = self._due(curves, waits)
        first, waiting = first_in_turn(due, sum(pool.free for pool in pools))
        urgent = {one.name: one.least for one in due if one.name in first}
        candidates = self._candidates(cluster, curves, pools, urgent, held=bool(waiting))
        placements = {name: cluster.present[name] for name in cluster.fixed}
        for pool, sizes in zip(pools, self._sizes(candidates, pools), strict=True):
            placements |= pool.place(sizes, cluster)
        reasons = dict.fromkeys(cluster.fixed, "keeps its slots: it may not be preempted")
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

    def _curves(self, cluster: ClusterState) -> list[SlotValues]:
        """Return the speeds of the jobs of `cluster` whose slots may change."""
        readings, fixed = cluster.state.get("readings", {}), cluster.fixed
        return [
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

    def _candidates(
        self,
        cluster: ClusterState,
        curves: Sequence[SlotValues],
        pools: Sequence[NodePool],
        urgent: Mapping[str, int],
        held: bool,
    ) -> list[_Candidate]:
        """Return the jobs whose slots may change, as the program weighs them."""
        homes = {
            one.job.name: slowest_pool(cluster.present.get(one.job.name, ()), pools)
            for one in curves
        }
        rigid = {one.job.name for one in curves if not one.job.preemptible}
        reserved, waiting = reserve(urgent, homes, pools, rigid)
        # While a due job waits, no job starts that may not be preempted.
        late = rigid - {*reserved, waiting} if held or waiting else set()
        prices = self._prices(curves)
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
        """Return the account of each job at this decision, by job name."""
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

    def _prices(self, curves: Sequence[SlotValues]) -> dict[str, float]:
        """Return the worth v_j of a slot-second of work on each job j, by job name."""
        able = [one for one in curves if one.least]
        weights = np.array([one.job.weight for one in able])
        counted = [one.size_slot_s * (one.least if one.is_rigid else 1) for one in able]
        lengths = np.maximum(counted, TINY) / weights
        behind = (lengths[None, :] / (lengths[None, :] + lengths[:, None])) @ weights
        prices = behind ** self._power(able)
        return {one.job.name: float(price) for one, price in zip(able, prices, strict=True)}

    def _power(self, able: Sequence[SlotValues]) -> float:
        """Return p: 1 for rigid jobs, `exponent` for others, the mean by their remaining work."""
        work = sum(max(one.size_slot_s, TINY) for one in able)
        rigid = sum(max(one.size_slot_s, TINY) for one in able if one.is_rigid)
        part = rigid / work if work else 0.0
        return part + (1 - part) * self.exponent

    def _sizes(
        self, candidates: Sequence[_Candidate], pools: Sequence[NodePool]
    ) -> list[dict[str, int]]:
        """Return the number of slots of each job in each pool, by job name, pool by pool."""
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
        """Return what each number of slots is worth to a job, less the cost of a change."""
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
    """A job whose slots may change, as the program weighs it."""

    curve: SlotValues  # its speed, remaining time and batch, by its number of slots
    price: float  # the worth of a slot-second of its work
    pool: int | None  # the place of the pool that it is in; None: it has no slots
    # the place of the pool in which it must have slots at the latest; None: none
    reserved: int | None
    held: bool  # whether the job must not be started by this decision

    @property
    def name(self) -> str:
        return self.curve.job.name
