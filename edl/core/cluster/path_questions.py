"""Ask hosts which paths they have, ahead of the jobs that need them.

The question is part of a host's assignment. It is written again only when a path is missing in it,
so a job that needs the same paths as others asks nothing. All paths of a question have a limit,
within which they are dealt out:

1. Jobs that wait come first, then those that have slots, then those that could get none now: they
   need more slots than the hosts with their labels have, or than their queue may have.
2. Among these the next job is that of the queue that has been given the fewest bytes, so no queue
   takes them all. In a queue the jobs of the highest priority come first.
3. A job's paths are asked for together. A job whose paths do not fit is skipped, and waits.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from edl.core.cluster.active_jobs import HAS_SLOTS, has_labels, hosts_with_slots, obstacle
from edl.core.cluster.draft import Draft
from edl.core.cluster.path_checks import MOST_BYTES, path_bytes
from edl.core.cluster.queue_shares import NO_QUEUE
from edl.core.cluster.view import ClusterView, JobView


class PathRequest(NamedTuple):
    """The request of one job that hosts are asked for its paths."""

    rank: int  # the requests with the lowest one come first
    queue: str  # the name of the job's queue
    paths: tuple[str, ...]


def ask_about_paths(draft: Draft) -> None:
    """Ask each host that takes slots for the paths of all jobs that may get some."""
    cluster = draft.cluster
    jobs = [
        job
        for job in draft.jobs.values()
        if job.wants_slots
        and job.manifest.required_paths
        and obstacle(job, cluster, draft.now_s) is None
    ]
    paths = wanted_paths(_requests(jobs, cluster, hosts_with_slots(cluster, draft.table)))
    for host in cluster.hosts:
        if host.takes_slots:
            draft.table.ask(host.name, paths)


def wanted_paths(requests: Iterable[PathRequest]) -> tuple[str, ...]:
    """Return the paths to ask for, each once, in the order in which they are dealt out."""
    left = MOST_BYTES
    waiting: dict[int, dict[str, deque[PathRequest]]] = {}
    for one in requests:
        waiting.setdefault(one.rank, {}).setdefault(one.queue, deque()).append(one)
    found: dict[str, None] = {}
    given: Counter[str] = Counter()  # bytes by queue
    for rank in sorted(waiting):
        turns = [(given[queue], queue) for queue in waiting[rank]]
        heapq.heapify(turns)
        while turns:
            _, queue = heapq.heappop(turns)
            new = [path for path in waiting[rank][queue].popleft().paths if path not in found]
            size = path_bytes(new)
            if size <= left:
                found.update(dict.fromkeys(new))
                given[queue] += size
                left -= size
            if waiting[rank][queue]:
                heapq.heappush(turns, (given[queue], queue))
    return tuple(found)


def first_paths(paths: Iterable[str], most_bytes: int) -> tuple[str, ...]:
    """Return the first of `paths`: as many as have `most_bytes` bytes in a host's record."""
    found = []
    for path in paths:
        most_bytes -= path_bytes([path])
        if most_bytes < 0:
            break
        found.append(path)
    return tuple(found)


def _requests(
    jobs: Iterable[JobView], cluster: ClusterView, nodes: Mapping[str, int]
) -> list[PathRequest]:
    """Return the requests of `jobs`, in the order of their priorities and of submission."""
    rooms: dict[tuple[tuple[str, str], ...], int] = {}  # by labels
    found = []
    for job in sorted(jobs, key=lambda job: (-job.wanted.priority, job.order)):
        labels = tuple(job.manifest.labels.items())
        if labels not in rooms:
            rooms[labels] = sum(n for host, n in nodes.items() if has_labels(job, cluster, host))
        has_slots = job.life.state in HAS_SLOTS
        rank = 1 if has_slots else 0 if job.min_slots <= _room(job, cluster, rooms[labels]) else 2
        queue = job.manifest.queue if cluster.queues else ""
        found.append(PathRequest(rank, queue, tuple(job.manifest.required_paths)))
    return found


def _room(job: JobView, cluster: ClusterView, slots: int) -> int:
    """Return how many slots a job may have, if its queue had no other jobs."""
    if not cluster.queues:
        return slots
    queue = cluster.queues.get(job.manifest.queue, NO_QUEUE)
    most = queue.quota if job.manifest.preemptible is False else queue.most
    return slots if most is None else min(slots, most)
