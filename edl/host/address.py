"""Choose the address under which other hosts of the job reach this host.

Always an IPv4 address, never a host name: no process of the job has to resolve another's name.
"""

from __future__ import annotations

import ipaddress
import socket

import psutil

from edl import horovod_build
from edl.config import LOOPBACK
from edl.errors import UsageError


def address_of(interface: str) -> str | None:
    return next(iter(_addresses().get(interface, ())), None)


def own_address(configured: str, interface: str, zookeeper: str) -> str:
    """Return the IPv4 address of this host at which the job's other hosts reach it."""
    given = ""
    if configured:
        try:
            # IPv4, for Horovod's rendezvous client knows nothing else.
            found = socket.getaddrinfo(configured, None, family=socket.AF_INET)
        except OSError:
            raise UsageError(
                f"the address {configured} cannot be resolved on this host; give a number, there "
                f"are {_listed(_addresses())}"
            ) from None
        given = str(found[0][4][0])
    if interface:
        there = _addresses()
        usable = there.get(interface, ())
        if not usable:
            raise UsageError(
                f"there is no network interface {interface} with an IPv4 address on this host; "
                f"there are {_listed(there)}"
            )
        if given and given not in usable:
            raise UsageError(
                f"{given} is no address of the network interface {interface}; there are "
                f"{_listed(there)}"
            )
        return given or usable[0]
    if given:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((given, 0))
            except OSError:
                raise UsageError(
                    f"{given} is no address of this host; there are {_listed(_addresses())}"
                ) from None
        return given
    servers = zookeeper.split("/")[0].split(",")
    # The address from which this host would send to a server that is not on it.
    return next(filter(None, map(_towards, servers)), LOOPBACK)


def _towards(server: str) -> str | None:
    """Return the IPv4 address of this host from which it would send to a server; send nothing."""
    name = server.rpartition(":")[0] if ":" in server else server
    name = name.strip("[]")
    try:
        family, _, _, _, target = socket.getaddrinfo(
            name, 2181, family=socket.AF_INET, type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)
            address = str(probe.getsockname()[0])
    except OSError:
        return None  # the connection to ZooKeeper will say what is wrong
    return None if ipaddress.ip_address(address).is_loopback else address


def _addresses() -> dict[str, tuple[str, ...]]:
    found = {
        name: tuple(str(one.address) for one in entries if one.family == socket.AF_INET)
        for name, entries in psutil.net_if_addrs().items()
    }
    return {name: own for name, own in sorted(found.items()) if own}


def _listed(addresses: dict[str, tuple[str, ...]]) -> str:
    return ", ".join(f"{name} ({', '.join(own)})" for name, own in addresses.items())


def check_own_name() -> None:
    """Raise an error if workers on this host would crash because its name does not resolve."""
    if horovod_build.ADDRESS in horovod_build.applied():
        return
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        raise UsageError(
            f"this host's own name, {name}, does not resolve, and the Horovod that is installed "
            "here crashes then; run `edl build-horovod`, which mends that, or add the name to "
            "/etc/hosts"
        ) from None
