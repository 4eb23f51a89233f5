"""Run real ZooKeeper servers that a test may kill, freeze, and start again.

:func:`ensemble` starts one or more, each a :class:`Server`::

    with ensemble(tmp_path, 1) as (server,):
        ...                       # server.hosts: for EDL_ZOOKEEPER
        server.kill()
        server.start()            # with the data it had

They need Java, as ``edl run`` without --zookeeper does. To expire a worker's session, see
:meth:`edl.testing.job.Job.expire`.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from edl import config
from edl.zookeeper.local_server import server_answer, server_command

START_S = 60.0
# Without forceSync a killed server loses nothing; only the end of the whole machine would.
CONFIGURATION = """\
tickTime=500
initLimit=20
syncLimit=10
maxSessionTimeout=60000
dataDir={directory}
clientPort={port}
clientPortAddress={address}
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=ruok,srvr
forceSync=no
"""


class Server:
    """One real ZooKeeper server; a context manager that starts it, and kills it at the end.

    Args:
        directory: a directory for its configuration, data and log, which must not exist yet.
        port: the port for clients.
        address: the address for clients.
        number: its number in an ensemble, from 1.
        peers: the ``server.N`` lines of an ensemble; empty: it is a standalone server.
        enter: a command prefix, such as one that starts the server in a network namespace.
        inside: calls a function where the server can be reached (such as its network namespace).

    Attributes:
        hosts: "address:port", for EDL_ZOOKEEPER.
    """

    def __init__(
        self,
        directory: Path,
        port: int,
        address: str = "127.0.0.1",
        number: int = 1,
        peers: Sequence[str] = (),
        enter: Sequence[str] = (),
        inside: Callable[[Callable[[], str]], str] = lambda function: function(),
    ) -> None:
        self.hosts = f"{address}:{port}"
        self._directory, self._address, self._port = directory, address, port
        self._enter, self._inside = enter, inside
        directory.mkdir()
        (directory / "myid").write_text(str(number))
        lines = [CONFIGURATION.format(directory=directory, port=port, address=address), *peers]
        self._configuration = directory / "zoo.cfg"
        self._configuration.write_text("\n".join(lines) + "\n")
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.kill()

    def start(self, wait: bool = True) -> None:
        """Start the server, with its earlier data if it has run before; ``wait`` until it serves.

        Raises:
            AssertionError: it does not serve within START_S (60) seconds.
        """
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *self._enter,
                    *server_command(config.environment(), self._directory),
                    str(self._configuration),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._directory,
            )
        if wait:
            self.wait_until_it_serves()

    def wait_until_it_serves(self) -> None:
        """Wait until the server serves clients, asking it every 0.1 s.

        Raises:
            AssertionError: it does not within START_S (60) seconds; the text ends with its log.
        """
        deadline = time.monotonic() + START_S
        while "Mode:" not in self._ask():
            assert time.monotonic() < deadline, (self._directory / "log").read_text()[-3000:]
            time.sleep(0.1)

    def kill(self) -> None:
        """End the server as ``kill -9`` does, and wait for its end; its data stay."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)

    def forget(self) -> None:
        """Delete all data of the ended server, as a container without a volume loses them."""
        shutil.rmtree(self._directory / "version-2")

    def freeze(self) -> None:
        """Stop the running server with SIGSTOP, until :meth:`thaw`; its connections stay open."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let the frozen server go on, with SIGCONT."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    @property
    def leads(self) -> bool:
        """Whether this server leads its ensemble; False for a standalone one, or no answer."""
        return "Mode: leader" in self._ask()

    def _ask(self) -> str:
        return self._inside(lambda: server_answer(self._address, self._port))


@contextmanager
def ensemble(
    directory: Path, size: int, address: str = "127.0.0.1"
) -> Iterator[tuple[Server, ...]]:
    """Start ZooKeeper servers for the time of a ``with`` block, which gets them.

    They listen on free ports of 127.0.0.1, and keep their files in ``zoo1``, ``zoo2``, ... of
    ``directory``.

    Args:
        directory: the directory.
        size: the number of servers; with 1 it is a standalone server.
        address: the address of this machine for clients.

    Raises:
        AssertionError: a server does not serve within START_S (60) seconds.
    """
    ports = iter(free_ports(3 * size))
    clients = [next(ports) for _ in range(size)]
    peers = [
        f"server.{number}=127.0.0.1:{next(ports)}:{next(ports)}" for number in range(1, size + 1)
    ]
    peers = peers if size > 1 else []
    servers = [
        Server(directory / f"zoo{number}", port, address, number=number, peers=peers)
        for number, port in enumerate(clients, 1)
    ]
    with ExitStack() as stack:
        for server in servers:
            server.start(wait=False)
            stack.push(server)
        for server in servers:
            server.wait_until_it_serves()
        yield tuple(servers)


def free_ports(count: int) -> list[int]:
    """Return ``count`` TCP ports of 127.0.0.1 on which no process listens at present.

    They are below those that the kernel gives to outgoing connections, one of which could take a
    port before its server is started.
    """
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    drawn = random.SystemRandom()
    found: set[int] = set()
    while len(found) < count:
        port = drawn.randrange(min(10_000, lowest // 2), lowest)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.add(port)
    return sorted(found)
