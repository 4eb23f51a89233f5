"""Hosts of their own: network namespaces whose links this process carries, delays, drops and cuts.

::

    with Net("zk", "a", "b") as net:
        subprocess.Popen([*net.enter("a"), "python", ...])     # on host a, net.address("a")
        net.link("a", "b").up = False                            # silence from a to b
        net.every_link(delay_s=0.05, loss=0.01)
        net.lose("b")                                            # its power is gone

Each host has its own host name, which no other one can resolve, and one interface or several,
each on a network of its own: TUN devices whose packets are read and written here. So a link may
do what no tool of this kernel offers (it has neither netem nor iptables): one direction alone,
with any delay and loss, and a cut is silence, without a reset or an unreachable host. Needs root.
"""

from __future__ import annotations

import contextlib
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Self, TypeVar

import psutil

Result = TypeVar("Result")

IP = shutil.which("ip", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") or "ip"
INTERFACE = "edl0"
ETC = Path("/etc/netns")
NOWHERE = {"hosts": "127.0.0.1 localhost\n", "resolv.conf": ""}  # no other name means anything
RENAMED = 'hostname "$0" && exec "$@"'
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
CLONE_NEWNET = 0x40000000


@dataclass
class Link:
    """What happens to the packets from one host to another."""

    up: bool = True
    delay_s: float = 0.0
    loss: float = 0.0  # share of the packets that are dropped, drawn from a fixed seed


class Net:
    """Hosts that see only each other, with addresses 10.77.0.1 and so on.

    On the second of the ``interfaces`` they are 10.77.1.1 and so on.

    ``names``: host names of hosts that are called otherwise than here. ``etc``: files that
    processes on these hosts find in /etc, as {"hosts": "10.77.0.1 a"}.
    """

    def __init__(
        self,
        *hosts: str,
        interfaces: Sequence[str] = (INTERFACE,),
        names: Mapping[str, str] | None = None,
        etc: Mapping[str, str] | None = None,
    ) -> None:
        self.hosts = hosts
        self.interfaces = interfaces
        self.names = {host: host for host in hosts} | dict(names or {})
        self._etc = NOWHERE | dict(etc or {})
        self._mark = uuid.uuid4().hex[:6]
        self._links = {
            (i, a, b): Link() for i in interfaces for a in hosts for b in hosts if a != b
        }
        self._devices: dict[tuple[str, str], int] = {}
        self._targets: dict[tuple[str, bytes], tuple[str, int]] = {}  # by interface and address
        self._chance = random.Random("net")
        self._closing = False
        self._thread = threading.Thread(target=self._carry, name="net", daemon=True)

    def __enter__(self) -> Self:
        try:
            for host in self.hosts:
                _ip("netns", "add", self._namespace(host))
                self._write_etc(host)
                _ip("-n", self._namespace(host), "link", "set", "lo", "up")
                for interface in self.interfaces:
                    self._connect(host, interface)
        except BaseException:
            self._remove()
            raise
        self._thread.start()
        return self

    def _write_etc(self, host: str) -> None:
        directory = self._etc_of(host)
        while not directory.is_dir():
            with contextlib.suppress(FileNotFoundError):  # another net has removed the parent
                directory.mkdir(parents=True)
        for name, text in self._etc.items():
            (directory / name).write_text(text)

    def _connect(self, host: str, interface: str) -> None:
        self._devices[host, interface] = self.inside(host, lambda: _tun(interface))
        self._give(host, interface, self.address(host, interface))
        _ip("-n", self._namespace(host), "link", "set", interface, "up")

    def _give(self, host: str, interface: str, address: str) -> None:
        inside = ("-n", self._namespace(host))
        _ip(*inside, "address", "add", f"{address}/24", "dev", interface)
        target = host, self._devices[host, interface]
        self._targets[interface, socket.inet_aton(address)] = target

    def __exit__(self, *_: object) -> None:
        self._closing = True
        self._thread.join(10)
        self._remove()

    def _remove(self) -> None:
        for device in self._devices.values():
            os.close(device)
        for host in self.hosts:
            subprocess.run([IP, "netns", "delete", self._namespace(host)], capture_output=True)
            shutil.rmtree(self._etc_of(host), ignore_errors=True)
        with contextlib.suppress(OSError):
            ETC.rmdir()  # unless somebody else has hosts, too

    # --- hosts ---

    def address(self, host: str, interface: str = INTERFACE) -> str:
        return f"10.77.{self.interfaces.index(interface)}.{self.hosts.index(host) + 1}"

    def alias(self, host: str, interface: str = INTERFACE) -> str:
        """Give ``host`` a second address on an interface, and say which."""
        network, _, number = self.address(host, interface).rpartition(".")
        second = f"{network}.{int(number) + 100}"
        self._give(host, interface, second)
        return second

    def enter(self, host: str) -> list[str]:
        """Return the words before a command that make it run on ``host``, in the same process."""
        inside = [IP, "netns", "exec", self._namespace(host)]
        return [*inside, "unshare", "--uts", "sh", "-c", RENAMED, self.names[host]]

    def enter_network(self, host: str) -> list[str]:
        """Return such words that change the network only: the name and the files stay as here."""
        return ["nsenter", f"--net=/run/netns/{self._namespace(host)}"]

    def inside(self, host: str, function: Callable[[], Result]) -> Result:
        """Call ``function`` on ``host``: the sockets that it opens are there."""
        results: list[Result] = []

        def run() -> None:
            with open(f"/run/netns/{self._namespace(host)}") as namespace:
                _enter_network(namespace.fileno())
            results.append(function())

        thread = threading.Thread(target=run)  # only this thread changes its namespace
        thread.start()
        thread.join(30)
        assert results, f"no answer on host {host}"
        return results[0]

    @contextlib.contextmanager
    def visited(self, host: str) -> Iterator[None]:
        """Let this thread, what it opens and what it starts be on ``host``; name and /etc stay."""
        with (
            open("/proc/thread-self/ns/net") as home,
            open(f"/run/netns/{self._namespace(host)}") as namespace,
        ):
            _enter_network(namespace.fileno())
            try:
                yield
            finally:
                _enter_network(home.fileno())

    def listening(self, host: str) -> set[tuple[str, int]]:
        """Where processes on ``host`` listen: addresses and ports."""
        return {own for own, _, state in self._tcp(host) if state == "0A"}

    def connected(self, host: str) -> set[tuple[tuple[str, int], tuple[str, int]]]:
        """Both ends of the connections of ``host``, its own first: addresses and ports."""
        return {(own, other) for own, other, state in self._tcp(host) if state == "01"}

    def _tcp(self, host: str) -> list[tuple[tuple[str, int], tuple[str, int], str]]:
        """Both ends and the state of each TCP socket on ``host``, as the kernel's tables say."""

        def look() -> list[str]:
            with open("/proc/thread-self/net/tcp") as v4, open("/proc/thread-self/net/tcp6") as v6:
                return [*v4.readlines()[1:], *v6.readlines()[1:]]

        words = [line.split() for line in self.inside(host, look)]
        return [(_end(one[1]), _end(one[2]), one[3]) for one in words]

    def processes(self, host: str) -> list[psutil.Process]:
        found = []
        for pid in _ip("netns", "pids", self._namespace(host)).split():
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(int(pid))
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def kill(self, host: str) -> None:
        deadline = time.monotonic() + 10.0
        while processes := self.processes(host):
            assert time.monotonic() < deadline, f"these on host {host} do not die: {processes}"
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            time.sleep(0.02)

    def lose(self, host: str) -> None:
        """End ``host`` as a loss of power does: nobody hears that its connections are gone."""
        self.cut(host)
        self.kill(host)

    def _namespace(self, host: str) -> str:
        return f"edl-{self._mark}-{host}"

    def _etc_of(self, host: str) -> Path:
        """Return the directory that `ip netns exec` lays over /etc on ``host``."""
        return ETC / self._namespace(host)

    # --- links ---

    def link(self, source: str, target: str, interface: str = INTERFACE) -> Link:
        return self._links[interface, source, target]

    def every_link(self, delay_s: float = 0.0, loss: float = 0.0) -> None:
        for link in self._links.values():
            link.delay_s, link.loss = delay_s, loss

    def cut(self, host: str, out: bool = True, into: bool = True) -> None:
        """Drop what ``host`` sends, and what is sent to it."""
        for (_, source, target), link in self._links.items():
            link.up = not ((out and source == host) or (into and target == host))

    def heal(self) -> None:
        for link in self._links.values():
            link.up = True

    def _carry(self) -> None:
        owners = {device: place for place, device in self._devices.items()}
        order = count()
        waiting: list[tuple[float, int, int, bytes]] = []
        with select.epoll() as readable:
            for device in owners:
                readable.register(device, select.EPOLLIN)
            while not self._closing:
                pause = waiting[0][0] - time.monotonic() if waiting else 0.1
                for device, _ in readable.poll(min(0.1, max(0.0, pause))):
                    source, interface = owners[device]
                    for packet in _packets(device):
                        host, target = self._targets.get((interface, packet[16:20]), ("", -1))
                        link = self._links.get((interface, source, host))
                        if link is None or not link.up or self._chance.random() < link.loss:
                            continue
                        due = time.monotonic() + link.delay_s
                        heapq.heappush(waiting, (due, next(order), target, packet))
                while waiting and waiting[0][0] <= time.monotonic():
                    _, _, target, packet = heapq.heappop(waiting)
                    _write(target, packet)


def _enter_network(namespace: int) -> None:
    """Move this thread into the network namespace of an open file."""
    if ctypes.CDLL(None, use_errno=True).setns(namespace, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


def _tun(interface: str) -> int:
    """Open a TUN device in this thread's namespace, and return its descriptor, for IP packets."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", interface.encode(), IFF_TUN | IFF_NO_PI))
    return device


def _packets(device: int) -> list[bytes]:
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


def _ip(*words: str) -> str:
    done = subprocess.run([IP, *words], capture_output=True, text=True)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr} (it needs root)"
    return done.stdout


def _end(text: str) -> tuple[str, int]:
    """Address and port as the kernel's tables write them: words of 32 bits, in its byte order."""
    address, _, port = text.partition(":")
    words = [address[start : start + 8] for start in range(0, len(address), 8)]
    raw = b"".join(struct.pack("=I", int(word, 16)) for word in words)
    family = socket.AF_INET if len(raw) == 4 else socket.AF_INET6
    return socket.inet_ntop(family, raw), int(port, 16)
