"""What workers exchange between two steps is the same on all survivors, wherever the ring breaks.

Real workers and positions, and the leader's real decision; the ring is one in memory that breaks
at a chosen collective, and then some have its result and the others have not.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from made import make_job

from edl.config import Config
from edl.core.job.decision import Ages, Limits
from edl.core.job.membership import decide
from edl.core.job.topology import place
from edl.core.records import Generation, Member, RingFailure, Seat, Snapshot, Stage
from edl.core.step.source import Source
from edl.core.step.step_record import StepRecord, SwitchTimes
from edl.daemon.progress import Receive
from edl.daemon.worker import Worker
from edl.errors import RingBroken, UsageError

WORKERS = 3
STEPS = 3
EACH = 2  # exchanges after each step
PER_STEP = 2 + EACH  # collectives: step records, gradients, exchanges
DEADLINE_S = 20.0
LIMITS = Limits(start_s=20, prepare_s=50, gather_s=3, leave_grace_s=30, notice_s=10)


class Killed(BaseException):
    """This worker is no more."""


@dataclass(frozen=True)
class Fault:
    """The ``collective``-th of all goes wrong: ``dead`` dies in it, ``late`` lack its result."""

    collective: int
    dead: int
    late: frozenset[int]


@dataclass
class World:
    """Rings of all workers, each in a thread of its own, and the leader between them."""

    faults: list[Fault]
    generation: Generation
    lock: threading.Condition = field(default_factory=threading.Condition)
    rows: dict[tuple[int, str, int], dict[int, Any]] = field(default_factory=dict)
    calls: dict[tuple[int, str, int], int] = field(default_factory=dict)
    failed: dict[tuple[int, str, int], Fault] = field(default_factory=dict)
    broken: set[int] = field(default_factory=set)  # generations
    dead: set[int] = field(default_factory=set)
    reports: dict[int, RingFailure] = field(default_factory=dict)
    headers: dict[int, dict[str, Any]] = field(default_factory=dict)
    complete: int = 0  # collectives

    def wait(self, condition: Callable[[], object]) -> None:
        assert self.lock.wait_for(condition, DEADLINE_S), "the workers wait for each other"

    def meet(self, generation: Generation, worker: int, name: str, row: Any) -> list[Any]:
        """One collective of that ring: everybody's row, in rank order."""
        with self.lock:
            count = self.calls.get((worker, name, generation.number), 0)
            self.calls[worker, name, generation.number] = count + 1
            call = generation.number, name, count
            rows = self.rows.setdefault(call, {})
            rows[worker] = row
            if len(rows) == len(generation.seats):
                fault = self.faults[0] if self.faults else None
                if fault is not None and fault.collective <= self.complete:
                    self.failed[call] = self.faults.pop(0)
                else:
                    self.complete += 1
            self.lock.notify_all()
            full = len(generation.seats)
            self.wait(lambda: len(rows) == full or generation.number in self.broken)
            fault = self.failed.get(call)
            if fault is not None:
                self.broken.add(generation.number)
                self.lock.notify_all()
                if worker == fault.dead:
                    self.dead.add(worker)
                    raise Killed
            if len(rows) < full or (fault is not None and worker in fault.late):
                raise RingBroken(generation.number, f"in {name}")
            return [rows[member] for member in generation.members]

    def repair(self, worker: int, report: RingFailure) -> Generation:
        """Report, and wait for what the leader makes of all reports."""
        with self.lock:
            self.broken.add(report.generation)
            self.reports[worker] = report
            self.lock.notify_all()
            while self.generation.number == report.generation:
                told = {w for w, b in self.reports.items() if b.generation == report.generation}
                if told | self.dead >= {*self.generation.members}:
                    self._decide()
                else:
                    self.lock.wait(DEADLINE_S)
            return self.generation

    def _decide(self) -> None:
        now = Snapshot(
            make_job("test", np=WORKERS, command=("true",), max_np=WORKERS),
            members=tuple(
                replace(member_of(seat, self.generation.number), broken=self.reports[seat.id])
                for seat in self.generation.seats
                if seat.id not in self.dead
            ),
            plan={"a": WORKERS},
            generation=self.generation,
        )
        found = decide(now, 1, Ages(100.0), LIMITS, dict.fromkeys(self.dead, "it died"))
        assert found.generation is not None, found.reason
        self.generation = found.generation
        self.lock.notify_all()

    def header(self, generation: Generation, worker: int, mine: dict[str, Any]) -> dict[str, Any]:
        """The sync root's."""
        with self.lock:
            if worker == generation.sync_root:
                self.headers[generation.number] = mine
                self.lock.notify_all()
            self.wait(lambda: generation.number in self.headers)
            return self.headers[generation.number]


def member_of(seat: Seat, generation: int) -> Member:
    at = (seat.host, seat.slot, seat.address, seat.port)
    return Member(seat.id, *at, 1, "launch", Stage.ACTIVE, generation)


class MemoryRing:
    """One worker's end of it; see :class:`edl.ring.ring.Ring`."""

    def __init__(self, world: World, worker: int) -> None:
        self.world, self.worker = world, worker
        self.generation = world.generation

    @property
    def alone(self) -> bool:
        return len(self.generation.seats) == 1

    @property
    def place(self) -> Any:
        rank = self.generation.rank_of(self.worker)
        assert rank is not None
        return place(self.generation.seats, rank)

    def call(self, name: str, row: Any) -> list[Any]:
        return self.world.meet(self.generation, self.worker, name, row)

    def start_record(self, record: StepRecord) -> StepRecord:
        return record

    def finish_record(self, record: StepRecord) -> tuple[StepRecord, ...]:
        return tuple(self.call("records", record))

    def exchange(self, values: list[float]) -> list[list[float]]:
        return self.call("exchange", values)


