"""Hosts of their own: network namespaces whose links this process carries, delays, drops and cuts.

::

    with Net("zk", "a", "b") as net:
        subprocess.Popen([*net.enter("a"), "python", ...])     # on host a, net.address("a")
        net.link("a", "b").up = False                            # silence from a to b
        net.every_link(delay_s=0.05, loss=0.01)

Each host has one interface, a TUN device whose packets are read and written here. So a link may
do what no tool of this kernel offers (it has neither netem nor iptables): one direction alone,
with any delay and loss, and a cut is silence, without a reset or an unreachable host. Needs root.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import random
import select
import shutil
import socket
import struct
import subprocess
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from types import TracebackType
from typing import Self, TypeVar

Result = TypeVar("Result")

IP = shutil.which("ip", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") or "ip"
INTERFACE = "edl0"
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
CLONE_NEWNET = 0x40000000


@dataclass
class Link:
    """What happens to the packets from one host to another."""

    up: bool = True
    delay_s: float = 0.0
    loss: float = 0.0  # share of the packets that are dropped, drawn from a fixed seed


class Net:
    """Hosts by name, with addresses 10.77.0.1 and so on, that see only each other."""

    def __init__(self, *hosts: str) -> None:
        self.hosts = hosts
        self._mark = uuid.uuid4().hex[:6]
        self._links = {(a, b): Link() for a in hosts for b in hosts if a != b}
        self._devices: dict[str, int] = {}
        self._chance = random.Random("net")
        self._closing = False
        self._thread = threading.Thread(target=self._carry, name="net", daemon=True)

    def __enter__(self) -> Self:
        try:
            for host in self.hosts:
                _ip("netns", "add", self._namespace(host))
                self._devices[host] = self.inside(host, _tun)
                inside = ("-n", self._namespace(host))
                _ip(*inside, "link", "set", "lo", "up")
                _ip(*inside, "address", "add", f"{self.address(host)}/24", "dev", INTERFACE)
                _ip(*inside, "link", "set", INTERFACE, "up")
        except BaseException:
            self._remove()
            raise
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closing = True
        self._thread.join(10)
        self._remove()

    def _remove(self) -> None:
        for device in self._devices.values():
            os.close(device)
        for host in self.hosts:
            subprocess.run([IP, "netns", "delete", self._namespace(host)], capture_output=True)

    # --- hosts ---

    def address(self, host: str) -> str:
        return f"10.77.0.{self.hosts.index(host) + 1}"

    def enter(self, host: str) -> list[str]:
        """The words before a command that make it run on ``host``."""
        return [IP, "netns", "exec", self._namespace(host)]

    def inside(self, host: str, function: Callable[[], Result]) -> Result:
        """Call ``function`` on ``host``: the sockets that it opens are there."""
        results: list[Result] = []

        def run() -> None:
            with open(f"/run/netns/{self._namespace(host)}") as namespace:
                if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), "setns")
            results.append(function())

        thread = threading.Thread(target=run)  # only this thread changes its namespace
        thread.start()
        thread.join(30)
        assert results, f"no answer on host {host}"
        return results[0]

    def listening(self, host: str) -> set[tuple[str, int]]:
        """Where processes on ``host`` listen: addresses and ports."""

        def look() -> set[tuple[str, int]]:
            with open("/proc/thread-self/net/tcp") as v4, open("/proc/thread-self/net/tcp6") as v6:
                lines = [*v4.readlines()[1:], *v6.readlines()[1:]]
            words = [line.split() for line in lines]
            ends = [one[1].partition(":") for one in words if one[3] == "0A"]
            return {(_address(address), int(port, 16)) for address, _, port in ends}

        return self.inside(host, look)

    def _namespace(self, host: str) -> str:
        return f"edl-{self._mark}-{host}"

    # --- links ---

    def link(self, source: str, target: str) -> Link:
        return self._links[source, target]

    def every_link(self, delay_s: float = 0.0, loss: float = 0.0) -> None:
        for link in self._links.values():
            link.delay_s, link.loss = delay_s, loss

    def cut(self, host: str, out: bool = True, into: bool = True) -> None:
        """Drop what ``host`` sends, and what is sent to it."""
        for (source, target), link in self._links.items():
            link.up = not ((out and source == host) or (into and target == host))

    def heal(self) -> None:
        for link in self._links.values():
            link.up = True

    def _carry(self) -> None:
        owners = {device: host for host, device in self._devices.items()}
        by_address = {socket.inet_aton(self.address(host)): host for host in self.hosts}
        order = count()
        waiting: list[tuple[float, int, int, bytes]] = []
        with select.epoll() as readable:
            for device in owners:
                readable.register(device, select.EPOLLIN)
            while not self._closing:
                pause = waiting[0][0] - time.monotonic() if waiting else 0.1
                for device, _ in readable.poll(min(0.1, max(0.0, pause))):
                    for packet in _packets(device):
                        link = self._links.get((owners[device], by_address.get(packet[16:20], "")))
                        if link is None or not link.up or self._chance.random() < link.loss:
                            continue
                        target = self._devices[by_address[packet[16:20]]]
                        due = time.monotonic() + link.delay_s
                        heapq.heappush(waiting, (due, next(order), target, packet))
                while waiting and waiting[0][0] <= time.monotonic():
                    _, _, target, packet = heapq.heappop(waiting)
                    _write(target, packet)


def _tun() -> int:
    """A TUN device in this thread's namespace: a descriptor that gives and takes IP packets."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", INTERFACE.encode(), IFF_TUN | IFF_NO_PI))
    return device


def _packets(device: int) -> list[bytes]:
    """What there is to read; IPv4 only."""
    packets = []
    while True:
        try:
            packet = os.read(device, 65536)
        except BlockingIOError:
            return packets
        if packet[0] >> 4 == 4:
            packets.append(packet)


def _write(device: int, packet: bytes) -> None:
    try:
        os.write(device, packet)
    except OSError:
        return  # its queue is full, as a router's may be


def _ip(*words: str) -> None:
    done = subprocess.run([IP, *words], capture_output=True, text=True)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr} (it needs root)"


def _address(hexadecimal: str) -> str:
    """An address as the kernel's tables write it: words of 32 bits in the machine's order."""
    words = [hexadecimal[start : start + 8] for start in range(0, len(hexadecimal), 8)]
    raw = b"".join(struct.pack("=I", int(word, 16)) for word in words)
    return socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw)
