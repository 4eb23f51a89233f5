"""One worker's end of the Horovod communicator: build it, use it, close it, break it.

A ring belongs to one generation. Its members find each other through the rendezvous store in
the daemon of rank 0 (:mod:`edl.ring.rendezvous`), under the generation's own scope.
"""

from __future__ import annotations

import logging
import socket
import time
from typing import Any, Protocol

import numpy as np
import psutil

from edl import config, horovod_build
from edl.core.job.topology import Place, place
from edl.core.records import Generation
from edl.core.step.step_record import StepRecord, Table, decode
from edl.errors import RendezvousFailed, RingBroken
from edl.ring.rendezvous import rendezvous_environment
from edl.ring.sockets import RingSockets

logger = logging.getLogger(__name__)


class Collectives(Protocol):
    """What edl needs of one of Horovod's framework bindings.

    Every method raises :class:`CollectiveFailed` when Horovod reports a broken ring.
    """

    def init(self) -> None: ...

    def shutdown(self) -> None: ...

    def allgather_start(self, row: Table, name: str) -> Any: ...

    def allgather_finish(self, handle: Any) -> Table: ...

    def broadcast_bytes(self, payload: bytes, root: int, name: str) -> bytes: ...


class CollectiveFailed(Exception):
    """Horovod says that a collective or an init failed; the text is Horovod's."""


class Ring:
    """The communicator of this process. Not thread-safe, except for :meth:`break_`."""

    def __init__(self, collectives: Collectives, address: str) -> None:
        self._collectives = collectives
        self._interface = _interface_for(address)
        self._sockets = RingSockets()
        self._membership: tuple[int, tuple[int, ...]] = (0, ())
        self.generation = 0
        self.place = Place(0, 1, 0, 1, 0, 1, 0)
        self.is_open = False

    @property
    def alone(self) -> bool:
        """No other worker is in this ring: nothing needs to be sent."""
        return self.place.size == 1

    def build_alone(self) -> None:
        """A world of one, without any rendezvous: for warm-ups and jobs of one worker."""
        self._init(0, Place(0, 1, 0, 1, 0, 1, 0), {})

    def build(self, generation: Generation, rank: int) -> None:
        """Connect to the other members of ``generation`` as ``rank``.

        Raises:
            RendezvousFailed: a member did not come, or the generation was given up.
        """
        where = place(generation.seats, rank)
        self._membership = (generation.number, generation.members)
        if where.size == 1:
            self._init(generation.number, where, {})
            return
        root = generation.seats[0]
        self._init(
            generation.number,
            where,
            rendezvous_environment(root.address, root.port, generation.scope),
            root.port,
        )

    def close(self) -> None:
        """Leave the ring; for the others this is the end of it too. Harmless when not open."""
        if self.is_open:
            self._collectives.shutdown()
            self._sockets.forget()
            self.is_open = False
            self._membership = (0, ())

    @property
    def is_building(self) -> bool:
        """:meth:`build` is under way."""
        return self._membership[0] > 0 and not self.is_open

    @property
    def membership(self) -> tuple[int, tuple[int, ...]]:
        """Number and members of the generation whose ring stands or is being built; () if none."""
        return self._membership

    def break_(self, generation: int | None = None) -> None:
        """Cut all connections of the ring, so that every member fails now instead of waiting.

        Safe from any thread; the owner still has to :meth:`close`. With ``generation`` only if
        it is that generation's ring.
        """
        if generation is None or self._membership[0] == generation:
            self._sockets.shut()

    def start_record(self, record: StepRecord) -> Any:
        """Send this worker's row of a step; :meth:`finish_record` returns everybody's."""
        if self.alone:
            return record
        return self._call(self._collectives.allgather_start, record.encode(), "edl.step_record")

    def finish_record(self, handle: Any) -> tuple[StepRecord, ...]:
        """Wait for the rows of all workers, in rank order.

        Raises:
            RingBroken: a worker is gone.
        """
        if isinstance(handle, StepRecord):
            return (handle,)
        return decode(self._call(self._collectives.allgather_finish, handle))

    def barrier(self, record: StepRecord) -> None:
        """Return when every member has called it. ``record`` only gives the call its shape."""
        if not self.alone:
            handle = self._call(self._collectives.allgather_start, record.encode(), "edl.barrier")
            self._call(self._collectives.allgather_finish, handle)

    def exchange(self, values: list[float]) -> list[list[float]]:
        """The ``values`` of all members, in rank order; as many from each.

        Raises:
            RingBroken: a worker is gone.
        """
        if self.alone:
            return [values]
        row = np.array([values], dtype=np.float64).view(np.int64)
        handle = self._call(self._collectives.allgather_start, row, "edl.exchange")
        rows: Table = self._call(self._collectives.allgather_finish, handle)
        told: list[list[float]] = np.ascontiguousarray(rows).view(np.float64).tolist()
        return told

    def broadcast(self, payload: bytes, root: int, name: str) -> bytes:
        """``payload`` of the rank ``root``; the others' payload is ignored."""
        if self.alone:
            return payload
        return bytes(self._call(self._collectives.broadcast_bytes, payload, root, name))

    def _call(self, function: Any, *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except CollectiveFailed as error:
            raise RingBroken(self.generation, str(error)) from error

    def _init(
        self, generation: int, where: Place, rendezvous: dict[str, str], store_port: int = 0
    ) -> None:
        started = time.monotonic()
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
                "HOROVOD_GLOO_RENDEZVOUS_ADDR": None,
                "HOROVOD_GLOO_RENDEZVOUS_PORT": None,
                **rendezvous,
            }
        )
        before = self._sockets.before(store_port)
        try:
            self._collectives.init()
        except CollectiveFailed as error:
            self._collectives.shutdown()
            self._membership = (0, ())
            raise RendezvousFailed(generation, str(error)) from error
        self._sockets.remember(before)
        # Horovod's Python side reads it later: the size may change, and is no constant in a graph.
        config.set_environment({"HOROVOD_ELASTIC": "1"})
        self.generation, self.place, self.is_open = generation, where, True
        logger.info(
            "generation %d: rank %d of %d, ring built in %.3f s",
            generation, where.rank, where.size, time.monotonic() - started,
        )  # fmt: skip


def _interface_for(address: str) -> str:
    """What makes Gloo use ``address``: the interface that has it as its first one.

    Of an interface with several, Gloo takes the first; to name another one instead needs an edit
    of Horovod. Without that the ring is at the first address of that interface.
    """
    for name, entries in psutil.net_if_addrs().items():
        own = [entry.address for entry in entries if entry.family == socket.AF_INET]
        if address in own and (
            address == own[0] or horovod_build.ADDRESS not in horovod_build.applied()
        ):
            return name
    return address
