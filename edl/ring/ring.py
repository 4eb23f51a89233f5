"""Build, use, close and break one worker's end of the communicator, the ring.

A ring belongs to one generation. A :class:`RingConnection` defines how its members find each other
and connect: Horovod's over Gloo (:mod:`edl.ring.gloo`), or one in this process for tests
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
    """The interface of the allgather and the broadcast by which edl sends its own messages.

    Each framework's binding of Horovod implements it. Every method raises :class:`CollectiveFailed`
    when the ring is broken.
    """

    def allgather_start(self, row: Table, name: str) -> Any:
        """Start to send the rows ``row`` to all members, in the allgather named ``name``.

        The number of rows may differ between the members.

        Returns:
            A handle for :meth:`allgather_finish`.
        """

    def allgather_finish(self, handle: Any) -> Table:
        """Wait for the allgather of ``handle``, and return all members' rows in rank order."""

    def broadcast_bytes(self, payload: bytes, root: int, name: str) -> bytes:
        """Return the ``payload`` of rank ``root``; those of the other members are ignored.

        All members call it with the same ``name`` for the collective.
        """


class RingConnection(Protocol):
    """The interface by which the members of a ring find each other, connect and disconnect."""

    def open(self, where: WorkerTopology, generation: Generation | None) -> None:
        """Connect to the other members of ``generation``, with the rank in ``where``.

        Args:
            where: the rank of this worker, and its place among the hosts.
            generation: the generation whose members form the ring; None: a ring of one worker.

        Raises:
            CollectiveFailed: a member did not come, or the generation was aborted. No connection is
                open then.
        """

    def close(self) -> None:
        """Disconnect by a regular shutdown, which ends the ring for all its members."""

    def cut(self) -> None:
        """Break all connections of this member, also those being made while a ring is built.

        Every collective of the ring then fails on all members. Safe from any thread.
        """

    def announce_switch(self, generation: Generation) -> None:
        """Tell the newcomers of ``generation`` that its old members begin to build its ring.

        Raises:
            RendezvousFailed: the worker whose daemon serves the rendezvous (rank 0) is gone.
        """

    def wait_for_announcement(self, generation: Generation) -> bool:
        """Wait about 2 s for the old members to begin to build the ring of ``generation``.

        Returns:
            True if they have announced it; False if not yet: the newcomer calls the method again.
        """


class CollectiveFailed(Exception):
    """The error of a collective, or of building a ring, that failed; its text is Horovod's."""


class Ring:
    """One worker's end of the ring, the communicator of all workers in a generation.

    Only :meth:`break_` is safe from any thread; all else is for the training thread.

    Args:
        collectives: the allgather and broadcast of the framework's binding of Horovod.
        connection: the object that connects this worker to the other members.

    Attributes:
        generation: the number of the generation whose ring is open, or was last; 0: a ring of one
            worker.
        place: this worker's rank, the size of the ring, and the worker's place among the hosts.
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
        """Whether this worker is the only one in the ring, so that nothing needs to be sent."""
        return self.place.size == 1

    def build_alone(self) -> None:
        """Build a ring of this worker alone, without a rendezvous.

        A newcomer warms up in such a ring, and a job of one worker trains in it.
        """
        self._open(WorkerTopology(0, 1, 0, 1, 0, 1, 0), None)

    def build(self, generation: Generation, rank: int) -> None:
        """Connect to the other members of ``generation``, with the rank ``rank`` for this worker.

        Raises:
            RendezvousFailed: a member did not come, or the generation was aborted.
        """
        where = topology_of(generation.members, rank)
        self._membership = (generation.number, generation.worker_ids)
        self._open(where, generation)

    def close(self) -> None:
        """Leave the ring, which ends it for all its members; if it is not open, do nothing."""
        if self.is_open:
            self._connection.close()
            self.is_open = False
            self._membership = (0, ())

    @property
    def is_building(self) -> bool:
        """Whether a call of :meth:`build` is under way, possibly in another thread."""
        return self._membership[0] > 0 and not self.is_open

    @property
    def membership(self) -> tuple[int, tuple[int, ...]]:
        """The generation of the ring that is open or being built: its number, then its worker ids.

        The worker ids are in rank order. ``(0, ())`` if no such ring is open or being built.
        """
        return self._membership

    def break_(self, generation: int | None = None) -> None:
        """Cut all connections of the ring, so that collectives fail on every member without a wait.

        Safe from any thread; the training thread still has to :meth:`close` the ring.

        Args:
            generation: the number of the generation whose ring is cut; if the present ring is of
                another one, nothing happens. None: cut the present ring, whichever it is.
        """
        if generation is None or self._membership[0] == generation:
            self._connection.cut()

    def announce_switch(self, generation: Generation) -> None:
        """Tell the newcomers of ``generation`` that its old members begin to build its ring.

        Raises:
            RendezvousFailed: the worker whose daemon serves the rendezvous (rank 0) is gone.
        """
        self._connection.announce_switch(generation)

    def wait_for_announcement(self, generation: Generation) -> bool:
        """Wait about 2 s for the old members to begin to build the ring of ``generation``.

        Returns:
            True if they have announced it; False if not yet: the newcomer calls the method again.
        """
        return self._connection.wait_for_announcement(generation)

    def start_record(self, record: StepRecord) -> Any:
        """Start to send ``record``, this worker's report on its current step, to all members.

        Returns:
            A handle for :meth:`finish_record`.

        Raises:
            RingBroken: a worker is gone.
        """
        if self.alone:
            return record
        return self._call(self._collectives.allgather_start, record.encode(), "edl.step_record")

    def finish_record(self, handle: Any) -> StepRecords:
        """Wait until the sending that :meth:`start_record` began is complete.

        Args:
            handle: the result of :meth:`start_record`.

        Returns:
            The step records of all workers, in rank order.

        Raises:
            RingBroken: a worker is gone.
        """
        if isinstance(handle, StepRecord):
            return StepRecords.of([handle])
        return StepRecords(self._call(self._collectives.allgather_finish, handle))

    def barrier(self, record: StepRecord) -> None:
        """Wait until every member has called this method.

        Args:
            record: any step record; nobody reads it, it only has the size of a message.

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
        """Return the ``payload`` of rank ``root``; those of the other members are ignored.

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
        """Call ``function``, a collective, with ``arguments`` and return what it returns.

        Raises:
            RingBroken: in place of a :class:`CollectiveFailed` from the collective.
        """
        try:
            return function(*arguments)
        except CollectiveFailed as error:
            raise RingBroken(self.generation, str(error)) from error

    def _open(self, where: WorkerTopology, generation: Generation | None) -> None:
        """Connect to the members of ``generation``, and set the attributes of the new ring.

        Args:
            where: the rank of this worker, and its place among the hosts.
            generation: the generation; None: a ring of this worker alone.

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
