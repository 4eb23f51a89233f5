"""What each worker has gone through when the ring breaks, and what it sends then: the same.

The histories of tests/chaos/test_histories.py without processes, on the code that decides. Each
runs alone, with a ring that breaks where the history says. What follows the repair is compared: two
workers that meet in a ring must send the same, or they wait for each other for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations_with_replacement
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from edl.binding.reduction import Branch, StepReduction
from edl.errors import RingBroken, RingError
from edl.step.engine import (
    Batch,
    BatchStart,
    RepairDone,
    RingPlace,
    StepEnd,
    StepEngine,
    StepEvent,
    StepSkipped,
    StepState,
    StepSuperseded,
)
from edl.step.record import StepRecord, StepRecords
from edl.step.weighting import Weights
from edl.worker.loader_steps import StepDriver

BATCH = 4
GRADIENTS = ("a", "b", "c")
PRESENT = "present"
BROKEN = RingBroken(1, "a test says so")


def records(*samples: int) -> StepRecords:
    """Of a step in which each worker brings so many."""
    rows = [StepRecord(1, 7, worker, 0, each, 0, 0, 1, 0) for worker, each in enumerate(samples)]
    return StepRecords.of(rows)


SENT, AWAITED = "sent", "awaited"
Log = list[tuple[str, str]]  # (SENT or AWAITED, the name of a collective)


@dataclass
class Worker:
    """A worker of a ring of three. ``breaks``: before which waits for the others the ring breaks.

    ``misses``: others have completed the step in which it does.
    """

    breaks: set[tuple[int, str]]  # (step, what is waited for)
    misses: bool = False
    others: tuple[int, int] = (BATCH, BATCH)
    samples: int = BATCH
    optimizers: int = 0
    generation: int = 1
    warming_up: bool = False
    engine: StepEngine = field(default_factory=StepEngine)
    log: Log = field(default_factory=list)
    recovered: int = 0
    cut: bool = False  # the ring is broken
    ring: Any = field(default_factory=lambda: SimpleNamespace(alone=False))

    def __post_init__(self) -> None:
        self.driver = StepDriver(self.engine, self)

    def begin(self) -> None:
        self.engine.handle(StepSkipped())
        batch = Batch(0, np.arange(self.samples or BATCH))
        self.driver.tell(BatchStart(batch, self.samples == 0, self.place))

    @property
    def place(self) -> RingPlace:
        return RingPlace(self.ring.alone, self.warming_up, BATCH)

    @property
    def begun(self) -> int:
        return self.engine.number

    @property
    def open(self) -> bool:
        return self.engine.is_open

    def start_record(self) -> None:
        self.start("record")

    def wait_for_records(self) -> StepRecords:
        self.wait("record")
        return records(self.samples, *(() if self.ring.alone else self.others))

    def list_departures(self) -> None:
        raise AssertionError("nobody leaves")

    def reduced(self) -> None:
        pass

    def repair(self, _error: RingBroken) -> RepairDone:
        assert self.cut, "a ring that stands is not repaired"
        self.mend()
        if self.misses:
            self.engine.handle(StepSuperseded(0))
        return RepairDone(self.place)

    def mend(self) -> None:
        self.cut, self.log = False, []
        self.recovered += 1

    def end(self) -> None:
        self.engine.handle(StepEnd(trained=True))

    @property
    def loader(self) -> Worker:
        """Its steps."""
        return self

    @property
    def progress(self) -> Worker:
        """How far they are."""
        return self

    def start(self, name: str) -> None:
        self.log.append((SENT, name))

    def wait(self, name: str) -> None:
        if (self.begun, name) in self.breaks:
            self.breaks.remove((self.begun, name))
            self.cut = True
        if self.cut:
            raise BROKEN
        self.log.append((AWAITED, name))


class EarlySender:
    """As PyTorch's: what backward has computed is sent before the records are in."""

    def __init__(self, worker: Worker) -> None:
        self.worker, self.in_flight = worker, set[str]()
        self.reduction = StepReduction(worker, self)  # type: ignore[arg-type]

    def backward(self) -> None:
        for name in reversed(GRADIENTS):
            if not self.reduction.done and self.reduction.part.sends_early:
                self._send(name)
        self.reduction.reduce()

    def allreduce(self, _weights: Weights, again: bool) -> None:
        self.worker.start(PRESENT)
        self.worker.wait(PRESENT)
        for name in GRADIENTS:
            if name not in self.in_flight:
                self._send(name)
        for name in GRADIENTS:
            self.worker.wait(name)
        self.in_flight.clear()

    def place_result(self, again: bool) -> None:
        pass

    def forget(self) -> None:
        self.in_flight.clear()

    def _send(self, name: str) -> None:
        self.worker.start(name)
        self.in_flight.add(name)
        self.reduction.sending()


