"""One worker's end of the communicator: build it, use it, close it, break it.

A ring belongs to one generation. How its members find each other and connect is a
:class:`Connection`: Horovod's over Gloo (:mod:`edl.ring.gloo`), or one in this process
(:mod:`edl.ring.loopback`).
"""

from __future__ import annotations

import logging
import time
from typing import Any, Protocol

from edl.core.job.topology import Place, place
from edl.core.records import Generation
from edl.core.step.step_record import StepRecord, StepRecords, Table
from edl.errors import RendezvousFailed, RingBroken
from edl.ring import frames

logger = logging.getLogger(__name__)


class Collectives(Protocol):
    """The collectives that edl itself needs.

    Every method raises :class:`CollectiveFailed` when the ring is broken.
    """

    def allgather_start(self, row: Table, name: str) -> Any:
        """Send ``row``; the first dimension may differ between the members."""

    def allgather_finish(self, handle: Any) -> Table: ...

    def broadcast_bytes(self, payload: bytes, root: int, name: str) -> bytes: ...


class Connection(Protocol):
    """How the members of a ring find each other, connect and part."""

    def open(self, where: Place, generation: Generation | None) -> None:
        """Connect to the other members of ``generation``; None: a world of one.

        Raises:
            CollectiveFailed: a member did not come, or the generation was aborted. Nothing is
                open then.
        """

    def close(self) -> None:
        """Part from the others; for them it is the end of the ring, too."""

    def cut(self) -> None:
        """Break all connections, of a ring that is being built, too. Safe from any thread."""

    def announce_switch(self, generation: Generation) -> None:
        """Tell newcomers that the old members of ``generation`` are on their way into its ring.

        Raises:
            RendezvousFailed: who keeps its rendezvous is gone.
        """

    def wait_for_announcement(self, generation: Generation) -> bool:
        """Whether the old members of ``generation`` have said so; waits for it, briefly."""


class CollectiveFailed(Exception):
    """A collective or an init failed; the text is Horovod's where it is there."""


class Ring:
    """The communicator of this process. Not thread-safe, except for :meth:`break_`."""

    def __init__(self, collectives: Collectives, connection: Connection) -> None:
        self._collectives = collectives
        self._connection = connection
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
        self._open(Place(0, 1, 0, 1, 0, 1, 0), None)

    def build(self, generation: Generation, rank: int) -> None:
        """Connect to the other members of ``generation`` as ``rank``.

        Raises:
            RendezvousFailed: a member did not come, or the generation was aborted.
        """
        where = place(generation.members, rank)
        self._membership = (generation.number, generation.worker_ids)
        self._open(where, generation)

    def close(self) -> None:
        """Leave the ring; for the others this is the end of it too. Harmless when not open."""
        if self.is_open:
            self._connection.close()
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
            self._connection.cut()

    def announce_switch(self, generation: Generation) -> None:
        """Tell the newcomers of ``generation`` that its old members are switching now.

        Raises:
            RendezvousFailed: who keeps its rendezvous is gone.
        """
        self._connection.announce_switch(generation)

    def wait_for_announcement(self, generation: Generation) -> bool:
        """Whether they have said so; waits for it, briefly."""
        return self._connection.wait_for_announcement(generation)

    def start_record(self, record: StepRecord) -> Any:
        """Send this worker's row of a step; :meth:`finish_record` returns everybody's."""
        if self.alone:
            return record
        return self._call(self._collectives.allgather_start, record.encode(), "edl.step_record")

    def finish_record(self, handle: Any) -> StepRecords:
        """Wait for the rows of all workers, in rank order.

        Raises:
            RingBroken: a worker is gone.
        """
        if isinstance(handle, StepRecord):
            return StepRecords.of([handle])
        return StepRecords(self._call(self._collectives.allgather_finish, handle))

    def barrier(self, record: StepRecord) -> None:
        """Return when every member has called it. ``record`` only gives the call its shape."""
        if not self.alone:
            handle = self._call(self._collectives.allgather_start, record.encode(), "edl.barrier")
            self._call(self._collectives.allgather_finish, handle)

    def exchange(self, payload: bytes) -> list[bytes]:
        """Return the payloads of all members, in rank order; each of any size.

        Raises:
            RingBroken: a worker is gone.
        """
        if self.alone:
            return [payload]
        frame = frames.pack(payload)
        handle = self._call(self._collectives.allgather_start, frame, "edl.exchange")
        return frames.unpack(self._call(self._collectives.allgather_finish, handle))

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

    def _open(self, where: Place, generation: Generation | None) -> None:
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
