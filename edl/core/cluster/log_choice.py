"""Choose the logs of a cluster's job that a user wants to see, of those that its hosts have."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

OF_AGENTS = "agent-"  # begins the names of the logs of agents


class HostedLog(NamedTuple):
    """A log on a host of a cluster.

    Attributes:
        name: the name of the log, such as "w3".
        host: the name of the host.
    """

    name: str
    host: str


def chosen_logs(
    there: Mapping[str, Collection[str]], of_workers: Mapping[str, str]
) -> list[HostedLog]:
    """Return the logs of a job's workers, in the order of their names.

    A worker of an earlier run may have had the same name on another host. Where it is known on
    which host the present run has the worker, its log there is returned, and no other one.

    Args:
        there: host -> the names of the logs of the job there.
        of_workers: worker -> the host on which the present or last run has it.
    """
    found = [
        HostedLog(name, host)
        for host, names in there.items()
        for name in names
        if not name.startswith(OF_AGENTS) and of_workers.get(name, host) == host
    ]
    return sorted(found, key=lambda log: (len(log.name), log))