class PythonSender:
    """As TensorFlow's eager loops: all at once, when the records are in."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.reduction = StepReduction(worker)  # type: ignore[arg-type]

    def backward(self) -> None:
        self.reduction.complete(self._average)

    def _average(self, _weights: Weights) -> None:
        self.reduction.sending()
        exchange(self.worker)


class GraphSender:
    """As TensorFlow's graphs, which call back, and only then learn whether anything was sent."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.reduction = StepReduction(worker)  # type: ignore[arg-type]

    def backward(self) -> None:
        sends = self.reduction.begin()
        while (branch := self._run(sends)) is Branch.AGAIN:
            sends = self.reduction.agree().sends
        assert (branch is Branch.APPLY) == (self.reduction.step.state is StepState.REDUCED)

    def _run(self, sends: bool) -> Branch:
        failure = None
        if sends:
            self.reduction.sending()
            try:
                exchange(self.worker)
            except RingBroken as error:
                failure = error

        def received() -> None:
            if failure is not None:
                raise failure

        return self.reduction.end(received)


def exchange(worker: Worker) -> None:
    for name in GRADIENTS:
        worker.start(name)
    for name in GRADIENTS:
        worker.wait(name)


SENDERS: dict[str, Callable[[Worker], Any]] = {
    "torch": EarlySender,
    "eager": PythonSender,
    "graph": GraphSender,
}


class History(NamedTuple):
    """``last``: of the three steps, what this worker has of the one in which the ring breaks."""

    breaks: tuple[tuple[int, str], ...]  # (step, wait)
    completed_by_peers: bool = False
    between: int = 0  # the ring is repaired between two steps, before this one


# Some have completed step 2. The step in which all meet is 3.
COMPLETED = {
    "missed, at the first gradient": History(((2, "a"),), completed_by_peers=True),
    "missed, at the last gradient": History(((2, "c"),), completed_by_peers=True),
    "completed, next records": History(((3, "record"),)),
    "completed, next gradients": History(((3, "b"),)),
    "not begun": History((), between=3),
}
# Nobody has completed step 2. All meet in it.
INCOMPLETE = {
    "not begun, nobody": History((), between=2),
    "records only": History(((2, "record"),)),
    "amid the gradients": History(((2, "a"),)),
    "at the last gradient": History(((2, "c"),)),
    "broken again in the next ring": History(((2, "record"), (2, "a"))),
}
PAIRS = [
    (first, second, meet)
    for histories, meet in ((COMPLETED, 3), (INCOMPLETE, 2))
    for first, second in combinations_with_replacement(histories, 2)
]
HISTORIES = COMPLETED | INCOMPLETE


def lived(sender: str, history: History, meet: int, **changes: Any) -> Log:
    """Return what a worker sends and waits for from the last repair to the end of step ``meet``."""
    worker = Worker(set(history.breaks), history.completed_by_peers, **changes)
    framework = SENDERS[sender](worker)
    for step in range(1, meet + 1):
        if history.between == step:
            worker.mend()
        worker.loader.begin()
        if not worker.recovered:
            worker.log = worker.log[-1:]  # the record of this step
        framework.backward()
        framework.reduction.end_step()
        completed_by_peers = StepEvent.SUPERSEDE in framework.reduction.step.history
        assert completed_by_peers == (history.completed_by_peers and step == 2)
    assert worker.recovered == max(1, len(history.breaks))
    assert not worker.breaks
    return worker.log


def deadlocked(logs: list[Log]) -> bool:
    """Whether workers with these logs wait for each other for ever."""
    left = [list(log) for log in logs]
    sent: list[list[str]] = [[] for _ in logs]
    moved = True
    while moved and any(left):
        moved = False
        for mine, log in enumerate(left):
            while log and (log[0][0] == SENT or all(log[0][1] in names for names in sent)):
                kind, name = log.pop(0)
                if kind == SENT:
                    sent[mine].append(name)
                moved = True
    return any(left)


