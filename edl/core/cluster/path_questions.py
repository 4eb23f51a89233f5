"""Ask hosts which paths they have, ahead of the jobs that need them.

The question is part of a host's assignment. It is written again only when a path is missing in it,
so a job that needs the same paths as others asks nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from edl.core.cluster.active_jobs import HAS_SLOTS, obstacle
from edl.core.cluster.draft import Draft
from edl.core.cluster.view import JobView

MOST_BYTES = 200_000  # of all paths of a question; ZooKeeper holds 1 MB in a node


def ask_about_paths(draft: Draft) -> None:
    """Ask each host that takes slots for the paths of all jobs that may get some.

    Jobs that wait come before those that have slots, the first in the queue first. What goes beyond
    ``MOST_BYTES`` is not asked for; its jobs wait.
    """
    paths = wanted_paths(
        job
        for job in draft.jobs.values()
        if job.wants_slots
        and job.manifest.required_paths
        and obstacle(job, draft.cluster, draft.now_s) is None
    )
    for host in draft.cluster.hosts:
        if host.takes_slots:
            draft.table.ask(host.name, paths)


def wanted_paths(jobs: Iterable[JobView]) -> tuple[str, ...]:
    """Return the paths that ``jobs`` need, each once, in the order in which they are asked for."""
    order = sorted(
        jobs, key=lambda job: (job.life.state in HAS_SLOTS, -job.wanted.priority, job.order)
    )
    return first_paths(
        dict.fromkeys(path for job in order for path in job.manifest.required_paths), MOST_BYTES
    )


def first_paths(paths: Iterable[str], most_bytes: int) -> tuple[str, ...]:
    """Return the first of ``paths``: as many as have ``most_bytes`` bytes in a host's record."""
    found = []
    for path in paths:
        most_bytes -= len(json.dumps(path)) + 1  # with a comma
        if most_bytes < 0:
            break
        found.append(path)
    return tuple(found)
