"""Say why ZooKeeper does not answer, by what its servers do with a new connection."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from edl.core.dashboard import incident_causes as causes
from edl.core.dashboard.full_disk import listed


class ServerProbe(StrEnum):
    """The ways in which a server may treat a new TCP connection: refuse, ignore or take it."""

    REFUSED = "refused"  # its machine answers that no process listens at the port
    SILENT = "silent"  # no answer comes, or there is no route to the machine
    OPEN = "open"  # the machine takes the connection, as it does for a process that is stopped, too


def outage_cause(trouble: str, probes: Mapping[str, ServerProbe]) -> causes.Cause:
    """Return why ZooKeeper does not answer, and what to do.

    Args:
        trouble: what is wrong with a ZooKeeper of this machine, and what to do, separated by a
            colon; empty: not known.
        probes: server, as "host:port" -> what it does with a new connection; empty: not known.
    """
    cause, _, advice = trouble.partition(": ")
    if advice:
        why = f"{cause}.".replace("Its ", "The server's ", 1).replace(" its ", " the server's ", 1)
        return causes.Cause(why, f"{advice[:1].upper()}{advice[1:]}")
    said = " ".join(
        words.format(listed(names))
        for way, words in _WORDS.items()
        if (names := [server for server, one in probes.items() if one is way])
    )
    return causes.Cause(said or causes.OF_ZOOKEEPER.why, causes.OF_ZOOKEEPER_AWAY)


_WORDS = {
    ServerProbe.REFUSED: "No server runs at {0}: the machine refuses connections, so the process "
    "has ended.",
    ServerProbe.SILENT: "Nothing answers at {0}: the machine is down or frozen, or the network to "
    "it is cut.",
    ServerProbe.OPEN: "A server at {0} takes connections, but does not answer: it is stopped or "
    "overloaded, its disk is full, or it does not reach most of the other servers.",
}
