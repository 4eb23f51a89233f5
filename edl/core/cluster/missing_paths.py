"""Remember which paths of jobs the hosts of an engine lack, also when they have been given back.

Else a job whose files the hosts lack would make them come and go for as long as it waits: asked
for, found to lack the files, idle, given back, and asked for again.
"""

from __future__ import annotations

from collections.abc import Mapping

from edl.core.cluster.lease_records import MissingPath
from edl.core.cluster.view import ClusterView, JobView

MISSING_S = 3600.0  # then hosts are asked for again: the files may be there by now


def missing_paths(
    before: Mapping[str, MissingPath], cluster: ClusterView, now_s: float
) -> dict[str, MissingPath]:
    """Return the paths that a lent host lacks, or has lacked within `MISSING_S`."""
    borrowed = {
        host.name: host.report.paths
        for host in cluster.hosts
        if host.offer is not None and host.offer.lease and host.report is not None
    }
    needed = {
        path for job in cluster.jobs if job.wants_slots for path in job.manifest.required_paths
    }
    found = {}
    for path in sorted(needed):
        said = {host: paths[path] for host, paths in borrowed.items() if path in paths}
        known = before.get(path)
        if known is not None and not 0.0 <= now_s - known.since_s < MISSING_S:
            known = None
        if any(said.values()):
            continue
        if known is None and said:
            known = MissingPath(min(said), now_s)
        if known is not None:
            found[path] = known
    return found


def missing_on_borrowed(job: JobView, cluster: ClusterView) -> str:
    """Return why no host is borrowed for `job`: a lent host lacked one of its files."""
    for path, what in job.manifest.required_paths.items():
        if host := cluster.missing_paths.get(path):
            return (
                f"{host} lacked {what}; for an hour no other one is asked for on its behalf: once "
                f"such hosts have it, do `edl halt {job.name}` and `edl resume {job.name}`"
            )
    return ""
