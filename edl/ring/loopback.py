"""Simulate rings inside one process, whose members are threads: a test decides when rings break.

A test makes a :class:`LoopbackNetwork`, and by its ``ring()`` a ring for each thread. A loopback
ring fails as Horovod over Gloo does (docs/explanation/failures.md), which the workers rely on:

1. All members execute the collectives of a ring in one order. When a member dies during a
   collective, some survivors may have its result and others not; no survivor lacks more than one
   result.
2. A member in a collective that cannot be completed any more fails in it; so do all others as soon
   as one member cuts its connections. A frozen member breaks nothing: the others wait for it, until
   they are cut or Gloo's time-out ends the wait.
3. A collective that all members have contributed to is completed even if a member closes its ring.
4. Contributions that do not fit together (another shape or type under the same name) are refused on
   all members (UsageError), and the ring stays whole.
5. A rendezvous is complete when all members have come. It fails when the daemon of the member of
   rank 0 aborts it, when the process of this member is gone, or at the time-out.

The ``choose`` of the network decides what these rules leave open. Its ``disturb`` is called before
and after each contribution, and with the result: there a test delays, kills, cuts, or raises
:class:`CollectiveFailed`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edl.clock import SYSTEM, Clock
from edl.errors import RendezvousFailed, UsageError
from edl.records import Generation
from edl.ring.ring import CollectiveFailed, Ring, WorkerTopology

Array = npt.NDArray[Any]
GLOO_TIMEOUT_S = 30.0  # as Gloo's own (HOROVOD_GLOO_TIMEOUT_SECONDS)
GO_SLICE_S = 2.0  # as edl.ring.gloo
INIT = "init"  # the name of the rendezvous and the connections, for `disturb`


class Killed(BaseException):
    """The exception that methods of a `LoopbackMember` raise after its simulated death."""


class Phase(Enum):
    BEFORE = "before"  # it has contributed nothing
    CONTRIBUTED = "contributed"  # it waits for the others
    DONE = "done"  # it has its result


class CollectivePoint(NamedTuple):
    """A point of a collective, or of the building of a ring, that one member has reached."""

    worker: int
    generation: int  # of the member's ring; 0: it has none
    name: str  # of the collective; `INIT` for the building of a ring
    phase: Phase


@dataclass
class _Operation:
    name: str  # the same on all members
    kind: str  # "allgather", "broadcast", "average", "sum" or "max"
    # rank -> its data, and what must be equal on all (kind, then dtype and shape, or the root)
    contributions: dict[int, tuple[Array, tuple[object, ...]]] = field(default_factory=dict)
    index: int = -1  # its place in the order of the ring, once complete
    refusal: str = ""  # why the contributions do not fit together; empty: they do
    result: Any = None  # for all members, once complete


class _Wire:
    """The connections of one ring, with the collectives under way; all its members share it."""

    def __init__(self, generation: int, members: dict[int, int]) -> None:
        self.generation = generation
        self.members = members  # rank -> worker
        self.size = len(members)
        self.open: dict[str, _Operation] = {}
        self.complete = 0  # how many collectives all members have contributed to
        self.executed = dict.fromkeys(members, 0)  # rank -> how many it has results of
        self.closing = False  # a member has left in order
        self.broken = ""  # why the ring broke; empty: it did not

    def contribute(self, rank: int, operation: _Operation) -> None:
        if len(operation.contributions) == self.size:
            del self.open[operation.name]
            operation.index, self.complete = self.complete, self.complete + 1
            _carry_out(operation)

    def has_result(self, rank: int, operation: _Operation) -> bool:
        if operation.index < 0:
            return False
        return not self.broken or operation.index < self.executed[rank]

    def unrecoverable(self, operation: _Operation) -> bool:
        return bool(self.broken) or (self.closing and operation.index < 0)

    def break_(self, reason: str, choose: Callable[[int], int]) -> None:
        """Break the ring because of `reason`; `choose` decides who has the newest results."""
        if self.broken:
            return
        self.broken = reason
        furthest = max(self.executed.values())
        furthest += choose(self.complete - furthest + 1)
        for rank, done in sorted(self.executed.items()):
            if done < furthest:
                self.executed[rank] = max(done, furthest - 1 + choose(2))


@dataclass
class _Room:
    """The rendezvous of one generation, which the daemon of its member of rank 0 serves."""

    keeper: int  # the worker of rank 0
    size: int  # of members that must come
    arrived: dict[int, int] = field(default_factory=dict)  # rank -> worker
    wire: _Wire | None = None  # None until all members have come
    aborted: str = ""  # why it has failed; empty if it has not


class LoopbackNetwork:
    """All loopback rings of one test, with their members and rendezvous; any thread may call it."""

    def __init__(
        self,
        clock: Clock = SYSTEM,
        choose: Callable[[int], int] = lambda _below: 0,
        disturb: Callable[[CollectivePoint], None] = lambda _moment: None,
        timeout_s: float = GLOO_TIMEOUT_S,
    ) -> None:
        self.clock = clock
        self.choose = choose
        self.disturb = disturb
        self.timeout_s = timeout_s
        self.changed = clock.condition()
        self.lost: set[int] = set()
        self.frozen: set[int] = set()
        self._members: dict[int, LoopbackMember] = {}
        self._rooms: dict[int, _Room] = {}  # by generation
        self._served: dict[int, int] = {}  # the newest generation that each daemon serves
        self._gone_to: set[int] = set()  # generations whose old members are switching

    def ring(self, worker: int) -> Ring:
        member = self.member(worker)
        return Ring(member, member)

    def member(self, worker: int) -> LoopbackMember:
        """Return the LoopbackMember of worker id `worker`; only the first call makes one."""
        if worker not in self._members:
            self._members[worker] = LoopbackMember(self, worker)
        return self._members[worker]

    # --- what happens to members, and to the daemons that keep a rendezvous

    def lose(self, worker: int) -> None:
        with self.changed:
            self.lost.add(worker)
            if worker in self._members:
                self._members[worker].let_go(f"w{worker} is gone")
            for room in self._rooms.values():
                if worker == room.keeper:
                    room.aborted = room.aborted or f"w{worker}, who kept it, is gone"
            self.changed.notify_all()

    def freeze(self, worker: int) -> None:
        """Simulate that the process of worker id `worker` hangs with its connections open."""
        self.frozen.add(worker)

    def thaw(self, worker: int) -> None:
        with self.changed:
            self.frozen.discard(worker)
            self.changed.notify_all()

    def serve(self, keeper: int, generation: int) -> None:
        with self.changed:
            self._served[keeper] = max(generation, self._served.get(keeper, 0))
            for number, room in self._rooms.items():
                if room.keeper == keeper and number < generation:
                    room.aborted = room.aborted or f"generation {generation} is decided"
            self.changed.notify_all()

    def abort(self, keeper: int, generation: Generation) -> None:
        with self.changed:
            room = self._room_of(generation)
            if room.keeper == keeper:
                room.aborted = room.aborted or "it has lost a member"
            self.changed.notify_all()

    # --- for members

    def enter(self, generation: Generation, rank: int, worker: int) -> _Room:
        """Note, with the lock held, that a member has come, unless the rendezvous is aborted."""
        room = self._room_of(generation)
        keeper = room.keeper
        if keeper in self.lost:
            room.aborted = room.aborted or f"w{keeper}, who keeps it, is gone"
        if self._served.get(keeper, 0) > generation.number:
            room.aborted = room.aborted or "its generation is over"
        if not room.aborted:
            room.arrived[rank] = worker
            if len(room.arrived) == room.size:
                room.wire = _Wire(generation.number, dict(sorted(room.arrived.items())))
        self.changed.notify_all()
        return room

    def _room_of(self, generation: Generation) -> _Room:
        room = _Room(generation.members[0].id, len(generation.members))
        return self._rooms.setdefault(generation.number, room)

    def announce_switch(self, worker: int, generation: Generation) -> None:
        keeper = generation.members[0].id
        if keeper in self.lost or (keeper in self.frozen and keeper != worker):
            raise RendezvousFailed(generation.number, f"w{keeper} does not answer")
        with self.changed:
            self._gone_to.add(generation.number)
            self.changed.notify_all()

    def wait_for_announcement(self, generation: Generation) -> bool:
        """Wait up to 2 s until `generation` was announced by `announce_switch`."""
        number, keeper = generation.number, generation.members[0].id
        with self.changed:
            self.changed.wait_for(
                lambda: number in self._gone_to or keeper in self.lost, GO_SLICE_S
            )
        if keeper in self.lost or keeper in self.frozen or number not in self._gone_to:
            self.clock.sleep(0.05)
            return False
        return True


class LoopbackMember:
    """One worker's connection to its loopback ring, and the collectives in this ring."""

    def __init__(self, network: LoopbackNetwork, worker: int) -> None:
        self._network = network
        self._worker = worker
        self._wire: _Wire | None = None
        self._room: _Room | None = None  # the rendezvous that it waits in
        self._rank = 0
        self._generation = 0
        self._cut = False

    def is_missed_in(self, name: str) -> bool:
        """Return whether others wait in a collective of that name for this member."""
        open_ = self._wire.open.values() if self._wire is not None else ()
        return any(
            each.name.startswith(name) and self._rank not in each.contributions for each in open_
        )

    # --- the connection

    def open(self, where: WorkerTopology, generation: Generation | None) -> None:
        network = self._network
        self._rank, self._wire, self._cut = where.rank, None, False
        self._generation = generation.number if generation is not None else 0
        if generation is None or where.size == 1:
            self._wire = _Wire(self._generation, {0: self._worker})
            return
        self._reach(INIT, Phase.BEFORE)
        with network.changed:
            room = self._room = network.enter(generation, where.rank, self._worker)
        try:
            self._reach(INIT, Phase.CONTRIBUTED)
            with network.changed:
                network.changed.wait_for(
                    lambda: self._cut or bool(room.aborted) or room.wire is not None,
                    network.timeout_s,
                )
                wire = room.wire
                if self._cut or wire is None:
                    why = "this worker has cut it" if self._cut else room.aborted
                    why = why or "not all members have come in time"
                    raise CollectiveFailed(f"no rendezvous: {why}")
                if wire.broken and network.choose(2):
                    raise CollectiveFailed(f"connect: {wire.broken}")
                self._wire = wire
        except BaseException:
            with network.changed:
                self.let_go(f"w{self._worker} has left the rendezvous")
            raise
        finally:
            self._room = None
        self._reach(INIT, Phase.DONE)

    def close(self) -> None:
        network, wire = self._network, self._wire
        self._check_alive()
        if wire is None:
            return
        with network.changed:
            wire.closing = True
            network.changed.notify_all()
            others = {*wire.members.values()} - {self._worker}
            network.changed.wait_for(
                lambda: bool(wire.broken) or not others & network.frozen, network.timeout_s
            )
        self._wire = None

    def cut(self) -> None:
        with self._network.changed:
            self.let_go(f"w{self._worker} has cut its connections")
            self._network.changed.notify_all()

    def let_go(self, reason: str) -> None:
        """Break this member's ring, or leave its rendezvous; with the network's lock held."""
        self._cut = True
        choose = self._network.choose
        if self._wire is not None:
            self._wire.break_(reason, choose)
        if (room := self._room) is not None:
            if room.wire is not None:
                room.wire.break_(reason, choose)
            else:
                room.arrived.pop(self._rank, None)
                if not room.aborted and choose(2):  # the others notice, or wait in vain
                    room.aborted = reason
        self._network.changed.notify_all()

    def announce_switch(self, generation: Generation) -> None:
        self._check_alive()
        self._network.announce_switch(self._worker, generation)

    def wait_for_announcement(self, generation: Generation) -> bool:
        """Return whether `generation` is announced in 2 s, and rank 0 neither lost nor frozen."""
        self._check_alive()
        return self._network.wait_for_announcement(generation)

    # --- collectives

    def allgather_start(self, row: Array, name: str, same_shape: bool = False) -> Any:
        return self._start("allgather", name, row, row.dtype, row.shape[1:])

    def allgather_finish(self, handle: Any) -> Array:
        rows: Array = self._finish(handle)
        return rows

    def broadcast_bytes(self, payload: bytes, root: int, name: str) -> bytes:
        data = np.frombuffer(payload, dtype=np.uint8)
        return bytes(self._finish(self._start("broadcast", name, data, root)).tobytes())

    def average_start(self, array: Array, name: str, kind: str = "average") -> Any:
        return self._start(kind, name, array, array.dtype, array.shape)

    def average_finish(self, handle: Any) -> Array:
        average: Array = self._finish(handle)
        return average

    def _start(self, kind: str, name: str, data: Array, *form: object) -> _Operation:
        wire = self._require()
        self._reach(name, Phase.BEFORE)
        operation = _Operation(name, kind)
        with self._network.changed:
            if wire.unrecoverable(operation):
                if self._network.choose(2):  # Horovod raises now, or in the wait
                    raise CollectiveFailed(f"{name}: {wire.broken or 'a member has shut down'}")
                return operation
            operation = wire.open.setdefault(name, operation)
            if self._rank in operation.contributions:
                raise UsageError(f"{name}: this rank has begun a collective of this name already")
            operation.contributions[self._rank] = data.copy(), (kind, *form)
            wire.contribute(self._rank, operation)
            self._network.changed.notify_all()
        self._reach(name, Phase.CONTRIBUTED)
        return operation

    def _finish(self, operation: _Operation) -> Any:
        wire, network = self._require(), self._network
        name = operation.name
        with network.changed:
            network.changed.wait_for(
                lambda: operation.index >= 0 or wire.unrecoverable(operation), network.timeout_s
            )
            self._check_alive()
            if operation.index < 0 and not wire.unrecoverable(operation):
                wire.break_(f"{name}: no answer for {network.timeout_s:g} s", network.choose)
                network.changed.notify_all()
            if not wire.has_result(self._rank, operation):
                raise CollectiveFailed(f"{name}: {wire.broken or 'a member has shut down'}")
            wire.executed[self._rank] = max(wire.executed[self._rank], operation.index + 1)
        if operation.refusal:
            raise UsageError(operation.refusal)
        self._reach(name, Phase.DONE)
        return operation.result

    def _require(self) -> _Wire:
        self._check_alive()
        if self._wire is None:
            raise CollectiveFailed("there is no ring")
        return self._wire

    def _reach(self, name: str, phase: Phase) -> None:
        """Call the test's `disturb` at one point of a collective; it may delay or raise."""
        self._check_alive()
        try:
            self._network.disturb(CollectivePoint(self._worker, self._generation, name, phase))
        except CollectiveFailed:
            with self._network.changed:
                self.let_go(f"{name} has failed on w{self._worker}")
            raise
        self._check_alive()

    def _check_alive(self) -> None:
        if self._worker in self._network.lost:
            raise Killed(f"w{self._worker}")


def _carry_out(operation: _Operation) -> None:
    data = [operation.contributions[rank] for rank in sorted(operation.contributions)]
    forms = sorted({repr(form) for _, form in data})
    if len(forms) > 1:
        operation.refusal = f"{operation.name}: Mismatched collectives: {' and '.join(forms)}"
    elif operation.kind == "allgather":
        operation.result = np.concatenate([array for array, _ in data])
    elif operation.kind == "broadcast":
        _, root = data[0][1]
        assert isinstance(root, int)
        operation.result = data[root][0]
    elif operation.kind == "max":
        operation.result = np.max([array for array, _ in data], axis=0)
    else:
        total = np.sum([array for array, _ in data], axis=0)
        operation.result = total / len(data) if operation.kind == "average" else total
    operation.contributions.clear()
