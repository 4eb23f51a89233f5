"""Build, use, close and break one worker's end of the communicator, the ring.

A ring belongs to one generation. A :class:`Connection` defines how its members find each other and
connect: Horovod's over Gloo (:mod:`edl.ring.gloo`), or one in this process
(:mod:`edl.ring.loopback`).
"""

from __future__ import annotations

import logging
import time
from typing import Any, Protocol

from edl.core.job.topology import WorkerTopology, topology_of
from edl.core.records import Generation
from edl.core.step.step_record import StepRecord, StepRecords, Table
from edl.errors import RendezvousFailed, RingBroken
from edl.ring import frames

logger = logging.getLogger(__name__)


class Collectives(Protocol):
    """The interface of the collectives that edl itself needs.

    Every method raises :class:`CollectiveFailed` when the ring is broken.
    """

    def allgather_start(self, row: Table, name: str) -> Any:
        """Start to send ``row`` to all members, and return a handle for :meth:`allgather_finish`.

        The first dimension of ``row`` may differ between the members.
        """

    def allgather_finish(self, handle: Any) -> Table:
        """Wait for an allgather, and return the rows of all members in rank order."""

    def broadcast_bytes(self, payload: bytes, root: int, name: str) -> bytes:
        """Return the ``payload`` of rank ``root``; the payload of the other members is ignored."""


class RingConnection(Protocol):
    """The interface by which the members of a ring find each other, connect and part."""

    def open(self, where: WorkerTopology, generation: Generation | None) -> None:
        """Connect to the other members of ``generation``, as the rank that ``where`` says.

        Args:
            where: the rank of this worker and its place among the hosts.
            generation: the generation whose members form the ring; None: a ring of one.

        Raises:
            CollectiveFailed: a member did not come, or the generation was aborted. No connection is
                open then.
        """

    def close(self) -> None:
        """Disconnect from the other members; for them the ring ends, too."""

    def cut(self) -> None:
        """Break all connections, also of a ring that is being built. Safe from any thread."""

    def announce_switch(self, generation: Generation) -> None:
        """Tell newcomers that the old members of ``generation`` switch to its ring now.

        Raises:
            RendezvousFailed: the worker that keeps the rendezvous is gone.
        """

    def wait_for_announcement(self, generation: Generation) -> bool:
        """Wait briefly, and return whether the switch to ``generation`` was announced."""


class CollectiveFailed(Exception):
    """The error of a collective or an init that failed, with Horovod's text if there is one."""


