"""PyTorch's gradients and optimizers, edl's hooks around them, and a loopback ring that breaks.

All that `edl.torch` does with gradients, but for Horovod's collectives. The judge is the counting
model, as in `test_several_optimizers.py`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loopback_tensors import MEMBERS, on_loopback
from scenarios import SEEDS, Change, Fault, Scenario, faults, points, sampled, scales, some
from several_optimizers import (
    BOTH_FIRST,
    GAN,
    ONE,
    THREE,
    TOGETHER,
    CountedSeveral,
    CountingSeveral,
    Models,
    Optimizer,
)

from edl.binding.loop import BatchSteps
from edl.contrib import torch_lr_tuner as lr_tuner
from edl.records import JobState
from edl.ring.ring import Ring
from edl.testing.counting import Counted, CountingBatchSource, CountingModel, Vector, source_of
from edl.testing.loopback import LoopbackWorker
from edl.torch import gradients, lr_schedules
from edl.torch.optimizer import listen
from edl.torch.optimizer_state import LastStep
from edl.torch.reduction import GradientReduction, Optimizers
from edl.worker.progress import Receive
from edl.worker.worker import Worker


@pytest.fixture(autouse=True, scope="module")
def loopback() -> Iterator[None]:
    with on_loopback(gradients):
        yield


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def backward(_ctx: Any, *_gradients: Any) -> Any:
        raise torch.OutOfMemoryError("no memory")


class Sharp(torch.optim.SGD):
    """Of the kind of sharpness-aware training: it has two backward passes for an update."""

    def first_step(self) -> None: ...

    def second_step(self) -> None: ...


class Net(torch.nn.Module):
    def __init__(self, counting: CountingModel) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(len(counting.w), dtype=torch.float64))
        self.unused = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))


class Sgd:
    def __init__(
        self,
        worker: Worker,
        optimizers: Optimizers,
        counting: CountingModel,
        to_none: bool,
        looks: bool,
        losses: list[torch.Tensor],
        habit: str = "",
    ) -> None:
        self._worker, self._counting = worker, counting
        self._to_none, self._looks = to_none, looks
        self._net = Net(counting)
        kind = Sharp if habit == TWO_PASSES else torch.optim.SGD
        self._sgd = kind(self._net.parameters(), lr=1.0)
        self._reduction = GradientReduction(optimizers, self._sgd, self._net, LastStep())
        listen(self._sgd, self._reduction)
        self._optimizers, self._habit = optimizers, habit
        self.told: dict[tuple[int, str], list[bytes]] = {}  # what all exchanged in a step, and when
        self._losses = losses  # of one backward pass: also those of other models

    def zero(self) -> None:
        self._sgd.zero_grad(set_to_none=self._to_none)

    def compute(self, gradient: Vector) -> None:
        failing = Fails.apply(0.0 * self._net.unused.sum()) if self._habit == FAILS else None
        loss = (self._net.w * torch.from_numpy(gradient)).sum()
        if self._habit == TWO_PASSES:
            loss.backward(retain_graph=True)
            self.zero()
        if failing is not None and (self._worker.step + self._worker.id) % 3 < 2:
            with pytest.raises(torch.OutOfMemoryError):  # when the gradient of w is on its way
                (loss + failing).backward(retain_graph=True)
            self.zero()
        exchange = self._optimizers.exchange() if self._habit == EXCHANGES else None
        if exchange is not None:
            loss = loss + 0.0 * self._net.unused.sum()  # whose gradient is sent before the other
            self.told[self._worker.step, "forward"] = exchange(f"w{self._worker.id}".encode())
            loss.register_hook(lambda _: self._exchange_in_backward(exchange))
        self._losses.append(loss)

    def _exchange_in_backward(self, exchange: Callable[[bytes], list[bytes]]) -> None:
        payload = f"w{self._worker.id} ".encode() * self._worker.id  # of uneven sizes
        self.told[self._worker.step, "backward"] = exchange(payload)

    def finish(self) -> None:
        if self._habit == LEAVES_OUT and self._worker.loader.batch_weight == 0:
            self._losses.clear()
        if self._losses:
            torch.autograd.backward(torch.stack(self._losses).sum())
            self._losses.clear()

    def step(self) -> None:
        if self._habit == SYNCHRONIZES:
            self._reduction.synchronize()
        gradient = self._net.w.grad
        if self._looks and (gradient is None or not gradient.any()):
            return
        with torch.no_grad():  # who has missed a step, or comes new, has received what it is now
            self._net.w.copy_(torch.from_numpy(self._counting.w))
        self._sgd.step()
        change = self._counting.w - self._net.w.detach().numpy()
        if change.any() and not self._worker.warming_up:
            self._counting.update(np.asarray(change))
        notifies = self._habit == NOTIFIES and self._worker.loader.open
        if notifies and not self._optimizers.leave_out():  # edl.notify_batch_end()
            self._optimizers.skip()


# What scripts do that was taught elsewhere: Horovod's synchronize() before they clip, the end of
# each batch said twice, and no backward pass for a batch that counts for nothing.
SYNCHRONIZES, NOTIFIES, LEAVES_OUT = "synchronizes", "notifies", "leaves out"
TWO_PASSES = "two passes"  # for an update, the first of which moves the weights
FAILS = "fails"  # in backward, and tries the batch again
EXCHANGES = "exchanges"  # in forward and backward passes, as SyncBatchNorm does


@dataclass(frozen=True)
class TorchSeveral(CountingSeveral):
    """With PyTorch.

    ``to_none``: how gradients are set to zero. ``looks``: the script makes no update for gradients
    of zero, which are what a worker sees that has missed the step. ``habit``: see above.
    """

    to_none: bool = True
    looks: bool = False
    habit: str = ""
    told: dict[int, dict[tuple[int, str], list[bytes]]] = field(default_factory=dict)

    def wrap(
        self, one: LoopbackWorker, models: Models
    ) -> tuple[Sequence[Optimizer], Callable[[], None]]:
        MEMBERS[threading.get_ident()] = one.member
        torch.set_num_threads(1)
        optimizers = Optimizers(one.worker)
        losses: list[torch.Tensor] = []
        wrapped = [
            Sgd(one.worker, optimizers, each, self.to_none, self.looks, losses, self.habit)
            for each in models.all
        ]
        self.told[one.worker.id] = wrapped[0].told
        return wrapped, optimizers.end_batch


SCHEDULES = {
    "one": (ONE,),
    "as in a GAN": (GAN,),
    "one backward pass": (TOGETHER,),
    "all backward passes first": (BOTH_FIRST,),
    "three": (THREE,),
    "the second one seldom": (GAN, ONE, ONE),
}
FEWER = settings(max_examples=max(6, settings().max_examples // 2))


def test_who_has_missed_a_step_may_decide_otherwise() -> None:
    script = TorchSeveral((ONE,), samples=14, epochs=1, looks=True)
    for worker in range(3):
        for point in points(30, 80, 3, worker):
            scenario = Scenario(0, script=script, faults=(Fault(worker, point, "kill"),))
            assert scenario.run().memory.job.state is JobState.FINISHED


def at_each_point(script: TorchSeveral, end: int, step: int) -> None:
    for worker in range(3):
        for point in points(1 + worker, end, step, worker):
            scenario = Scenario(point % 2, script=script, faults=(Fault(worker, point, "kill"),))
            assert scenario.run().memory.job.state is JobState.FINISHED


@pytest.mark.parametrize("turns", SCHEDULES.values(), ids=SCHEDULES)
def test_a_death_at_each_point(turns: tuple[tuple[str, ...], ...]) -> None:
    at_each_point(TorchSeveral(turns, samples=14, epochs=1), 90, 7)


@pytest.mark.parametrize("to_none", [True, False], ids=["none", "zeros"])
@pytest.mark.parametrize("habit", [FAILS, TWO_PASSES])
def test_a_death_at_each_point_of_a_habit(habit: str, to_none: bool) -> None:
    script = TorchSeveral((ONE,), samples=14, epochs=1, habit=habit, to_none=to_none)
    at_each_point(script, 110, 5)


def check_told(script: TorchSeveral, survivors: Sequence[int]) -> int:
    """Whatever two survivors were told at one point of one step is the same; returns how much."""
    answers: dict[tuple[int, str], list[bytes]] = {}
    for worker in survivors:
        for at, answer in script.told[worker].items():
            assert answers.setdefault(at, answer) == answer, at
    return len(answers)


def test_an_exchange_in_a_step_has_one_answer_whoever_dies_meanwhile() -> None:
    for worker in range(3):
        for point in points(1 + worker, 120, 4, worker):
            script = TorchSeveral((ONE,), samples=14, epochs=1, habit=EXCHANGES)
            scenario = Scenario(point % 2, script=script, faults=(Fault(worker, point, "kill"),))
            job = scenario.run()
            assert job.memory.job.state is JobState.FINISHED
            assert check_told(script, [*job.results]) >= 6, point


@FEWER
@given(seed=SEEDS, changes=some(scales(), 0, 2), faults=some(faults("kill", "cut", "fail"), 0, 3))
def test_exchanges_in_steps(seed: int, changes: Sequence[Change], faults: Sequence[Fault]) -> None:
    script = TorchSeveral((ONE,), samples=15, epochs=2, habit=EXCHANGES)
    job = Scenario(seed, script=script, changes=tuple(changes), faults=tuple(faults)).run()
    check_told(script, [*job.results])


@FEWER
@given(
    seed=SEEDS,
    np=st.integers(1, 3),
    turns=st.sampled_from([*SCHEDULES.values()]),
    to_none=st.booleans(),
    samples=st.integers(5, 20),
    changes=some(scales(), 0, 2),
    faults=some(faults("kill", "cut", "fail"), 0, 3),
)
def test_everything_at_once(
    seed: int,
    np: int,
    turns: tuple[tuple[str, ...], ...],
    to_none: bool,
    samples: int,
    changes: Any,
    faults: tuple[Fault, ...],
) -> None:
    script = TorchSeveral(turns, samples=samples, epochs=1, to_none=to_none)
    Scenario(seed, np, 1, 5, script, faults, changes).run()


@pytest.mark.parametrize("habit", [SYNCHRONIZES, NOTIFIES, LEAVES_OUT])
def test_batches_in_pieces_by_a_script_with_other_habits(habit: str) -> None:
    script = TorchSeveral((ONE,), 5, 2, batch_size=4, micro_batch=1, habit=habit)
    for size, steps in ((1, 4), (3, 2)):
        job = Scenario(np=size, script=script).run()
        assert {each.counted.steps for each in job.results.values()} == {steps}
    for point in sampled(range(20, 120, 7)):
        Scenario(point % 2, script=script, faults=(Fault(point % 3, point, "kill"),)).run()


@pytest.mark.parametrize(
    "turn", [ONE, ("backward 0", "step 0", "zero 0")], ids=["zero", "zero after"]
)
def test_batches_in_pieces_and_a_death_at_each_point(turn: tuple[str, ...]) -> None:
    """The script begins anew with its gradients between two pieces, as it does between batches."""
    script = TorchSeveral((turn,), samples=14, epochs=1, batch_size=4, micro_batch=1)
    steps = {each.counted.steps for each in Scenario(script=script).run().results.values()}
    assert steps == {2}
    for worker in range(3):
        for point in points(1 + worker, 90, 5, worker):
            scenario = Scenario(point % 2, script=script, faults=(Fault(worker, point, "kill"),))
            assert scenario.run().memory.job.state is JobState.FINISHED


@FEWER
@given(
    seed=SEEDS,
    np=st.integers(1, 3),
    script=st.builds(
        TorchSeveral,
        turns=st.just((ONE,)),
        samples=st.integers(5, 30),
        epochs=st.just(1),
        batch_size=st.integers(1, 6),
        micro_batch=st.integers(1, 3),
        to_none=st.booleans(),
        habit=st.sampled_from(["", SYNCHRONIZES, NOTIFIES, LEAVES_OUT]),
    ),
    changes=some(scales(), 0, 2),
    faults=some(faults("kill", "cut", "fail"), 0, 3),
)
def test_batches_in_pieces(
    seed: int, np: int, script: TorchSeveral, changes: Any, faults: tuple[Fault, ...]
) -> None:
    Scenario(seed, np, 1, 5, script, faults, changes).run()


# --- a learning rate that is tuned


class Tuned(Sgd):
    """Its learning rate is. In the counting model it counts for nothing: changes are divided by it.

    ``rates``: of each update, by its number.
    """

    def __init__(
        self, one: LoopbackWorker, optimizers: Optimizers, counting: CountingModel
    ) -> None:
        super().__init__(one.worker, optimizers, counting, True, False, [])
        self._sgd.synchronize = lambda: None  # type: ignore[attr-defined]
        self.rates: dict[int, float] = {}
        # The loss falls along each update, as far as anybody goes: it is the sum of all parameters.
        self.tuner = lr_tuner.LRTuner(
            self._sgd, lambda batch: batch * self._net.w.sum(), total=400, explore=240, share=1.0
        )

    def step(self) -> None:
        with torch.no_grad():
            self._net.w.copy_(torch.from_numpy(self._counting.w))
        self._sgd.step()
        rate = self._sgd.param_groups[0]["lr"]
        change = self._counting.w - self._net.w.detach().numpy()
        if change.any() and not self._worker.warming_up:
            self._counting.update(np.asarray(change) / rate)
            self.rates[self._worker.step] = rate
        self.tuner.step(1.0)


class WithTuner(Models):
    tuner: lr_tuner.LRTuner

    def synchronise(self, ring: Ring, root: int, receive: Receive) -> None:
        super().synchronise(ring, root, receive)
        mine = json.dumps(self.tuner.state_dict()).encode().ljust(8192)
        sent = ring.broadcast(mine, root, "edl.state.tuner")
        if receive is Receive.ALL and ring.place.rank != root:
            self.tuner.load_state_dict(json.loads(sent))


@dataclass(frozen=True)
class Tuning(TorchSeveral):
    turns: tuple[tuple[str, ...], ...] = (ONE,)
    samples: int = 60
    epochs: int = 5

    def __call__(self, one: LoopbackWorker) -> None:
        worker = one.worker
        MEMBERS[threading.get_ident()], WORKERS[threading.get_ident()] = one.member, worker
        torch.set_num_threads(1)
        worker.attach_source(*source_of(self, 0))
        models, optimizers = WithTuner(1, self.samples), Optimizers(worker)
        one.model = models.all[0]
        sgd = Tuned(one, optimizers, one.model)
        models.tuner = sgd.tuner
        worker.attach_replica(models)
        feed = CountingBatchSource(worker, 0)
        steps = BatchSteps(worker, feed, lambda: "the batch was not trained", optimizers.end_batch)
        for _ in steps.epochs(self.epochs):
            while steps.begin():
                one.compute(self.step_s)
                assert feed.batch is not None
                sgd.zero()
                sgd.compute(one.model.gradient(feed.batch))
                sgd.finish()
                sgd.step()
        told = {number: [[rate]] for number, rate in sgd.rates.items()}
        one.result = CountedSeveral(models.all, Counted(one.model, worker.step, told, {}))


WORKERS: dict[int, Worker] = {}  # by thread


@pytest.fixture
def in_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for module in (lr_tuner, lr_schedules):
        monkeypatch.setattr(module, "current_worker", lambda: WORKERS[threading.get_ident()])
    clock = SimpleNamespace(now=0.0)

    def now_s() -> float:
        clock.now += 1e-3
        return float(clock.now)

    monkeypatch.setattr("edl.contrib.lr_tuner.now_s", now_s)
    monkeypatch.setattr("edl.contrib.lr_rules.SETTLE", 2)  # these jobs are short
    yield
    WORKERS.clear()


def rates_of(scenario: Scenario) -> list[float]:
    job = scenario.run()
    assert job.memory.job.state is JobState.FINISHED
    told = {
        step: rows for each in job.results.values() for step, rows in each.counted.exchanged.items()
    }
    return [told[step][0][0] for step in sorted(told)]


def test_all_tune_alike(in_threads: None) -> None:
    for scenario in (Scenario(np=1, script=Tuning()), Scenario(np=3, script=Tuning())):
        rates = rates_of(scenario)
        assert [round(rate, 6) for rate in dict.fromkeys(rates)][:2] == [0.1, 0.4]


def test_also_those_who_come_and_those_who_survive(in_threads: None) -> None:
    for point in points(20, 150, 8):
        scenario = Scenario(
            point % 3,
            np=3,
            script=Tuning(),
            faults=(Fault(point % 2, point, "kill"),),
            changes=(Change(3 + point % 7, a=4),),
        )
        assert 0.4 in [round(rate, 6) for rate in rates_of(scenario)]
