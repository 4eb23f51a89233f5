"""Hosts and slots as a host discovery script tells them: "name:slots", one a line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from edl.core.job.placement import place
from edl.core.records import as_hosts
from edl.errors import UsageError

LOCAL_NAMES = ("localhost", "127.0.0.1")


def parse(words: Iterable[str]) -> dict[str, int]:
    """``{host: slots}`` of words like "node1:4"; of a host that is named twice, the sum.

    Raises:
        UsageError: a word is no host with its slots.
    """
    hosts: dict[str, int] = {}
    for word in words:
        name, colon, slots = word.rpartition(":")
        if not colon or not name or ":" in name or not slots.isdigit():
            raise UsageError(f"{word!r} is no host with its slots; write HOST:SLOTS, like node1:4")
        hosts[name] = hosts.get(name, 0) + int(slots)
    return hosts


def first_desired(discovered: Mapping[str, int], np: int) -> dict[str, int]:
    """The workers on each host at the start of a job.

    When ``np`` are more than the discovered slots, all, and the driver waits for more.
    """
    if np >= sum(discovered.values()):
        return dict(discovered)
    return {h: n for h, n in place("", np, {}, as_hosts(discovered)).items() if n}


def lines(desired: Mapping[str, int], local: Mapping[str, bool]) -> list[str]:
    """What the script prints.

    Horovod looks for a network interface that two hosts have in common, and waits for a second
    host as long as there is none, also when the only one is its own machine. So that machine is
    named twice, the second time without a slot. ``local``: of each host, whether it is that
    machine.
    """
    used = {host: slots for host, slots in desired.items() if slots}
    if len(used) == 1 and all(local[host] for host in used):
        second = next(name for name in LOCAL_NAMES if name not in used)
        used[second] = 0
    return [f"{host}:{slots}" for host, slots in used.items()]
