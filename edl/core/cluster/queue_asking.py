"""Ask the cluster policy about the jobs of each queue, with the slots that the queue may have.

:func:`ask_by_queue` does so, in a cluster that has queues. Each queue is a cluster of its own for
the policy:

1. **Jobs that may not be preempted** get slots only within the quota of their queue, because others
   could not get them back (:func:`edl.core.cluster.quota_limits.quota_limits`).
2. **Shares.** :func:`edl.core.cluster.queue_shares.queue_shares` says how many slots each queue may
   have now. Its quota is met before anything else.
3. **The policy** is asked about each queue, with as many slots as that.
4. **What is left**, because the jobs of a queue can use a part of it only, goes to the others.

A queue that has more slots than it may have gives them back (*reclaim*):

- A job that trains shrinks before any is halted: none loses all slots as long as the fewest slots
  of all jobs that train fit in the share of the queue, whatever the policy answers.
- They do not fit only where another queue's quota needs the slots: surplus halts nobody. Then jobs
  of the lowest priority are halted, of these the one that was submitted last. So a job whose fewest
  slots are within the quota of its queue is never halted for another queue.
- ``min_run_s`` and ``cool_down_s`` do not keep slots that another queue's quota needs: else a
  manifest could keep them for ever. A job that starts keeps its slots until it trains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from edl.core.cluster.active_jobs import ActiveJob
from edl.core.cluster.asking import (
    AllocationRequest,
    Decision,
    ask_protecting,
    losers,
    spare_unsaved,
    spare_young,
)
from edl.core.cluster.job_life import LifeState
from edl.core.cluster.queue_shares import NO_QUEUE, QueueRequest, queue_shares, surplus_slots
from edl.core.cluster.quota_limits import QuotaRequest, quota_limits
from edl.core.cluster.records import QueueRecord
from edl.core.plural import counted, verb

SPARED = "keeps its fewest slots: no job is halted for another queue where smaller ones are enough"


def ask_by_queue(request: AllocationRequest) -> Decision:
    """Ask the policy about the jobs of each queue, with the slots that the queue may have."""
    queues = request.cluster.queues
    reasons: dict[str, str] = {}
    by_queue: dict[str, list[ActiveJob]] = {}
    for one in sorted(request.active, key=rank_in_queue):
        by_queue.setdefault(one.job.manifest.queue, []).append(one)
    requests = {}
    for name in sorted(by_queue):
        record = queues.get(name, NO_QUEUE)
        by_queue[name] = _within_quota(name, by_queue[name], record, reasons)
        requests[name] = _request_of(name, by_queue[name], record, request.nodes)
    slots = sum(request.nodes.values())
    shares = queue_shares(list(requests.values()), slots)
    held = {name: sum(one.size for one in jobs) for name, jobs in by_queue.items()}

    def order(name: str) -> tuple[int, int, str]:
        fewest = min((len(one.hosts) for one in by_queue[name]), default=0)
        return fewest, shares[name] - held[name], name

    answers: dict[str, Decision] = {}
    left, names = dict(request.nodes), sorted(by_queue, key=order)
    for at, name in enumerate(names):
        later = [one for other in names[at + 1 :] for one in by_queue[other]]
        part = replace(request, active=by_queue[name], nodes=left, later=later, queue=name)
        answers[name] = _ask_queue(part, shares[name])
        if answers[name].problem:
            return answers[name]
        left = _without(left, answers[name])

    def need(name: str) -> tuple[int, float, str]:
        used, record = answers[name].used, queues.get(name, NO_QUEUE)
        return min(0, used - held[name]), (used - record.quota) / record.weight, name

    idle = slots - sum(one.used for one in answers.values())
    for name in sorted(names, key=need):
        used, most = answers[name].used, requests[name].limit
        if idle <= 0 or used >= most:
            continue
        room = _with(left, answers[name], request.nodes)
        part = replace(request, active=by_queue[name], nodes=room, queue=name)
        more = min(most, used + idle)
        again = _ask_queue(part, more)
        if not again.problem and again.used > used:
            answers[name], shares[name] = again, max(shares[name], again.used)
            left, idle = _without(room, again), idle - again.used + used
    return _together(request, answers, shares, reasons)


def rank_in_queue(one: ActiveJob) -> tuple[int, int]:
    """Return the rank of a job in its queue, for sorting: the lowest keeps its slots longest."""
    return -one.job.wanted.priority, one.job.order


def _within_quota(
    queue: str, jobs: Sequence[ActiveJob], record: QueueRecord, reasons: dict[str, str]
) -> list[ActiveJob]:
    """Return the jobs of a queue without those that may not be preempted and exceed its quota."""
    rigid = [
        QuotaRequest(
            name=one.job.name,
            size=one.size,
            least=one.job.min_slots,
            most=max(one.size, one.job.min_slots) if one.is_fixed else one.most,
            sizes=one.job.manifest.allowed_sizes,
        )
        for one in jobs
        if one.job.manifest.preemptible is False
    ]
    limits, waiting = quota_limits(queue, rigid, record.quota)
    reasons |= waiting
    return [
        replace(one, most=min(one.most, limits.get(one.job.name, one.most)))
        for one in jobs
        if one.job.name not in waiting
    ]


def _request_of(
    name: str, jobs: Sequence[ActiveJob], record: QueueRecord, nodes: Mapping[str, int]
) -> QueueRequest:
    """Return what the jobs of the queue called `name` can use of `nodes`, host -> slots."""
    wanted: dict[tuple[str, ...], int] = {}
    for one in jobs:
        wanted[one.hosts] = wanted.get(one.hosts, 0) + max(one.most, one.size)
    total = sum(
        min(count, sum(nodes[host] for host in hosts if host in nodes))
        for hosts, count in wanted.items()
    )
    held = sum(one.size for one in jobs if _is_kept(one))
    least = sum(
        one.size if _is_kept(one) else one.job.min_slots
        for one in jobs
        if one.size >= one.job.min_slots
    )
    return QueueRequest(name, min(total, sum(nodes.values())), record, held, least)


def _is_kept(one: ActiveJob) -> bool:
    starts = one.job.life.state is LifeState.STARTING
    return one.is_fixed and (starts or one.job.manifest.preemptible is False)


def _ask_queue(request: AllocationRequest, most: int) -> Decision:
    """Ask the policy about the jobs of one queue, which may have `most` slots together."""
    held = sum(one.size for one in request.active)
    # `cool_down_s` and the like do not keep what another queue's quota needs.
    if sum(one.size for one in request.active if one.is_fixed) > most:
        request = replace(
            request,
            active=[one if _is_kept(one) else replace(one, why_fixed="") for one in request.active],
        )
    asked, reasons = [], {}
    for one in request.active:
        size = one.job.manifest.allowed_sizes.below(min(one.most, most))
        if one.is_fixed:
            asked.append(one)
        elif size is None:
            reasons[one.job.name] = f"waits: it needs {counted(one.job.min_slots, 'slot')}"
        else:
            asked.append(replace(one, most=size))
    asked = _requesting(asked, most)
    survivors = _survivors(asked, most)
    spare = partial(_spare, survivors=survivors, most=most, reclaims=held > most)
    answer = ask_protecting(
        replace(request, active=asked, most=most),
        lambda jobs, answer: spare(jobs, answer, now_s=request.now_s),
    )
    if not answer.problem:
        answer.reasons |= reasons
    return answer


def _requesting(jobs: Sequence[ActiveJob], most: int) -> list[ActiveJob]:
    """Return the jobs of a queue, so that a policy of fixed sizes lets small ones train on."""
    training = [one for one in jobs if one.size]
    if sum(max(one.job.manifest.requested_np, one.size) for one in training) <= most:
        return list(jobs)
    # Shrunk so that another queue has its quota: a policy of fixed sizes would halt one else.
    return [
        replace(one, requested=min(one.size, one.job.manifest.requested_np)) if one.size else one
        for one in jobs
    ]


def _survivors(jobs: Sequence[ActiveJob], most: int) -> frozenset[str]:
    """Return the jobs that can keep their fewest slots if they have `most` together."""
    left = most - sum(one.size for one in jobs if one.is_fixed)
    found = []
    for one in sorted(
        jobs, key=lambda one: (one.job.manifest.preemptible is not False, *rank_in_queue(one))
    ):
        if not one.is_fixed and one.size >= one.job.min_slots <= left:
            left -= one.job.min_slots
            found.append(one.job.name)
    return frozenset(found)


def _spare(
    asked: Sequence[ActiveJob],
    answer: Decision,
    survivors: frozenset[str],
    most: int,
    reclaims: bool,
    now_s: float,
) -> Mapping[str, str]:
    """Return the jobs that lose all slots by `answer` and may not, each with the reason."""
    kept = {**spare_unsaved(asked, answer, most), **spare_young(asked, answer, now_s)}
    found = {name: why for name, why in kept.items() if name in survivors}
    idle = most - answer.used
    for one in sorted(losers(asked, answer), key=rank_in_queue):
        name, least = one.job.name, one.job.min_slots
        if name not in survivors or name in found:
            continue
        # Smaller jobs are enough for the other queue's quota, or it would be halted for nobody.
        if reclaims or least <= idle:
            found[name] = SPARED
            idle -= least
    return found


def _together(
    request: AllocationRequest,
    answers: Mapping[str, Decision],
    shares: Mapping[str, int],
    reasons: Mapping[str, str],
) -> Decision:
    """Return the answers about all queues as one, with what a queue has in the reasons."""
    found = Decision(reasons=dict(reasons))
    for answer in answers.values():
        found.targets |= answer.targets
        found.reasons |= answer.reasons
        found.batches |= answer.batches
        found.state |= answer.state
    queues, ranked = request.cluster.queues, sorted(request.active, key=rank_in_queue)
    sizes = {name: sum(target.values()) for name, target in found.targets.items()}
    surplus = surplus_slots(
        [
            (one.job.name, one.job.manifest.queue, sizes[one.job.name])
            for one in ranked
            if one.job.name in sizes
        ],
        queues,
    )
    for one in ranked:
        name, queue = one.job.name, one.job.manifest.queue
        quota = queues.get(queue, NO_QUEUE).quota
        if name in surplus:
            many = surplus[name]
            what = f"{many} of its slots {verb(many, 'is', 'are')}"
            found.reasons[name] += f"; {what} beyond the quota of {quota} of queue {queue}"
        elif name not in sizes and name not in reasons:
            share = counted(shares[queue], "slot")
            found.reasons[name] += f"; queue {queue} may have {share} now, and its quota is {quota}"
    return found


def _without(nodes: Mapping[str, int], answer: Decision) -> dict[str, int]:
    """Return `nodes`, host -> slots, without the slots that jobs get by `answer`."""
    left = dict(nodes)
    for target in answer.targets.values():
        for host, count in target.items():
            left[host] -= count
    return left


def _with(nodes: Mapping[str, int], answer: Decision, order: Mapping[str, int]) -> dict[str, int]:
    """Return `nodes`, host -> slots, with the slots of `answer` added, as `order` is."""
    left = dict(nodes)
    for target in answer.targets.values():
        for host, count in target.items():
            left[host] += count
    return {host: left[host] for host in order}
