"""Decide with how many workers a new job of a cluster trains while its throughput is measured.

A policy that knows nothing of a job's speed takes it to grow in proportion to the workers. So the
manifest may ask (``profile``) that a job of which nothing is known trains for a few seconds each
with a few numbers of workers, when it trains for the first time. The rules:

1. **Bounds.** At most ``sizes`` numbers of workers are measured, each for about ``each_s`` seconds,
   and all of it ends ``within_s`` seconds after the first step, once and for all
   (:attr:`JobLife.profile_until_s`). All that this needs is in ZooKeeper.
2. **Nobody loses anything by it.** The policy decides first, as if there were no profile. A job is
   profiled with fewer workers than the policy gives it, or with more on slots that the policy gives
   to nobody; and not with more while any job waits for slots. If the policy takes all slots of a
   job away, it has none. After the profile the job has what the policy gives it.
3. **The order.** The size with which it starts is measured first; then each time the one that is
   farthest, by its factor, from all that are measured: for 8 slots 8, 1, 3. A size counts as
   measured when the job itself says how fast it was.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edl.core.cluster.active_jobs import ActiveJob
from edl.core.cluster.job_life import LifeState
from edl.core.cluster.records import AllocationRecord
from edl.core.cluster.stable_placing import JobSize, place_stably
from edl.core.cluster.view import JobView
from edl.core.plural import workers
from edl.core.sizes import Sizes


def profile_end_s(job: JobView, now_s: float) -> float:
    """Return until when a job that begins to train may be profiled, in seconds since 1970."""
    limits, before_s = job.manifest.profile, job.life.profile_until_s
    if limits is None or before_s:
        return before_s
    if job.measured.curve or job.manifest.hints.samples_per_s:
        return now_s
    return now_s + job.manifest.snooze_s + limits.within_s


@dataclass(frozen=True)
class ProfileProgress:
    """How far the profile of a job is."""

    known: tuple[int, ...]  # the numbers of workers that are measured, sorted
    is_settled: bool  # whether the job has had its present slots for `each_s` seconds


def profile_progress(
    job: JobView, allocation: AllocationRecord, now_s: float
) -> ProfileProgress | None:
    """Return how far the profile of a job is; None: the job is not profiled, or not any more."""
    limits, life = job.manifest.profile, job.life
    if limits is None or life.state is not LifeState.RUNNING or now_s >= life.profile_until_s:
        return None
    if now_s - life.since_s < job.manifest.snooze_s:
        return None
    known = {one.workers for one in job.measured.steps}
    return ProfileProgress(tuple(sorted(known)), now_s >= settled_s(job, allocation))


def settled_s(job: JobView, allocation: AllocationRecord) -> float:
    """Return when a job that is profiled has had its slots for long enough, since 1970."""
    limits = job.manifest.profile
    begun_s = max(allocation.changed_s.get(job.name, 0.0), job.life.since_s)
    return begun_s + (limits.each_s if limits is not None else 0.0)


def next_size(
    progress: ProfileProgress, sizes: Sizes, present: int, most: int, count: int
) -> int | None:
    """Return the number of workers with which a job is profiled now; None: it is complete."""
    known = progress.known
    if not progress.is_settled or present not in known:
        return present if present <= most and sizes.allows(present) else None
    if len(known) >= count:
        return None
    others = [n for n in range(sizes.min_np, most + 1) if sizes.allows(n) and n not in known]

    def rank(size: int) -> tuple[float, int]:
        return min(abs(math.log(size / one)) for one in known), size

    return max(others, key=rank, default=None)


@dataclass(frozen=True)
class ProfileSlots:
    """The slots of the jobs that are profiled now."""

    targets: Mapping[str, Mapping[str, int]]  # job -> host -> the number of its slots there
    reasons: Mapping[str, str]  # job -> what is measured, as a clause


def profiled_slots(
    active: Sequence[ActiveJob],
    nodes: Mapping[str, int],
    targets: Mapping[str, Mapping[str, int]],
    allocation: AllocationRecord,
    now_s: float,
) -> ProfileSlots:
    """Return the slots that jobs get for their profiles in place of those that the policy gives."""
    free = Counter(nodes)
    for slots in targets.values():
        free.subtract(slots)
    somebody_waits = any(one.job.name not in targets for one in active)
    found: dict[str, Mapping[str, int]] = {}
    reasons: dict[str, str] = {}
    for one in sorted(active, key=lambda one: one.job.order):
        name, limits = one.job.name, one.job.manifest.profile
        progress = profile_progress(one.job, allocation, now_s)
        if limits is None or progress is None or name not in targets:
            continue
        if len(progress.known) >= limits.sizes and name not in allocation.profiled:
            continue  # it has its slots again
        given = targets[name]
        present = allocation.targets.get(name, given)
        spare = {} if somebody_waits else {host: n for host, n in free.items() if n > 0}
        room = {host: given.get(host, 0) + spare.get(host, 0) for host in {*given, *spare}}
        size = next_size(
            progress,
            one.job.manifest.allowed_sizes,
            sum(present.values()),
            _most(one, room),
            limits.sizes,
        )
        if size is None:
            continue
        placed = _placed(one, size, present, room)
        if sum(placed.values()) == size:
            free.subtract(placed)
            free.update(given)
            found[name] = placed
            measured = f"{len(progress.known)} of {limits.sizes} sizes measured"
            reasons[name] = f"is profiled with {workers(size)}, {measured}"
    return ProfileSlots(found, reasons)


def _most(one: ActiveJob, room: Mapping[str, int]) -> int:
    return min(one.most, sum(min(n, one.limits.get(host, 0)) for host, n in room.items()))


def _placed(
    one: ActiveJob, size: int, present: Mapping[str, int], room: Mapping[str, int]
) -> Mapping[str, int]:
    job = JobSize(one.job.name, size, present, (), one.limits, lambda count: count)
    return place_stably([job], {host: room[host] for host in sorted(room)}).get(job.name, {})
