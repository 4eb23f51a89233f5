"""Choose slots and batches for the least mean job completion time, without starving any job.

This is edl's own policy, :class:`EdlPolicy`. It allocates slots by goodput (progress in a second)
and by the remaining work, and counts the cost of a change of slots (a resize). k_min is the fewest
slots that a job may have, K the number of slots of all nodes.

1. **Goodput.** On k slots a job trains with the batch b of its range that makes most progress, R(k)
   = max b * efficiency(b) / step_s(k, b), with its present efficiency (Pollux, OSDI 2021, section
   3). Batches are the smallest one, doubled up to the largest. All numbers of slots up to a node
   are tried, beyond that only whole nodes, so that jobs seldom lie on more nodes than they need.
   The speed of a job is s(k) = k_min * R(k) / R(k_min). Its size x is the slot-seconds left on
   k_min slots.
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
3. **Resizes.** If a job has slots, the value of any other number is reduced by the fraction
   resize_s / min(horizon_s, what would be left then): a change has to repay within that time. To
   take all of its slots costs as much, for it will have to begin again.
4. **Starvation.** A job is *due* (past its fair wait) once it has been there for ``patience`` times
   what it takes alone on the slots that it requested, as estimated when it was first seen. Due jobs
   come before all others, in the order in which they became due, and have at least k_min until they
   end. While a due job waits, no job starts that may not be preempted, unless it became due
   earlier. So from then on a job waits only for jobs that became due before it, which are all known
   by then and train at least at their slowest, and for jobs that may not be preempted. The policy
   sees that a job is due at the next decision.

If a job's model estimates a wrong remaining time, the order of the jobs is wrong, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edl.core.cluster.jsa_program import Values, best_sizes
from edl.core.cluster.placing import compact, place_packed
from edl.core.cluster.state import Allocation, ClusterJob, ClusterState, slot_count
from edl.core.plural import counted
from edl.core.settings import setting

TINY = 1e-9  # slot-seconds; no job is shorter


@dataclass(frozen=True)
class EdlPolicy:
    """The cluster policy ``edl``: least mean job completion time, by goodput and remaining work.

    Call it with the state of a cluster to get an allocation. It also weighs what a change of slots
    costs. Between decisions the allocation's ``state`` keeps, for each job, the time from which the
    job is past its fair wait: ``patience`` times what the job takes alone, after its arrival.

    Attributes:
        exponent: p, where k slots are as a rule k^p times as fast as one.
        resize_s: the time that a change of a job's slots costs, in seconds.
        horizon_s: the time within which a change has to repay its cost, in seconds.
        patience: a job is past its fair wait after this many times the time that it takes alone.
    """

    exponent: float = setting(0.5, "p: as a rule k slots are k^p times as fast as one", least=0)
    resize_s: float = setting(30.0, "what a change of slots costs")
    horizon_s: float = setting(600.0, "within which a change has to repay")
    patience: float = setting(0.1, "times what it takes alone, a job is there until it is due")

    def __call__(self, cluster: ClusterState) -> Allocation:
        """Return the allocation with the largest sum, over all jobs, of price times speed.

        The price is the worth of a slot-second of the job's work. The cost of a change of slots is
        subtracted. Jobs with slots that may not be preempted keep them. Jobs past their fair wait
        get at least their fewest slots before all other jobs, as long as there are slots.
        """
        fixed = cluster.fixed
        left = cluster.slots - sum(fixed.values())
        curves = [
            curve(
                job, slot_count(cluster.present.get(job.name, ())), cluster.per_node, cluster.slots
            )
            for job in cluster.jobs
            if job.name not in fixed
        ]
        due_s = self._due(cluster, curves)
        first, waiting = _first(curves, due_s, cluster.now_s, left)
        prices = self._prices(curves)
        values = []
        for one in curves:
            held = bool(waiting) and not one.job.preemptible and one.job.name not in first
            of = self._values(one, prices.get(one.job.name, 1.0), held)
            if one.job.name in first:
                of[1] = -math.inf
            values.append(of)
        # The program gives each job at least one slot, so each count is one too high: 1 is none.
        chosen = best_sizes(values, left + len(curves))
        assert chosen is not None, "those that are due fit, and the others may have none"
        sizes, batches = dict(fixed), {}
        reasons = dict.fromkeys(fixed, "keeps its slots: it may not be preempted")
        for one, count in zip(curves, chosen, strict=True):
            job, slots = one.job, count - 1
            reasons[job.name] = one.reason(slots, prices.get(job.name, 1.0))
            if job.name in first:
                reasons[job.name] += f", due for {cluster.now_s - due_s[job.name]:.0f} s"
            if slots:
                sizes[job.name] = slots
                if one.batches[slots] != job.batch:
                    batches[job.name] = one.batches[slots]
        return Allocation(place_packed(sizes, cluster), reasons, {"due_s": due_s}, batches)

    def _due(self, cluster: ClusterState, curves: Sequence[SlotValues]) -> dict[str, float]:
        """Return the time, in seconds, from which each job is past its fair wait, by job name.

        It is on the clock of the jobs' arrivals. It is computed once for a job, when it is first
        seen with slots that may change, and then taken from the policy's state. A job that can have
        no number of slots is left out.

        Args:
            cluster: the jobs and nodes, with the state of the policy's last decision.
            curves: the speeds of the jobs whose slots may change.
        """
        known: Mapping[str, float] = cluster.state.get("due_s", {})
        due_s = {job.name: known[job.name] for job in cluster.jobs if job.name in known}
        for one in curves:
            if one.job.name not in due_s and one.least:
                due_s[one.job.name] = one.job.arrival_s + self.patience * one.requested_s
        return due_s

    def _prices(self, curves: Sequence[SlotValues]) -> dict[str, float]:
        """Return the worth v_j of a slot-second of work on each job j, by job name.

        v_j is the total weight of the jobs that can be expected to end after j, to the power
        ``exponent``. Jobs that can have no slots are left out.

        Args:
            curves: the jobs whose slots may change.
        """
        able = [one for one in curves if one.least]
        weights = np.array([one.job.weight for one in able])
        lengths = np.array([max(one.size_slot_s, TINY) for one in able]) / weights
        behind = (lengths[None, :] / (lengths[None, :] + lengths[:, None])) @ weights
        prices = behind**self.exponent
        return {one.job.name: float(price) for one, price in zip(able, prices, strict=True)}

    def _values(self, one: SlotValues, price: float, held: bool) -> Values:
        """Return the value of each number of slots to a job, less the cost of a change.

        Args:
            one: the speed and the remaining time of the job, by its number of slots.
            price: v_j, the worth of a slot-second of the job's work.
            held: whether the job must not be started by this decision.

        Returns:
            An array in which entry k + 1 is the value of k slots. Entry 0 is minus infinity, as the
            dynamic program gives each job at least one slot.
        """
        worth = price * one.speeds
        if held:
            worth[1:] = -math.inf
        if one.had:
            repay_s = np.minimum(self.horizon_s, one.left_s)
            lost = np.minimum(1.0, self.resize_s / np.maximum(repay_s, self.resize_s))
            lost[0] = lost[one.had]
            paid = worth * (1 - lost)
            paid[0] = -worth[one.had] * lost[0]
            paid[one.had] = worth[one.had]
            worth = paid
        return np.concatenate(([-math.inf], worth))


@dataclass(frozen=True)
class SlotValues:
    """The speed, the remaining time and the batch of one job, by its number of slots from 0 on.

    :func:`curve` makes it.

    Attributes:
        job: the job as a policy reads it: its limits, its present slots and its measurements.
        had: the slots that the job has now, if it may have as many again; else 0.
        least: the fewest slots that it can have; 0 if it cannot have any.
        speeds: by the number of slots k, the speed s(k), which is 0 for k = 0 and k_min on k_min
            slots (the fewest); minus infinity where the job cannot have so many slots, or where
            that number is not tried.
        left_s: by the number of slots, the seconds until the job's end; infinite for 0 slots, where
            it cannot have so many, or where that number is not tried.
        batches: by the number of slots, the global batch that makes most progress, in samples.
    """

    job: ClusterJob
    had: int
    least: int
    speeds: Values
    left_s: Values
    batches: Sequence[int]

    @property
    def size_slot_s(self) -> float:
        """The work that is left: the seconds until the end on the fewest slots, times these slots.

        It is not a number (NaN) if the job can have no slots.
        """
        return float(self.left_s[self.least]) * self.least

    @property
    def requested_s(self) -> float:
        """The seconds until the job's end on the slots that it requested.

        If that number of slots was not tried, the next smaller number that was tried counts. It
        must not be read for a job that can have no slots.
        """
        known = self.left_s[self.least : max(self.job.requested_slots, self.least) + 1]
        return float(known[np.isfinite(known)][-1])

    def reason(self, slots: int, price: float) -> str:
        """Return the sentence that says why the job gets ``slots`` slots, or why it waits.

        Args:
            slots: how many slots the job gets; 0: it waits.
            price: the worth of a slot-second of its work.
        """
        worth = f"a slot-second of its work is worth {price:.2f}"
        if not self.least:
            needs = counted(self.job.min_slots, "slot")
            return f"waits: it needs {needs}, and there are fewer"
        if not slots:
            return f"waits: {self.left_s[self.least]:.0f} s are left on its fewest slots, {worth}"
        has = f"has {counted(slots, 'slot')} and a batch of {self.batches[slots]}"
        return f"{has}: {self.left_s[slots]:.0f} s are left, {worth}"


def curve(job: ClusterJob, had: int, slots_a_node: int, slots: int) -> SlotValues:
    """Return the speed, the remaining time and the best batch of a job by its number of slots.

    Args:
        job: the job as a policy reads it: its limits and its model.
        had: the number of slots that it has now; 0: none.
        slots_a_node: the slots of the largest node.
        slots: the number of slots of all nodes together.
    """
    most = min(job.max_slots, slots)
    candidates = [(batch, batch * job.model.efficiency(batch)) for batch in _batches(job)]
    fewest = job.local_batches[0] if job.local_batches else 0
    rates, batches = np.full(max(most, 0) + 1, -math.inf), [job.batch] * (max(most, 0) + 1)
    for count in _sizes(job.min_slots, most, had, slots_a_node):
        placement = compact(count, slots_a_node)
        for batch, worth in candidates:
            if batch >= count * fewest:
                rate = worth / job.model.step_s(placement, batch)
                if rate > rates[count]:
                    rates[count], batches[count] = rate, batch
    possible = np.flatnonzero(rates > -math.inf)
    left_s = np.full(len(rates), math.inf)
    rates[0] = 0.0
    if not len(possible):
        return SlotValues(job, 0, 0, rates, left_s, batches)
    least = int(possible[0])
    placement, batch = compact(least, slots_a_node), batches[least]
    longest_s = job.model.steps_left(batch) * job.model.step_s(placement, batch)
    left_s[possible] = longest_s * rates[least] / rates[possible]
    return SlotValues(
        job,
        had if had < len(rates) and rates[had] > 0 else 0,
        least,
        least * rates / rates[least],
        left_s,
        batches,
    )


def _sizes(least: int, most: int, had: int, slots_a_node: int) -> list[int]:
    """Return the numbers of slots to try for a job, ascending.

    They are all numbers up to ``slots_a_node``, its multiples, ``had``, ``least`` and ``most``;
    none is below ``least`` or above ``most``.

    Args:
        least: the fewest slots that the job may have.
        most: the most slots that it may have.
        had: the number of slots that it has now; 0: none.
        slots_a_node: the slots of the largest node.
    """
    sizes = {*range(least, slots_a_node + 1), *range(0, most + 1, slots_a_node), least, had, most}
    return sorted(size for size in sizes if least <= size <= most)


def _batches(job: ClusterJob) -> list[int]:
    """Return the global batches to try for a job, ascending, in samples.

    They are the smallest batch of the job's range, its doublings, and the largest.
    """
    smallest, largest = job.batches
    doublings = (largest // smallest).bit_length()
    return sorted({min(smallest << doubling, largest) for doubling in range(doublings)} | {largest})


def _first(
    curves: Sequence[SlotValues], due_s: Mapping[str, float], now_s: float, slots: int
) -> tuple[set[str], str]:
    """Choose the jobs past their fair wait that get their fewest slots before all other jobs.

    They are taken in the order in which they passed it, up to the first one that does not fit.

    Args:
        curves: the speeds of all jobs whose slots may change.
        due_s: the time from which each job is past its fair wait, by job name.
        now_s: the time of the decision, on the same clock.
        slots: the number of slots that can be given.

    Returns:
        (the names of the chosen jobs; the name of the first one that does not fit, or "" if all
        fit).
    """
    due = [one for one in curves if one.least and due_s[one.job.name] <= now_s]
    first: set[str] = set()
    for one in sorted(due, key=lambda one: due_s[one.job.name]):
        slots -= one.least
        if slots < 0:
            return first, one.job.name
        first.add(one.job.name)
    return first, ""