class MemorySwitching:
    """Repairs as :class:`edl.daemon.switching.Switching` does; nothing else ever changes."""

    times = SwitchTimes()

    def __init__(self, mine: Worker, ring: MemoryRing) -> None:
        self._mine, self._ring = mine, ring
        self.worker = ring.worker
        self.model = 0  # the steps that are in it

    @property
    def generation(self) -> Generation:
        return self._ring.generation

    def repair(self, _error: Exception, _since: float) -> None:
        position, world = self._mine._progress, self._ring.world
        report = RingFailure(self.generation.number, position.step, position.exchanges)
        now = self._ring.generation = world.repair(self.worker, report)
        position.adopt(now.members)
        header = world.header(now, self.worker, {**position.header(), "model": self.model})
        behind = self.worker in now.joined and self.worker != now.sync_root
        if behind:
            self.model = header["model"]
        position.take_over(header, Receive.STEP if behind else Receive.NOTHING)


def worker_in(world: World, number: int) -> Worker:
    worker = Worker(Config(), None)  # type: ignore[arg-type]
    ring = MemoryRing(world, number)
    worker.ring = ring  # type: ignore[assignment]
    worker._switching = MemorySwitching(worker, ring)  # type: ignore[assignment]
    worker.attach_source(Source(1000, 4, True, 7, 0))
    worker._progress.adopt(world.generation.members)
    worker._progress.has_state = True
    return worker


def train(worker: Worker) -> list[list[list[float]]]:
    """A script: steps with exchanges after each; what the exchanges have told."""
    told = []
    switching: Any = worker._switching
    ring: Any = worker.ring
    while worker.step < STEPS:
        batch = worker.sampler.form(worker.ledger)
        assert batch is not None
        worker.begin_step(batch)
        while True:
            try:
                worker.records()
                ring.call("gradients", worker.step)
                switching.model += 1
                break
            except RingBroken as error:
                if worker.recover(error):
                    break
        worker.end_step()
        assert switching.model == worker.step
        for number in range(EACH):
            told.append(worker.exchange([worker.id, worker.step, number]))
    return told


def run(faults: list[Fault]) -> tuple[World, dict[int, list[list[list[float]]]]]:
    """What the exchanges of each worker that lives to the end have told."""
    seats = tuple(Seat(n, "a", n, "127.0.0.1", 9000 + n) for n in range(WORKERS))
    world = World(faults, Generation(1, 1, seats, 0, (), (), "so it began"))
    told: dict[int, list[list[list[float]]]] = {}

    def live(number: int) -> None:
        with contextlib.suppress(Killed):
            told[number] = train(worker_in(world, number))

    threads = [threading.Thread(target=live, args=(n,), daemon=True) for n in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
        assert not thread.is_alive(), "the workers wait for each other"
    return world, told


def check(told: dict[int, list[list[list[float]]]], dead: set[int]) -> None:
    assert told.keys() == {*range(WORKERS)} - dead
    alike = list(told.values())
    assert all(each == alike[0] for each in alike)
    expected = [(step, n) for step in range(1, STEPS + 1) for n in range(EACH)]
    assert len(alike[0]) == len(expected)
    for rows, (step, number) in zip(alike[0], expected, strict=True):
        assert {(row[1], row[2]) for row in rows} == {(step, number)}
        assert {row[0] for row in rows} >= told.keys()  # nobody was left out who lives


def test_nothing_breaks() -> None:
    _, told = run([])
    check(told, set())
    assert told[0][0] == [[0.0, 1.0, 0.0], [1.0, 1.0, 0.0], [2.0, 1.0, 0.0]]


@pytest.mark.parametrize("dead", range(WORKERS))
@pytest.mark.parametrize("collective", range(PER_STEP, 2 * PER_STEP + 1))
def test_one_dies_in_any_collective_of_a_step(collective: int, dead: int) -> None:
    """Whoever of the others has its result, and whoever has not."""
    others = {*range(WORKERS)} - {dead}
    for count in range(len(others) + 1):
        for late in itertools.combinations(sorted(others), count):
            world, told = run([Fault(collective, dead, frozenset(late))])
            assert not world.faults
            check(told, {dead})


@pytest.mark.parametrize("late", [frozenset({0}), frozenset({1}), frozenset({0, 1})])
@pytest.mark.parametrize("later", range(4))
def test_one_dies_after_the_other(later: int, late: frozenset[int]) -> None:
    """The last one goes on alone."""
    first = Fault(PER_STEP + 2, 2, late)
    world, told = run([first, Fault(first.collective + later, 1, frozenset({0}))])
    assert not world.faults
    check(told, {1, 2})


def test_it_takes_place_between_two_steps_of_the_training() -> None:
    seats = (Seat(0, "a", 0, "127.0.0.1", 9000),)
    worker = worker_in(World([], Generation(1, 1, seats, 0, (), (), "alone")), 0)
    worker._progress.has_state = False
    with pytest.raises(UsageError, match=r"call edl\.mean\(\) after .*: training has not begun"):
        worker.exchange([1.0])
    worker._progress.has_state = True
    batch = worker.sampler.form(worker.ledger)
    assert batch is not None
    worker.begin_step(batch)
    with pytest.raises(UsageError, match="this batch is not trained yet"):
        worker.exchange([1.0])
    worker.records()
    worker.end_step()
    assert worker.exchange([1.0, 2.0]) == [[1.0, 2.0]]
    worker._finished = True
    with pytest.raises(UsageError, match="all epochs are trained"):
        worker.exchange([1.0])
