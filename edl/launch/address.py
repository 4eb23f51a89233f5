"""The address under which other hosts of the job reach this one."""

from __future__ import annotations

import ipaddress
import socket

import psutil

_LOOPBACK = "127.0.0.1"


def address_of(interface: str) -> str | None:
    """The IPv4 address of a network interface; None: it has none, or there is no such interface."""
    addresses = psutil.net_if_addrs().get(interface, [])
    return next((str(one.address) for one in addresses if one.family == socket.AF_INET), None)


def own_address(configured: str, zookeeper: str) -> str:
    """``configured``, unless that is loopback and ZooKeeper is on another machine.

    Then it is the address of the interface that leads to ZooKeeper: nothing is sent to find it.
    """
    if configured != _LOOPBACK:
        return configured
    first = zookeeper.split("/")[0].split(",")[0]
    name = first.rpartition(":")[0] if ":" in first else first
    name = name.strip("[]")
    try:
        # IPv4, for Horovod's rendezvous client knows nothing else.
        family, _, _, _, target = socket.getaddrinfo(
            name, 2181, family=socket.AF_INET, type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)
            address = str(probe.getsockname()[0])
    except OSError:
        return configured  # the connection to ZooKeeper will say what is wrong
    return configured if ipaddress.ip_address(address.split("%")[0]).is_loopback else address
