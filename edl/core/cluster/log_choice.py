"""Choose the logs of a cluster's job that a user wants to see, of those that its hosts have."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

OF_AGENTS = "agent-"  # begins the names of the logs of agents


class HostedLog(NamedTuple):
    """A log on a host of a cluster."""

    name: str  # the name of the log, such as "w3"
    host: str  # the name of the host


def chosen_logs(
    there: Mapping[str, Collection[str]], of_workers: Mapping[str, str]
) -> list[HostedLog]:
    """Return the logs of a job's workers, in the order of their names."""
    found = [
        HostedLog(name, host)
        for host, names in there.items()
        for name in names
        # A worker of an earlier run may have had the same name on another host.
        if not name.startswith(OF_AGENTS) and of_workers.get(name, host) == host
    ]
    return sorted(found, key=lambda log: (len(log.name), log))