class Ring:
    """The communicator of this worker with the others. Only :meth:`break_` is safe from any thread.

    Args:
        collectives: the collectives of a framework.
        connection: how the members connect.

    Attributes:
        generation: the number of the generation whose ring is open, or was last; 0: a ring of one.
        place: the rank of this worker, the size of the ring, and the place among the hosts.
        is_open: whether the ring is built and not closed.
    """

    def __init__(self, collectives: Collectives, connection: RingConnection) -> None:
        self._collectives = collectives
        self._connection = connection
        self._membership: tuple[int, tuple[int, ...]] = (0, ())
        self.generation = 0
        self.place = WorkerTopology(0, 1, 0, 1, 0, 1, 0)
        self.is_open = False

    @property
    def alone(self) -> bool:
        """Whether no other worker is in this ring, so that nothing needs to be sent."""
        return self.place.size == 1

    def build_alone(self) -> None:
        """Build a ring of one, without any rendezvous: for warm-ups and jobs of one worker."""
        self._open(WorkerTopology(0, 1, 0, 1, 0, 1, 0), None)

    def build(self, generation: Generation, rank: int) -> None:
        """Connect to the other members of ``generation`` as ``rank``.

        Raises:
            RendezvousFailed: a member did not come, or the generation was aborted.
        """
        where = topology_of(generation.members, rank)
        self._membership = (generation.number, generation.worker_ids)
        self._open(where, generation)

    def close(self) -> None:
        """Leave the ring, which ends it for the other members, too. Harmless when not open."""
        if self.is_open:
            self._connection.close()
            self.is_open = False
            self._membership = (0, ())

    @property
    def is_building(self) -> bool:
        """Whether :meth:`build` is under way."""
        return self._membership[0] > 0 and not self.is_open

    @property
    def membership(self) -> tuple[int, tuple[int, ...]]:
        """The number and the worker ids of the generation whose ring is open or being built.

        It is ``(0, ())`` if there is none.
        """
        return self._membership

    def break_(self, generation: int | None = None) -> None:
        """Cut all connections of the ring, so that every member fails now instead of waiting.

        Safe from any thread; the thread that owns the ring still has to :meth:`close` it.

        Args:
            generation: cut only the ring of this generation; None: whichever ring there is.
        """
        if generation is None or self._membership[0] == generation:
            self._connection.cut()

    def announce_switch(self, generation: Generation) -> None:
        """Tell the newcomers of ``generation`` that its old members are switching now.

        Raises:
            RendezvousFailed: the worker that keeps the rendezvous is gone.
        """
        self._connection.announce_switch(generation)

    def wait_for_announcement(self, generation: Generation) -> bool:
        """Wait briefly, and return whether the switch to ``generation`` was announced."""
        return self._connection.wait_for_announcement(generation)

    def start_record(self, record: StepRecord) -> Any:
        """Start to send this worker's step record; return a handle for :meth:`finish_record`.

        Raises:
            RingBroken: a worker is gone.
        """
        if self.alone:
            return record
        return self._call(self._collectives.allgather_start, record.encode(), "edl.step_record")

    def finish_record(self, handle: Any) -> StepRecords:
        """Wait for the step records of all workers, and return them in rank order.

        Raises:
            RingBroken: a worker is gone.
        """
        if isinstance(handle, StepRecord):
            return StepRecords.of([handle])
        return StepRecords(self._call(self._collectives.allgather_finish, handle))

    def barrier(self, record: StepRecord) -> None:
        """Return when every member has called it.

        Args:
            record: any step record; it only gives the collective its shape.

        Raises:
            RingBroken: a worker is gone.
        """
        if not self.alone:
            handle = self._call(self._collectives.allgather_start, record.encode(), "edl.barrier")
            self._call(self._collectives.allgather_finish, handle)

    def exchange(self, payload: bytes) -> list[bytes]:
        """Send ``payload`` to all members, and return the payloads of all in rank order.

        The sizes of the payloads may differ.

        Raises:
            RingBroken: a worker is gone.
        """
        if self.alone:
            return [payload]
        frame = frames.pack_frame(payload)
        handle = self._call(self._collectives.allgather_start, frame, "edl.exchange")
        return frames.unpack(self._call(self._collectives.allgather_finish, handle))

    def broadcast(self, payload: bytes, root: int, name: str) -> bytes:
        """Return the ``payload`` of rank ``root``; the payload of the other members is ignored.

        Args:
            payload: the message of this worker.
            root: the rank of the sender.
            name: the name of the collective, the same on all members.

        Raises:
            RingBroken: a worker is gone.
        """
        if self.alone:
            return payload
        return bytes(self._call(self._collectives.broadcast_bytes, payload, root, name))

    def _call(self, function: Any, *arguments: Any) -> Any:
        """Call a collective, and turn :class:`CollectiveFailed` into ``RingBroken``."""
        try:
            return function(*arguments)
        except CollectiveFailed as error:
            raise RingBroken(self.generation, str(error)) from error

    def _open(self, where: WorkerTopology, generation: Generation | None) -> None:
        """Connect as ``where`` says, and note the new ring.

        Raises:
            RendezvousFailed: the connection could not be made.
        """
        number, started = generation.number if generation is not None else 0, time.monotonic()
        try:
            self._connection.open(where, generation)
        except CollectiveFailed as error:
            self._membership = (0, ())
            raise RendezvousFailed(number, str(error)) from error
        self.generation, self.place, self.is_open = number, where, True
        logger.info(
            "generation %d: rank %d of %d, ring built in %.3f s",
            number, where.rank, where.size, time.monotonic() - started,
        )  # fmt: skip
