"""Build, use, close and break the communicator of a worker: its :class:`Ring`.

A ring belongs to one generation. A :class:`RingConnection` defines how its members find each other
and connect: Horovod's over Gloo (:mod:`edl.ring.gloo`), or one in this process for tests
(:mod:`edl.ring.loopback`). :class:`Collectives` sends the messages.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from edl.errors import RendezvousFailed, RingBroken
from edl.records import Generation, RingMember
from edl.step.record import StepRecord, StepRecords, Table

logger = logging.getLogger(__name__)


# ------------------------------------------------------------
# A worker's place in a ring, in Horovod's terms. All ranks and indices begin at 0.


@dataclass(frozen=True)
class WorkerTopology:
    rank: int
    size: int
    local_rank: int  # among the workers of its host
    local_size: int
    cross_rank: int  # among the hosts that have a worker with the same local rank
    cross_size: int
    host_index: int  # among the hosts of the ring, in the order of their first ranks


def topology_of(members: Sequence[RingMember], rank: int) -> WorkerTopology:
    hosts = list(dict.fromkeys(member.host for member in members))
    by_host = {
        host: [r for r, member in enumerate(members) if member.host == host] for host in hosts
    }
    mine = by_host[members[rank].host]
    local_rank = mine.index(rank)
    peers = [host for host in hosts if len(by_host[host]) > local_rank]
    return WorkerTopology(
        rank=rank,
        size=len(members),
        local_rank=local_rank,
        local_size=len(mine),
        cross_rank=peers.index(members[rank].host),
        cross_size=len(peers),
        host_index=hosts.index(members[rank].host),
    )


# ------------------------------------------------------------
# Send messages of different lengths in one allgather, each as int64 numbers after its length.
#
# In Horovod's allgather each worker may contribute a different number of rows. So one collective
# carries the messages of all workers, and a short message is not padded to the longest one. The
# sender calls `pack_frame`, and each receiver calls `unpack` on the gathered vector.

WORD_BYTES = 8  # the size of an integer in a Table


def pack_frame(payload: bytes | memoryview) -> Table:
    """Return `payload` as a vector of int64: its length in bytes, then its bytes, 8 to a number."""
    size = len(payload)
    frame: Table = np.empty(1 + -(-size // WORD_BYTES), dtype=np.int64)
    frame[-1] = 0  # what fills up the last word
    frame[0] = size
    frame.view(np.uint8)[WORD_BYTES : WORD_BYTES + size] = np.frombuffer(payload, dtype=np.uint8)
    return frame


def unpack(frames: Table) -> list[bytes]:
    """Return the payloads in `frames`, a concatenation of vectors made by `pack_frame`."""
    payloads, at = [], 0
    data = np.ascontiguousarray(frames).view(np.uint8)
    while at < len(frames):
        size, begin = int(frames[at]), (at + 1) * WORD_BYTES
        payloads.append(data[begin : begin + size].tobytes())
        at += 1 + -(-size // WORD_BYTES)
    return payloads


def split_bytes(data: bytes, sizes: Sequence[int]) -> list[bytes]:
    """Cut `data` into consecutive pieces, one for each number of bytes in `sizes`, in order."""
    ends = list(itertools.accumulate(sizes))
    return [data[end - size : end] for size, end in zip(sizes, ends, strict=True)]


class Collectives(Protocol):
    """The allgather and broadcast of edl's messages; CollectiveFailed if the ring is broken."""

    def allgather_start(self, row: Table, name: str, same_shape: bool = False) -> Any:
        """Start to send `row`, any number of rows; `same_shape` (of all) helps some bindings."""

    def allgather_finish(self, handle: Any) -> Table:
        """Wait until an allgather is complete, and return the rows of all members as one table."""

    def broadcast_bytes(self, payload: bytes, root: int, name: str) -> bytes:
        """Wait for the bytes that rank `root` sends, and return them, on `root` too."""


class RingConnection(Protocol):
    """How members find each other, connect and disconnect, for all rings of a worker in turn."""

    def open(self, where: WorkerTopology, generation: Generation | None) -> None:
        """Connect to the other members of `generation`, and return when the ring is complete."""

    def close(self) -> None:
        """Disconnect by a regular shutdown, which ends the open ring for all its members."""

    def cut(self) -> None:
        """Break all connections, also while a ring is built; any thread; `close` must follow."""

    def announce_switch(self, generation: Generation) -> None:
        """Tell newcomers that the old members begin to build; the state source calls it."""

    def wait_for_announcement(self, generation: Generation) -> bool:
        """Wait up to about 2 s until the old members begin to build the ring of `generation`."""


