"""Build, use, close and break the communicator of a worker: its :class:`Ring`.

A ring belongs to one generation. A :class:`RingConnection` defines how its members find each other
and connect: Horovod's over Gloo (:mod:`edl.ring.gloo`), or one in this process for tests
(:mod:`edl.ring.loopback`). :class:`Collectives` sends the messages.
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

    Each framework's binding of Horovod implements it, for the ring that is open. Every method
    raises :class:`CollectiveFailed` when the ring is broken.
    """

    def allgather_start(self, row: Table, name: str, same_shape: bool = False) -> Any:
        """Start to send the table ``row`` to all members, in the allgather named ``name``.

        All members call it with the same ``name``. Their tables may have different numbers of rows.
        The call does not wait for the other members.

        Args:
            row: an array of integers, whose first axis counts the rows. The other axes, if it
                has more than one, are the same on all members.
            name: the name of the allgather.
            same_shape: whether the tables of all members have the same shape, which some bindings
                gather faster; the same on all members.

        Returns:
            A handle for :meth:`allgather_finish`.
        """

    def allgather_finish(self, handle: Any) -> Table:
        """Wait until an allgather is complete, and return the rows of all members as one table.

        ``handle`` is the result of :meth:`allgather_start`. The rows are in rank order, this
        member's included.
        """

    def broadcast_bytes(self, payload: bytes, root: int, name: str) -> bytes:
        """Wait for the bytes that rank ``root`` sends, and return them, on ``root`` too.

        All members call it with the same ``root`` and the same ``name`` of the collective. Only the
        ``payload`` of ``root`` is sent; those of the other members are ignored.
        """


class RingConnection(Protocol):
    """The interface by which the members of a ring find each other, connect and disconnect.

    A :class:`Ring` calls it: one connection object serves all rings of a worker, one after the
    other.
    """

    def open(self, where: WorkerTopology, generation: Generation | None) -> None:
        """Connect to the other members of ``generation``, and return when the ring is complete.

        Args:
            where: the rank of this worker, and its place among the hosts.
            generation: the generation whose members form the ring; None: this worker forms a ring
                alone.

        Raises:
            CollectiveFailed: a member did not come, or the generation was aborted. No connection is
                open then.
        """

    def close(self) -> None:
        """Disconnect by a regular shutdown, which ends the open ring for all its members.

        A ring that was :meth:`cut` is closed in the same way. :meth:`open` may follow.
        """

    def cut(self) -> None:
        """Break all connections of this member, also those being made while a ring is built.

        Every collective of the ring then fails on all members. Without connections it does nothing.
        Safe from any thread; :meth:`close` has to be called all the same.
        """

    def announce_switch(self, generation: Generation) -> None:
        """Tell the newcomers of ``generation`` that its old members begin to build its ring.

        One old member, the state source, calls it right before it closes the old ring.

        Raises:
            RendezvousFailed: the worker whose daemon serves the rendezvous (rank 0) is gone, or the
                daemon does not answer in time.
        """

    def wait_for_announcement(self, generation: Generation) -> bool:
        """Wait up to about 2 s until the old members begin to build the ring of ``generation``.

        Newcomers call it again and again, until the result is True or a newer generation is there.

        Returns:
            Whether the old members have announced it by :meth:`announce_switch`.
        """


class CollectiveFailed(Exception):
    """The error of a collective, or of building a ring, that failed; its text is Horovod's.

    A :class:`Ring` raises RingBroken or RendezvousFailed in its place.
    """


