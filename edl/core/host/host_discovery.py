"""Read and write the lines of a host discovery script: "name:slots", one for each host.

:func:`parse_hosts` reads the lines, :func:`lines` writes them, and :func:`first_desired` says how
many workers a new job wants on each host. horovodrun calls the script to learn its hosts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from edl.core.job.placement import place_workers
from edl.core.snapshot import as_hosts
from edl.errors import UsageError

LOCAL_NAMES = ("localhost", "127.0.0.1")


def parse_hosts(words: Iterable[str]) -> dict[str, int]:
    """Return host -> slots for `words` such as "node1:4"; slots of a repeated host are added up."""
    hosts: dict[str, int] = {}
    for word in words:
        name, colon, slots = word.rpartition(":")
        is_number = slots.isascii() and slots.isdigit()
        if not colon or not name or ":" in name or not is_number:
            raise UsageError(f"{word!r} is no host with its slots; write HOST:SLOTS, like node1:4")
        hosts[name] = hosts.get(name, 0) + int(slots)
    return hosts


def first_desired(discovered: Mapping[str, int], np: int) -> dict[str, int]:
    """Return host -> workers at the start of a job under horovodrun, filled by name."""
    if np >= sum(discovered.values()):
        return dict(discovered)
    return {h: n for h, n in place_workers("", np, {}, as_hosts(discovered)).items() if n}


def lines(desired: Mapping[str, int], local: Mapping[str, bool]) -> list[str]:
    """Return the lines "host:workers" that the host discovery script prints."""
    used = {host: slots for host, slots in desired.items() if slots}
    if len(used) == 1 and all(local[host] for host in used):
        # Horovod looks for an interface that two hosts have in common, and waits for a second host
        # even if the only one is this machine.
        second = next(name for name in LOCAL_NAMES if name not in used)
        used[second] = 0
    return [f"{host}:{slots}" for host, slots in used.items()]
