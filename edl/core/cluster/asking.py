"""Ask a cluster policy about groups of jobs, and fit its answer to live jobs.

:func:`ask_protecting` does so. The jobs of a higher priority are asked about first; of one
priority, those whose labels leave them the fewest hosts. Each group is a cluster of its own, with
the slots that the groups before it leave.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from edl.core.cluster.active_jobs import ActiveJob
from edl.core.cluster.job_life import LifeState
from edl.core.cluster.live_model import StepTimeModels
from edl.core.cluster.stable_placing import JobSize, place_stably, trimmed
from edl.core.cluster.state import Allocation, ClusterPolicy, ClusterState, Node, slot_count
from edl.core.cluster.validity import violation
from edl.core.cluster.view import ClusterView

Targets = dict[str, Mapping[str, int]]
"""Job -> host -> number of slots."""


@dataclass
class Decision:
    """The answers of a policy about the groups of jobs that it was asked about so far."""

    # job -> host -> the number of slots that the job shall have there
    targets: Targets = field(default_factory=dict)
    # job -> why it has its slots or waits, as the policy's sentence
    reasons: dict[str, str] = field(default_factory=dict)
    # job -> the global batch that the policy chose, in samples
    batches: dict[str, int] = field(default_factory=dict)
    # group of jobs -> what the policy keeps for its next decision
    state: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    problem: str = ""  # the rule that its decision broke, as a sentence; empty: it broke none

    @property
    def used(self) -> int:
        """The number of slots that all jobs of the decision have together."""
        return sum(sum(target.values()) for target in self.targets.values())


@dataclass(frozen=True)
class AllocationRequest:
    """All that a policy is asked about together."""

    active: Sequence[ActiveJob]  # the jobs that may get slots
    nodes: Mapping[str, int]  # host -> the slots that they may have
    cluster: ClusterView  # the cluster, with the policy's last decision
    policy: ClusterPolicy
    now_s: float
    # jobs that are asked about later, in another request, with what this one leaves
    later: Sequence[ActiveJob] = ()
    most: int | None = None  # the most slots that the jobs may have together; None: all of `nodes`
    queue: str = ""  # the queue whose jobs they are; empty: those of all queues


Spare = Callable[[Sequence[ActiveJob], Decision], Mapping[str, str]]
"""Gets the jobs that were asked about, and the answer. Returns the jobs that lose all slots and
may not, each with the reason."""


def ask_protecting(request: AllocationRequest, spare: Spare | None = None) -> Decision:
    """Ask the policy, and again until no job loses all slots that may not."""
    slots = sum(request.nodes.values()) if request.most is None else request.most
    spare = spare or (
        lambda asked, answer: {
            **spare_unsaved(asked, answer, slots),
            **spare_young(asked, answer, request.now_s),
        }
    )
    asked = list(request.active)
    while True:
        answer = _ask(replace(request, active=asked))
        spared = {} if answer.problem else spare(asked, answer)
        if not spared:
            return answer
        asked = [
            _at_fewest(one, spared[one.job.name]) if one.job.name in spared else one
            for one in asked
        ]


def spare_young(asked: Sequence[ActiveJob], answer: Decision, now_s: float) -> dict[str, str]:
    """Return the jobs that lose all slots and may not, by their manifests, with reasons."""
    found = {}
    for one in losers(asked, answer):
        name, least_s = one.job.name, one.job.manifest.min_run_s
        # not fixed although it may not be preempted: it has lost slots, as with a host
        if one.job.manifest.preemptible is False:
            found[name] = "keeps its fewest slots: it may not be preempted"
        elif now_s - one.job.life.since_s < least_s:
            found[name] = f"keeps its fewest slots for {least_s:g} s after its start (min_run_s)"
    return found


def spare_unsaved(asked: Sequence[ActiveJob], answer: Decision, slots: int) -> Mapping[str, str]:
    """Return the jobs that lose all slots to jobs of no higher priority, and save nothing."""
    found: dict[str, str] = {}
    kept = 0
    lost = {one.job.name for one in losers(asked, answer)}
    for one in sorted(asked, key=lambda one: one.group[0]):
        if one.job.name not in lost or not one.job.saves_nothing:
            continue
        # its user has said whether it may be preempted
        if one.job.manifest.preemptible is not None:
            continue
        higher = sum(
            sum(answer.targets.get(other.job.name, {}).values())
            for other in asked
            if other.group[0] < one.group[0] or other.is_fixed
        )
        if higher + kept + one.job.min_slots <= slots:
            kept += one.job.min_slots
            found[one.job.name] = (
                "keeps its fewest slots: it saves no checkpoint (preemptible: true lets others "
                "of its priority halt it)"
            )
    return found


def losers(asked: Sequence[ActiveJob], answer: Decision) -> list[ActiveJob]:
    """Return the jobs that train on their fewest slots or more, and get none by `answer`."""
    return [
        one
        for one in asked
        if one.job.name not in answer.targets
        and not one.is_fixed
        and one.job.life.state is LifeState.RUNNING
        and one.size >= one.job.min_slots
    ]


def _at_fewest(one: ActiveJob, why: str) -> ActiveJob:
    """Return the active job with only the fewest of its present slots, fixed because of `why`."""
    return replace(one, present=trimmed(one.present, one.job.min_slots), why_fixed=why)


def _ask(request: AllocationRequest) -> Decision:
    """Ask the policy about one group of jobs after the other, and return all answers together."""
    cluster, left = request.cluster, dict(request.nodes)
    answer, most, models = Decision(), request.most, StepTimeModels()
    silent = [host.name for host in cluster.hosts if host.offer is None]
    order = sorted(request.active, key=lambda one: one.group)
    for group, members in groupby(order, key=lambda one: one.group):
        jobs = sorted(members, key=lambda one: one.job.order)
        own_later = [one for one in request.active if one.group > group]
        later = [*own_later, *request.later]
        # what later jobs keep is not for these
        fixed = _sum(one.present for one in later if one.is_fixed)
        free = {host: left[host] - fixed[host] for host in left if host in jobs[0].hosts}
        free = {host: slots for host, slots in free.items() if slots > 0}
        usable = free
        if most is not None:
            reserved = sum(one.size for one in own_later if one.is_fixed)
            usable = _limited(free, most - reserved, jobs)
        key = f"{-group[0]}/{group[2]}"
        key = f"{request.queue}:{key}" if request.queue else key
        state = ClusterState(
            jobs=[one.cluster_job(request.now_s, models) for one in jobs],
            nodes=[Node(host, slots, kind_of(cluster, host)) for host, slots in usable.items()],
            present={one.job.name: tuple(one.present.items()) for one in jobs if one.present},
            now_s=request.now_s,
            state=cluster.allocation.state.get(key, {}),
        )
        decision = request.policy(state)
        wrong = violation(decision, state)
        if wrong is not None:
            return Decision(problem=f"the policy's decision breaks a rule and is not used: {wrong}")
        moving = _sum(one.present for one in later if not one.is_fixed)
        sized = _sized(jobs, decision, sum(usable.values()))
        placed = place_stably(sized, free, moving, silent)
        taken = _sum(placed.values())
        left = {host: slots - taken[host] for host, slots in left.items()}
        most = None if most is None else most - sum(taken.values())
        answer.targets |= placed
        kept = {one.job.name: one.why_fixed for one in jobs if one.is_fixed}
        answer.reasons |= {**decision.reasons, **kept}
        answer.batches |= decision.batches
        answer.state[key] = decision.state
    return answer


def kind_of(cluster: ClusterView, host: str) -> str:
    """Return the kind of machine that a host offers; empty if it offers nothing just now."""
    offer = cluster.host_named[host].offer
    return offer.kind if offer is not None else ""


def _limited(free: Mapping[str, int], most: int, jobs: Sequence[ActiveJob]) -> dict[str, int]:
    """Return at most `most` of the `free` slots of hosts, in the same order."""
    found: Counter[str] = Counter()
    fixed = _sum(one.present for one in jobs if one.is_fixed)
    present = _sum(one.present for one in jobs if not one.is_fixed)
    # first what jobs keep, then what others have, then those of the hosts with the most
    for wanted in (fixed, present, free):
        for host in sorted(free, key=lambda host: found[host] - free[host]):
            count = min(wanted[host], free[host] - found[host], most)
            if count > 0:
                found[host] += count
                most -= count
    return {host: found[host] for host in free if found[host]}


def _sum(many: Iterable[Mapping[str, int]]) -> Counter[str]:
    """Return, by host, the sum of the numbers of slots in all mappings of `many`."""
    total: Counter[str] = Counter()
    for slots in many:
        total.update(slots)
    return total


def _sized(jobs: Sequence[ActiveJob], decision: Allocation, slots: int) -> list[JobSize]:
    """Return the jobs that get slots by a policy's decision, each with an allowed size."""
    suggested = decision.placements
    sizes, left = {}, slots
    for one in jobs:
        given = slot_count(suggested.get(one.job.name, ()))
        sizes[one.job.name] = one.job.manifest.allowed_sizes.below(given) or 0
        left -= sizes[one.job.name]
    # slots that smaller sizes leave go to jobs that reach their next size with them
    for one in jobs:
        size = sizes[one.job.name]
        if 0 < size < slot_count(suggested[one.job.name]):
            more = one.job.manifest.allowed_sizes.above(size + 1)
            if more is not None and more <= one.most and more - size <= left:
                left -= more - size
                sizes[one.job.name] = more
    return [
        JobSize(
            name=one.job.name,
            size=sizes[one.job.name],
            present=one.present,
            suggested=suggested[one.job.name],
            limits=one.limits,
            fit=one.job.manifest.allowed_sizes.below,
        )
        for one in jobs
        if sizes[one.job.name]
    ]
