"""Build Horovod's ring over Gloo: set the environment of ``hvd.init()``, cut connections.

The members of a ring find each other through the rendezvous store (a key-value store over HTTP) in
the daemon of rank 0, see :mod:`edl.ring.rendezvous`. Each generation has its own scope there, an
unguessable prefix of the keys. The main entry is :func:`gloo_ring`, whose ring uses a
:class:`GlooConnection` and a framework's :class:`Binding`.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import psutil

from edl import config, horovod_build
from edl.core.job.topology import WorkerTopology
from edl.core.records import Generation
from edl.errors import ConfigError, RendezvousFailed, RingError
from edl.http import client
from edl.ring.rendezvous import BULK, rendezvous_environment
from edl.ring.ring import CollectiveFailed, Collectives, Ring
from edl.ring.sockets import RingSockets

GO = "edl/go"  # key in a generation's rendezvous scope: its old members are switching now
GO_SLICE_S = 2.0  # how long a newcomer waits for it before it looks for a newer generation

LIBRARIES = ("HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS")  # MPI, oneCCL or Gloo
FILES = ("HOROVOD_TIMELINE", "HOROVOD_AUTOTUNE_LOG")  # rank 0 of each ring writes its own
NO_FILE_YET = "DYNAMIC"  # a timeline that waits for hvd.start_timeline()


class Binding(Collectives, Protocol):
    """The interface of a Horovod binding that a ring uses; only the training thread calls it."""

    def init(self) -> None:
        """Call `hvd.init()`, which builds the ring that the HOROVOD_... variables describe."""

    def shutdown(self) -> None:
        """Leave the ring by `hvd.shutdown()`, which ends it for all members."""


def gloo_ring(binding: Binding, address: str, go_timeout_s: float = 10.0) -> Ring:
    """Return a new Ring object that communicates by Horovod over Gloo; it is not connected yet."""
    refuse_other_libraries(config.environment())
    return Ring(binding, GlooConnection(binding, address, go_timeout_s))


class GlooConnection:
    """The connections of this worker to the other members of its ring, by Horovod over Gloo."""

    def __init__(self, binding: Binding, address: str, go_timeout_s: float) -> None:
        self._binding = binding
        self._interface = _interface_for(address)
        self._sockets = RingSockets()
        self._go_timeout_s = go_timeout_s

    def open(self, where: WorkerTopology, generation: Generation | None) -> None:
        """Build the ring of `generation`, after the former one was closed, with `hvd.init()`."""
        rendezvous: dict[str, str] = {}
        store_port, user = 0, config.environment()
        if generation is not None and where.size > 1:
            root = generation.members[0]
            store_port = root.port
            rendezvous = rendezvous_environment(root.address, root.port, generation.scope)
        config.set_environment(
            {
                "HOROVOD_RANK": str(where.rank),
                "HOROVOD_SIZE": str(where.size),
                "HOROVOD_LOCAL_RANK": str(where.local_rank),
                "HOROVOD_LOCAL_SIZE": str(where.local_size),
                "HOROVOD_CROSS_RANK": str(where.cross_rank),
                "HOROVOD_CROSS_SIZE": str(where.cross_size),
                # Names the host in rendezvous keys only; a number needs no quoting.
                "HOROVOD_HOSTNAME": f"host{where.host_index}",
                "HOROVOD_CONTROLLER": "gloo",
                "HOROVOD_CPU_OPERATIONS": "gloo",
                "HOROVOD_GLOO_IFACE": self._interface,
                # Rank and size come from us; Horovod must not ask an elastic driver for them.
                "HOROVOD_ELASTIC": "0",
                # At each death Horovod logs an error, with the path of its source: edl tells of it.
                "HOROVOD_LOG_LEVEL": user.get("HOROVOD_LOG_LEVEL", "fatal"),
                "HOROVOD_GLOO_RENDEZVOUS_ADDR": None,
                "HOROVOD_GLOO_RENDEZVOUS_PORT": None,
                BULK: None,
                **rendezvous,
                **files_of_ring(user, generation.number if where.size > 1 and generation else None),
            }
        )
        before = self._sockets.before(store_port)
        try:
            self._binding.init()
        except CollectiveFailed:
            self._binding.shutdown()
            raise
        finally:
            config.set_environment({name: user.get(name) for name in FILES})
        self._sockets.remember(before)
        # Horovod's Python side reads it later: the size may change, and is no constant in a graph.
        config.set_environment({"HOROVOD_ELASTIC": "1"})

    def close(self) -> None:
        """Leave the ring with `hvd.shutdown()`, which ends it for all members."""
        self._binding.shutdown()
        self._sockets.forget()

    def cut(self) -> None:
        """Cut the connections to the ring, also while it is built; safe from any thread."""
        self._sockets.shut()

    def announce_switch(self, generation: Generation) -> None:
        """Tell the newcomers of `generation` that its old members begin to build its ring."""
        root = generation.members[0]
        path = client.rendezvous_path(root.port, generation.scope, GO)
        try:
            client.http_put(root.address, root.port, path, b"go", self._go_timeout_s)
        except ConnectionRefusedError as error:
            raise RendezvousFailed(generation.number, f"w{root.id} is gone: {error}") from error

    def wait_for_announcement(self, generation: Generation) -> bool:
        """Wait up to 2 s for the old members to begin to build the ring of `generation`."""
        root = generation.members[0]
        path = client.rendezvous_path(root.port, generation.scope, GO)
        try:
            status, _ = client.fetch(root.address, root.port, path, timeout_s=GO_SLICE_S)
        except (RingError, OSError):
            time.sleep(0.05)
            return False
        return status == 200


def files_of_ring(user: Mapping[str, str], generation: int | None) -> dict[str, str | None]:
    """Return the values of HOROVOD_TIMELINE and HOROVOD_AUTOTUNE_LOG for one ring."""
    # Horovod empties a file that it opens, so each ring has its own: timeline.g3.json. A ring of
    # one worker writes none.
    values: dict[str, str | None] = {}
    for name in FILES:
        file = user.get(name)
        if file and generation is not None and file != NO_FILE_YET:
            path = Path(file)
            file = str(path.with_name(f"{path.stem}.g{generation}{path.suffix}"))
        elif file and generation is None:
            file = NO_FILE_YET if name == "HOROVOD_TIMELINE" else None
        values[name] = file
    return values


def refuse_other_libraries(user: Mapping[str, str]) -> None:
    """Raise ConfigError if the user's settings let Horovod use another library than Gloo."""
    for name in LIBRARIES:
        library = user.get(name, "")
        if library.lower() not in ("", "gloo"):
            raise ConfigError(
                name,
                f"{name} is {library}, and only a ring of Gloo's can change while a job trains: "
                "unset it",
            )


def _interface_for(address: str) -> str:
    """Return the value of HOROVOD_GLOO_IFACE that makes Gloo use the IPv4 address `address`."""
    # Gloo takes the first address of an interface. A patched Horovod also accepts an address.
    for name, entries in psutil.net_if_addrs().items():
        own = [entry.address for entry in entries if entry.family == socket.AF_INET]
        if address in own and (
            address == own[0] or horovod_build.ADDRESS not in horovod_build.applied()
        ):
            return name
    return address