class Ring:
    """One worker's end of the ring, the communicator of all workers in a generation.

    One object serves all rings of a worker, one after the other: each is built, used and closed.
    All methods are for the training thread, except :meth:`break_` and the properties
    :attr:`is_building` and :attr:`membership`, which are safe from any thread.

    Args:
        collectives: the allgather and broadcast of the framework's binding of Horovod.
        connection: the object that connects this worker to the other members.

    Attributes:
        generation: the number of the generation whose ring is open, or was last; 0: no ring was
            built yet, or the last one is that of :meth:`build_alone`.
        place: this worker's rank, the size of the ring, and the worker's place among the hosts, in
            the same ring.
        is_open: whether the ring is built and not closed.
        exchanges: how many calls of :meth:`exchange` have begun in this ring.
        records: how many step records this worker has sent in this ring.
        updates: how many updates an elastic script has made in this ring.
    """

    def __init__(self, collectives: Collectives, connection: RingConnection) -> None:
        self._collectives = collectives
        self._connection = connection
        self._membership: tuple[int, tuple[int, ...]] = (0, ())
        self.generation = 0
        self.place = WorkerTopology(0, 1, 0, 1, 0, 1, 0)
        self.is_open = False
        self.exchanges = self.records = self.updates = 0

    @property
    def alone(self) -> bool:
        """Whether this worker is the only one in the ring, so that nothing needs to be sent.

        It is also True before the first ring is built.
        """
        return self.place.size == 1

    def build_alone(self) -> None:
        """Build a ring of this worker alone, without a rendezvous; the last ring must be closed.

        A newcomer warms up in such a ring, and a job of one worker trains in it.

        Raises:
            RendezvousFailed: Horovod could not build the ring.
        """
        self._open(WorkerTopology(0, 1, 0, 1, 0, 1, 0), None)

    def build(self, generation: Generation, rank: int) -> None:
        """Connect to the other members of ``generation``, and return when the ring is complete.

        The last ring must be closed. ``rank`` is the rank of this worker in the new ring.

        Raises:
            RendezvousFailed: a member did not come, or the generation was aborted. No ring is open
                then.
        """
        where = topology_of(generation.members, rank)
        self._membership = (generation.number, generation.worker_ids)
        self._open(where, generation)

    def close(self) -> None:
        """Leave the open ring, which ends it for all its members; if none is open, do nothing.

        Afterwards :meth:`build` or :meth:`build_alone` may be called again. The attributes
        ``generation`` and ``place`` stay those of the closed ring.
        """
        if self.is_open:
            self._connection.close()
            self.is_open = False
            self._membership = (0, ())

    @property
    def is_building(self) -> bool:
        """Whether a call of :meth:`build` is under way, of whichever generation.

        It is False while a ring is open, and during :meth:`build_alone`. It may be read in any
        thread.
        """
        return self._membership[0] > 0 and not self.is_open

    @property
    def membership(self) -> tuple[int, tuple[int, ...]]:
        """The generation of the ring that is open or being built: its number, then its worker ids.

        The worker ids are in rank order. The value is ``(0, ())`` if no ring is open or being
        built, and in a ring of :meth:`build_alone`. It may be read in any thread.
        """
        return self._membership

    def break_(self, generation: int | None = None) -> None:
        """Cut all connections of this worker to the ring, open or being built.

        Collectives, or the building, then fail on every member without a wait. Safe from any
        thread; the training thread still has to :meth:`close` the ring.

        Args:
            generation: the number of the generation whose ring is cut; if the present ring is of
                another one, nothing happens. None: cut the present ring, whichever it is.
        """
        if generation is None or self._membership[0] == generation:
            self._connection.cut()

    def announce_switch(self, generation: Generation) -> None:
        """Tell the newcomers of ``generation`` that its old members begin to build its ring.

        One old member, the state source, calls it right before it closes the old ring.

        Raises:
            RendezvousFailed: the worker whose daemon serves the rendezvous (rank 0) is gone, or the
                daemon does not answer in time.
        """
        self._connection.announce_switch(generation)

    def wait_for_announcement(self, generation: Generation) -> bool:
        """Wait up to about 2 s until the old members begin to build the ring of ``generation``.

        Newcomers call it again and again, until the result is True or a newer generation is there.

        Returns:
            Whether the old members have announced it by :meth:`announce_switch`.
        """
        return self._connection.wait_for_announcement(generation)

    def start_record(self, record: StepRecord) -> Any:
        """Start to send ``record``, this worker's report on its current step, to all members.

        The call does not wait for the others. In a ring of one worker nothing is sent.

        Returns:
            A handle for :meth:`finish_record`.

        Raises:
            RingBroken: a worker is gone.
        """
        if self.alone:
            return record
        self.records += 1
        return self._call(
            self._collectives.allgather_start, record.encode(), "edl.step_record", True
        )

    def finish_record(self, handle: Any) -> StepRecords:
        """Wait until the step records of all workers have arrived.

        Args:
            handle: the result of :meth:`start_record`.

        Returns:
            The step records of all workers, this one's included, in rank order.

        Raises:
            RingBroken: a worker is gone.
        """
        if isinstance(handle, StepRecord):
            return StepRecords.of([handle])
        return StepRecords(self._call(self._collectives.allgather_finish, handle))

    def barrier(self, record: StepRecord) -> None:
        """Wait until every member has called this method; in a ring of one worker return at once.

        Args:
            record: any step record; its values are ignored, and only give the message its size.

        Raises:
            RingBroken: a worker is gone.
        """
        if not self.alone:
            handle = self._call(self._collectives.allgather_start, record.encode(), "edl.barrier")
            self._call(self._collectives.allgather_finish, handle)

    def exchange_rows(self, record: StepRecord, payload: bytes) -> StepRecords:
        """Send a record with a message instead of a step's, and wait for the records of all.

        Who is in a step meanwhile gets this record instead, and sees that the two do not fit.

        Raises:
            RingBroken: a worker is gone.
        """
        if self.alone:
            return StepRecords(record.encode(payload))
        self.records += 1
        handle = self._call(
            self._collectives.allgather_start, record.encode(payload), "edl.step_record", True
        )
        return StepRecords(self._call(self._collectives.allgather_finish, handle))

    def exchange(self, payload: bytes) -> list[bytes]:
        """Send ``payload`` to all members, and wait for theirs; the sizes may differ.

        All members must call it at the same point. In a ring of one worker it returns at once.

        Returns:
            The payloads of all members, this one's included, in rank order.

        Raises:
            RingBroken: a worker is gone.
        """
        if self.alone:
            return [payload]
        self.exchanges += 1
        frame = frames.pack_frame(payload)
        handle = self._call(self._collectives.allgather_start, frame, "edl.exchange")
        return frames.unpack(self._call(self._collectives.allgather_finish, handle))

    def broadcast(self, payload: bytes, root: int, name: str) -> bytes:
        """Wait for the bytes that rank ``root`` sends, and return them, on ``root`` too.

        All members must call it at the same point. In a ring of one worker it returns ``payload``.

        Args:
            payload: the bytes to send; ignored on all ranks but ``root``.
            root: the rank of the sender.
            name: the name of the collective, the same on all members.

        Raises:
            RingBroken: a worker is gone.
        """
        if self.alone:
            return payload
        return bytes(self._call(self._collectives.broadcast_bytes, payload, root, name))

    def _call(self, function: Any, *arguments: Any) -> Any:
        """Call a function of the collectives, and return what it returns.

        Args:
            function: a method of the :class:`Collectives` that this ring was given.
            arguments: its positional arguments.

        Raises:
            RingBroken: in place of a :class:`CollectiveFailed` from ``function``. Other errors are
                raised as they are.
        """
        try:
            return function(*arguments)
        except CollectiveFailed as error:
            raise RingBroken(self.generation, str(error)) from error

    def _open(self, where: WorkerTopology, generation: Generation | None) -> None:
        """Connect to the members of ``generation``; then set generation, place and is_open.

        Args:
            where: the rank of this worker, and its place among the hosts.
            generation: the generation; None: a ring of this worker alone.

        Raises:
            RendezvousFailed: the connection could not be made. Then :attr:`membership` is
                ``(0, ())``, and the attributes are as before.
        """
        number, started = generation.number if generation is not None else 0, time.monotonic()
        try:
            self._connection.open(where, generation)
        except CollectiveFailed as error:
            self._membership = (0, ())
            raise RendezvousFailed(number, str(error)) from error
        self.generation, self.place, self.is_open = number, where, True
        self.exchanges = self.records = self.updates = 0
        logger.info(
            "generation %d: rank %d of %d, ring built in %.3f s",
            number, where.rank, where.size, time.monotonic() - started,
        )  # fmt: skip