ADASUM = "Adasum needs a ring of constant size; use hvd.Average or hvd.Sum"


class CollectiveFailed(Exception):
    """The error of a collective, or of building a ring, that failed; its text is Horovod's."""


class Ring:
    """One worker's end of its rings, one after the other, for the training thread."""

    def __init__(self, collectives: Collectives, connection: RingConnection) -> None:
        self._collectives = collectives
        self._connection = connection
        self._membership: tuple[int, tuple[int, ...]] = (0, ())
        # whose ring is open, or was last; 0: none yet, or one of `build_alone`
        self.generation = 0
        # this worker's rank, the size of the ring, and the worker's place among the hosts, in the
        # same ring
        self.place = WorkerTopology(0, 1, 0, 1, 0, 1, 0)  # in the same ring
        self.is_open = False
        # of this ring: calls of `exchange`, sent step records, updates of an elastic script
        self.exchanges = self.records = self.updates = 0

    @property
    def alone(self) -> bool:
        """Whether this worker is the only one in the ring, so that nothing needs to be sent."""
        return self.place.size == 1

    def build_alone(self) -> None:
        """Build a ring of this worker alone, without a rendezvous; the last ring must be closed."""
        self._open(WorkerTopology(0, 1, 0, 1, 0, 1, 0), None)

    def build(self, generation: Generation, rank: int) -> None:
        """Connect to the other members of `generation`, and return when the ring is complete."""
        # The last ring must be closed.
        where = topology_of(generation.members, rank)
        self._membership = (generation.number, generation.worker_ids)
        self._open(where, generation)

    def close(self) -> None:
        """Leave the open ring, which ends it for all its members; if none is open, do nothing."""
        if self.is_open:
            self._connection.close()
            self.is_open = False
            self._membership = (0, ())

    @property
    def is_building(self) -> bool:
        """Whether `build` is under way (not `build_alone`), read in any thread."""
        return self._membership[0] > 0 and not self.is_open

    @property
    def membership(self) -> tuple[int, tuple[int, ...]]:
        """Number and worker ids, by rank, of the ring open or being built; from any thread."""
        return self._membership

    def break_(self, generation: int | None = None) -> None:
        """Cut the ring of `generation` (None: any), open or being built; safe from any thread."""
        if generation is None or self._membership[0] == generation:
            self._connection.cut()

    def announce_switch(self, generation: Generation) -> None:
        self._connection.announce_switch(generation)

    def wait_for_announcement(self, generation: Generation) -> bool:
        return self._connection.wait_for_announcement(generation)

    def start_record(self, record: StepRecord) -> Any:
        """Start to send `record`, this worker's report on its current step, to all members."""
        if self.alone:
            return record
        self.records += 1
        return self._call(
            self._collectives.allgather_start, record.encode(), "edl.step_record", True
        )

    def finish_record(self, handle: Any) -> StepRecords:
        """Wait until the step records of all workers have arrived."""
        if isinstance(handle, StepRecord):
            return StepRecords.of([handle])
        return StepRecords(self._call(self._collectives.allgather_finish, handle))

    def barrier(self, record: StepRecord) -> None:
        """Wait until every member has called this; `record` only gives the message its size."""
        if not self.alone:
            handle = self._call(self._collectives.allgather_start, record.encode(), "edl.barrier")
            self._call(self._collectives.allgather_finish, handle)

    def exchange_rows(self, record: StepRecord, payload: bytes) -> StepRecords:
        """Send a message as a step record; who is in a step sees that the two do not fit."""
        if self.alone:
            return StepRecords(record.encode(payload))
        self.records += 1
        handle = self._call(
            self._collectives.allgather_start, record.encode(payload), "edl.step_record", True
        )
        return StepRecords(self._call(self._collectives.allgather_finish, handle))

    def exchange(self, payload: bytes) -> list[bytes]:
        """Send `payload` to all members, who all call this at the same point; wait for theirs."""
        if self.alone:
            return [payload]
        self.exchanges += 1
        frame = pack_frame(payload)
        handle = self._call(self._collectives.allgather_start, frame, "edl.exchange")
        return unpack(self._call(self._collectives.allgather_finish, handle))

    def broadcast(self, payload: bytes, root: int, name: str) -> bytes:
        """Return the bytes of rank `root`; all members call this at the same point."""
        if self.alone:
            return payload
        return bytes(self._call(self._collectives.broadcast_bytes, payload, root, name))

    def _call(self, function: Any, *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except CollectiveFailed as error:
            raise RingBroken(self.generation, str(error)) from error

    def _open(self, where: WorkerTopology, generation: Generation | None) -> None:
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