def names(log: Log, kind: str) -> list[str]:
    return [name for each, name in log if each == kind]


@pytest.mark.parametrize("others", [(BATCH, BATCH), (BATCH, 1)], ids=["full", "weighted"])
@pytest.mark.parametrize("sender", SENDERS)
@pytest.mark.parametrize(("first", "second", "meet"), PAIRS, ids=lambda each: str(each))
def test_all_send_the_same(
    first: str, second: str, meet: int, sender: str, others: tuple[int, int]
) -> None:
    one, other = (lived(sender, HISTORIES[n], meet, others=others) for n in (first, second))
    assert names(one, AWAITED) == names(other, AWAITED)
    assert sorted(names(one, SENT)) == sorted(names(other, SENT))
    assert not deadlocked([one, other])
    if sender != "torch":  # whose hooks send as backward computes; Horovod matches by name
        assert one == other


def test_a_pair_of_the_deadlock_of_old() -> None:
    """Who repeats a step sent it under another name than who begins it."""
    begins, repeats = ([(SENT, name), (AWAITED, name)] for name in ("gradient_0", "grouped_0"))
    assert deadlocked([begins, repeats])
    assert not deadlocked([begins, list(begins)])


def test_one_without_samples_sends_as_the_others() -> None:
    """Its leases were of a generation that is gone; or it has none left in the epoch."""
    for sender in SENDERS:
        full = lived(sender, HISTORIES["records only"], 2, others=(BATCH, 0))
        none = lived(sender, HISTORIES["records only"], 2, others=(BATCH, BATCH), samples=0)
        assert names(full, AWAITED) == names(none, AWAITED)
        assert sorted(names(full, SENT)) == sorted(names(none, SENT))


# --- what becomes of a step


@pytest.fixture(params=SENDERS)
def framework(request: pytest.FixtureRequest) -> Any:
    return SENDERS[request.param](Worker(set()))


def test_a_step_goes_its_way(framework: Any) -> None:
    framework.worker.loader.begin()
    framework.backward()
    reduction = framework.reduction
    assert (reduction.step.state, reduction.done) == (StepState.REDUCED, True)
    assert reduction.apply()
    reduction.end_step()
    assert (reduction.step.state, framework.worker.loader.open) == (StepState.IDLE, False)
    expected = [StepEvent.SEND, StepEvent.AVERAGE, StepEvent.APPLY, StepEvent.END]
    assert reduction.step.history == tuple(expected)


@pytest.mark.parametrize("how", ["alone", "warming_up"])
def test_alone_nothing_is_sent(how: str, framework: Any) -> None:
    worker = framework.worker
    if how == "alone":
        worker.ring.alone = True
    else:
        worker.warming_up = True
    worker.loader.begin()
    framework.backward()
    record = [(SENT, "record"), (AWAITED, "record")]
    assert worker.log == (record if how == "alone" else [])
    assert framework.reduction.step.history == (StepEvent.KEEP,)
    assert framework.reduction.apply()


def test_a_step_without_samples_changes_nothing(framework: Any) -> None:
    framework.worker.samples, framework.worker.others = 0, (0, 0)
    framework.worker.loader.begin()
    framework.backward()
    assert framework.worker.log == [(SENT, "record"), (AWAITED, "record")]
    assert framework.reduction.step.state is StepState.DROPPED
    assert framework.reduction.step.changes_nothing
    assert not framework.reduction.apply()


def test_a_script_may_leave_its_loop_with_a_batch_in_hand(framework: Any) -> None:
    framework.worker.loader.begin()
    assert not framework.reduction.done
    framework.worker.loader.begin()
    framework.backward()
    framework.worker.loader.begin()
    assert framework.reduction.step.state is StepState.HANDED_OUT


def test_what_cannot_be_repaired_says_so(framework: Any) -> None:
    framework.worker.breaks = {(1, "a")}
    framework.reduction.part.cannot_repair = "this is a test"
    framework.worker.loader.begin()
    with pytest.raises(RingError, match=r"a step was interrupted, and this is a test \(the ring"):
        framework.backward()
    assert framework.reduction.step.state is StepState.BROKEN


def test_a_refused_step_is_not_repeated(framework: Any) -> None:
    framework.worker.loader.begin()
    for event in (framework.reduction.refuse, framework.reduction.fail):
        event()
        assert framework.reduction.end(lambda: None) is Branch.SKIP
        assert not framework.reduction.step.is_decided
