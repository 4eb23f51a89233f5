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
    """Return host -> slots for ``words`` such as "node1:4"; slots of a repeated host are added up.

    The hosts are in the order in which they come first. 0 slots are allowed.

    Raises:
        UsageError: a word is not HOST:SLOTS, with a host without colon and an integer of 0 or more.
    """
    hosts: dict[str, int] = {}
    for word in words:
        name, colon, slots = word.rpartition(":")
        is_number = slots.isascii() and slots.isdigit()
        if not colon or not name or ":" in name or not is_number:
            raise UsageError(f"{word!r} is no host with its slots; write HOST:SLOTS, like node1:4")
        hosts[name] = hosts.get(name, 0) + int(slots)
    return hosts


def first_desired(discovered: Mapping[str, int], np: int) -> dict[str, int]:
    """Return host -> workers at the start of a job of ``np`` workers under horovodrun.

    The hosts are filled in the order of their names; a host that gets no worker is left out. If
    ``np`` is at least the number of all slots, all slots are used and every host is in the result;
    the driver of horovodrun then waits for more slots.

    Args:
        discovered: host -> slots, as the host discovery script of the user offers them.
        np: the number of workers.
    """
    if np >= sum(discovered.values()):
        return dict(discovered)
    return {h: n for h, n in place_workers("", np, {}, as_hosts(discovered)).items() if n}


def lines(desired: Mapping[str, int], local: Mapping[str, bool]) -> list[str]:
    """Return the lines "host:workers" that the host discovery script prints.

    They have the order of ``desired``; hosts with 0 workers are left out. Horovod looks for a
    network interface that two hosts have in common. It waits for a second host while there is none,
    even if the only host is the machine on which horovodrun runs. So if that machine is the only
    host, a last line lists it a second time, as "localhost:0" or "127.0.0.1:0".

    Args:
        desired: host -> workers.
        local: host -> whether the host is this machine; it has each host of ``desired`` with a
            worker.
    """
    used = {host: slots for host, slots in desired.items() if slots}
    if len(used) == 1 and all(local[host] for host in used):
        second = next(name for name in LOCAL_NAMES if name not in used)
        used[second] = 0
    return [f"{host}:{slots}" for host, slots in used.items()]
