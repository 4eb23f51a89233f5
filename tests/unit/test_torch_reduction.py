"""What becomes of gradients in a step, with the other workers played by lists of numbers."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

from edl.errors import RingBroken, UsageError
from edl.ring.ring import CollectiveFailed
from edl.step.batching import Batching
from edl.step.engine import (
    GRADIENT_ACCUMULATION,
    Batch,
    BatchStart,
    LeasesLost,
    RepairDone,
    RingPlace,
    StepEnd,
    StepEngine,
    StepSkipped,
    StepSuperseded,
)
from edl.step.record import StepRecord, StepRecords
from edl.torch import gradients
from edl.torch.gradients import PRESENT, Contribution, Gradient
from edl.torch.optimizer_state import LastStep
from edl.torch.reduction import GradientReduction, Optimizers
from edl.worker import activity
from edl.worker.loader_steps import StepDriver

Tensor = torch.Tensor
BATCH = 2


class Worker:
    """One of a ring of two. ``other``: what the other one sends, by name; zeros else."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ring: Any = SimpleNamespace(alone=False, place=SimpleNamespace(rank=0), records=0)
        self.timer = SimpleNamespace(wait=lambda: None)
        self.warming_up = self.has_state = False
        self.optimizers, self.generation, self.logical = 0, 1, 0
        self.ledger = SimpleNamespace(finished=False)
        self.finishing = SimpleNamespace()
        self.engine = StepEngine()
        self.driver = StepDriver(self.engine, self)
        self.other_samples, self.other_is_void = BATCH, False
        self.measures_noise, self.step, self.attached = False, 0, True
        self.squares: list[tuple[float, float]] = []  # measured
        self.other: dict[str, Tensor] = {}
        self.sent: list[str] = []
        self.breaks: list[Callable[[], bool]] = []  # the next waits fail; what a repair answers
        self.flights: list[tuple[Tensor, Tensor, str]] = []
        monkeypatch.setattr(gradients, "average_start", self._start)
        monkeypatch.setattr(gradients, "finish", self._finish)

    def begin(self, samples: int = BATCH, other_samples: int = BATCH, **other: Tensor) -> None:
        if self.engine.is_open and not self.engine.batches.may_grow:
            self.leave()
        batch = Batch(0, np.arange(samples or BATCH))
        self.driver.tell(BatchStart(batch, samples == 0, self.place))
        self.other_samples = other_samples
        self.other = {
            f"edl.gradient.{name}": tensor for name, tensor in other.items() if name != "present"
        }
        if (present := other.get("present")) is not None:
            self.other[PRESENT] = torch.cat([present, torch.tensor([float(self.other_is_void)])])
        self.sent = []

    def leave(self) -> None:
        self.driver.tell(StepSkipped())

    @property
    def place(self) -> RingPlace:
        return RingPlace(self.ring.alone, self.warming_up, BATCH)

    @property
    def open(self) -> bool:
        return self.engine.is_open

    @property
    def begun(self) -> int:
        return self.engine.number

    def records(self) -> StepRecords:
        own, batches = self.engine.batches.samples, self.engine.batches.count
        samples = [own] if self.ring.alone else [own, self.other_samples]
        return StepRecords.of(
            [
                StepRecord(1, self.begun, worker, 0, brought, 0, 0, 1, 0, batches=batches)
                for worker, brought in enumerate(samples)
            ]
        )

    def wait_for_records(self) -> StepRecords:
        return self.records()

    def start_record(self) -> None:
        pass

    def list_departures(self) -> None:
        raise AssertionError("nobody leaves")

    def reduced(self) -> None:
        pass

    def repair(self, _error: RingBroken) -> RepairDone:
        self.sent = []
        if self.breaks.pop(0)():
            self.engine.handle(StepSuperseded(0))
        return RepairDone(self.place)

    def accumulate(self) -> None:
        self.driver.tell(GRADIENT_ACCUMULATION)

    def end(self) -> None:
        self.driver.tell(StepEnd(trained=True))

    @property
    def source(self) -> Any:
        return SimpleNamespace(batch_size=BATCH, batching=Batching(BATCH))

    def _start(self, tensor: Tensor, output: Tensor, name: str) -> int:
        assert output.is_contiguous()
        assert tensor.is_contiguous()
        self.sent.append(name)
        self.flights.append((tensor, output, name))
        return len(self.flights) - 1

    @property
    def loader(self) -> Worker:
        return self

    @property
    def progress(self) -> Worker:
        return self

    @property
    def noise(self) -> Worker:
        return self

    def is_due(self, step: int) -> bool:
        return self.measures_noise

    def measured(self, own: float, mean: float) -> None:
        self.squares.append((own, mean))

    def _finish(self, handle: int) -> Tensor:
        if self.breaks:
            raise CollectiveFailed("gone")
        mine, output, name = self.flights[handle]
        theirs = self.other.get(name, torch.zeros_like(mine))
        return output.copy_((mine + theirs.to(mine.dtype).reshape(mine.shape)) / 2)


def optimizers_of(worker: Any) -> Optimizers:
    return Optimizers(worker)


class Job:
    """One worker's model of named scalars, with edl's hooks as ``edl.Optimizer`` sets them.

    ``frozen``: the name of a frozen parameter of integers, as a quantized weight is.
    """

    def __init__(
        self, worker: Worker, *names: str, frozen: str = "", passes: int = 1, **options: Any
    ) -> None:
        self.worker = worker
        self.model = torch.nn.Module()
        for name in names:
            self.model.register_parameter(name, torch.nn.Parameter(torch.ones(())))
        if frozen:
            codes = torch.nn.Parameter(torch.ones(4, dtype=torch.uint8), requires_grad=False)
            self.model.register_parameter(frozen, codes)
        self.sgd = torch.optim.SGD(self.model.parameters(), lr=1.0, **options)
        self.last_step = LastStep()
        worker.engine.parts.clear()  # of the job before
        worker.driver.reducers.clear()
        self.optimizers = optimizers_of(worker)
        self.reduction = GradientReduction(
            self.optimizers, self.sgd, self.model, self.last_step, passes
        )

    def __getattr__(self, name: str) -> torch.nn.Parameter:
        return self.model.get_parameter(name)

    def step(self) -> None:
        self.reduction.begin_update()
        self.sgd.step()
        self.reduction.end_step(skipped=False)

    def gradients(self) -> dict[str, float | None]:
        named = self.model.named_parameters()
        return {n: None if p.grad is None else p.grad.item() for n, p in named}


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Worker:
    return Worker(monkeypatch)


def ones(*numbers: float) -> Tensor:
    return torch.tensor(numbers)


def test_the_mean_is_there_when_backward_returns(worker: Worker) -> None:
    job = Job(worker, "a", "b")
    worker.begin(present=ones(1, 1), a=ones(8), b=ones(0))
    (2 * job.a + 4 * job.b).backward()
    assert job.gradients() == {"a": 5.0, "b": 2.0}
    assert worker.sent[-1] == PRESENT
    job.step()
    assert (job.a.item(), job.b.item()) == (-4.0, -1.0)


@pytest.mark.parametrize("passes", [1, 2])
def test_a_frozen_parameter_of_integers_has_no_gradient(worker: Worker, passes: int) -> None:
    job = Job(worker, "a", frozen="codes", passes=passes)
    worker.begin(present=ones(1, 0), a=ones(8))
    for _ in range(passes):
        (2 * job.a).backward()
    job.step()
    assert job.a.item() == 1.0 - (2 * passes + 8) / 2
    assert job.codes.tolist() == [1, 1, 1, 1]


def test_what_is_sent_of_presence_is_float32_whatever_the_default_is(worker: Worker) -> None:
    job = Job(worker, "a")
    worker.begin(present=ones(1), a=ones(8))
    torch.set_default_dtype(torch.bfloat16)
    try:
        (2 * job.a).backward()
    finally:
        torch.set_default_dtype(torch.float32)
    assert [sent.dtype for sent, _, name in worker.flights if name == PRESENT] == [torch.float32]


def test_who_has_a_gradient_is_decided_together(worker: Worker) -> None:
    job = Job(worker, "mine", "theirs", "nobodys", weight_decay=0.5)
    worker.begin(present=ones(0, 1, 0), theirs=ones(8))
    (2 * job.mine).backward()
    assert job.gradients() == {"mine": 1.0, "theirs": 4.0, "nobodys": None}
    assert worker.sent == ["edl.gradient.mine", PRESENT, "edl.gradient.theirs"]
    job.step()
    assert job.nobodys.item() == 1.0
    # Zeroed gradients are gradients, as in one process. The other worker is a newcomer without.
    job.sgd.zero_grad(set_to_none=False)
    worker.begin(present=ones(0, 0, 0))
    (2 * job.mine).backward()
    assert job.gradients() == {"mine": 1.0, "theirs": 0.0, "nobodys": None}


def test_a_batch_for_padding_counts_for_nothing(worker: Worker) -> None:
    job = Job(worker, "a", "b", "c")
    worker.begin(samples=0, other_samples=1, present=ones(1, 0, 1), a=ones(3), c=ones(5))
    (job.a * float("inf") + job.b).backward()
    assert job.gradients() == {"a": 6.0, "b": None, "c": 10.0}, "sent: n_i / 2 of it"
    assert worker.sent == [PRESENT, "edl.gradient.a", "edl.gradient.c"], "it sends nothing early"


def test_nobody_sends_where_nobody_has_samples(worker: Worker) -> None:
    job = Job(worker, "a", weight_decay=0.5)
    worker.begin(samples=0, other_samples=0)
    job.a.backward()
    assert (worker.sent, job.gradients()) == ([], {"a": 0.0})
    job.step()
    assert job.a.item() == 1.0


def test_survivors_send_all_of_it_again(worker: Worker) -> None:
    job = Job(worker, "a", "b")
    worker.begin(present=ones(1, 1), a=ones(8), b=ones(6))

    def survive() -> bool:
        assert job.gradients() == {"a": 2.0, "b": None}, "untouched"
        return False

    worker.breaks = [survive, survive]
    (2 * job.a).backward()
    assert job.gradients() == {"a": 5.0, "b": 3.0}
    assert worker.sent == [PRESENT, "edl.gradient.a", "edl.gradient.b"]


def test_a_survivor_without_samples_any_more_sends_zeros(worker: Worker) -> None:
    job = Job(worker, "a")
    worker.begin(present=ones(1), a=ones(8))

    def survive() -> bool:
        worker.engine.handle(LeasesLost())
        return False

    worker.breaks = [survive]
    (2 * job.a).backward()
    assert job.gradients() == {"a": 8.0}


@pytest.mark.parametrize("skipped", [False, True])
def test_a_worker_that_missed_a_step_decides_as_the_others(skipped: bool, worker: Worker) -> None:
    """Their state is in the model. What they have not applied must not look finite here."""
    job = Job(worker, "a", weight_decay=0.5)
    worker.begin()

    def completed_by_peers() -> bool:
        job.last_step.skipped = skipped  # with the state
        with torch.no_grad():
            job.a.fill_(7.0)
        return True

    worker.breaks = [completed_by_peers]
    (2 * job.a).backward()
    norm = torch.nn.utils.clip_grad_norm_([job.a], 1.0)
    assert bool(norm.isfinite()) is not skipped
    if not skipped:
        job.step()
    job.reduction.end_batch()
    assert (job.a.item(), worker.loader.open) == (7.0, False)
    assert job.last_step.skipped is skipped


@pytest.mark.parametrize("completed_by_peers", [True, False])
def test_a_received_result_is_written_again_in_its_own_step_only(
    completed_by_peers: bool, worker: Worker
) -> None:
    """With several optimizers the next step of this one may be an update of its own."""
    job, written = Job(worker, "a"), []
    worker.begin(present=ones(1), a=ones(2))

    def survive() -> bool:
        job.last_step.missed = lambda: written.append(job.a.item())
        return completed_by_peers

    worker.breaks = [survive]
    (2 * job.a).backward()
    job.step()
    assert (len(written), job.last_step.missed) == (completed_by_peers, None)
    job.last_step.missed = lambda: None
    job.reduction.note_skipped()
    assert job.last_step.missed is None, "the step is over"


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_segments(reentrant: bool, worker: Worker) -> None:
    job = Job(worker, "a", "b")
    worker.begin(present=ones(1, 1), a=ones(8), b=ones(0))

    def inner(x: Tensor) -> Tensor:
        return x * job.a

    def outer(x: Tensor) -> Tensor:
        y: Tensor = checkpoint(inner, x, use_reentrant=reentrant)
        return y + x * job.b

    x = torch.tensor(2.0, requires_grad=True)
    checkpoint(outer, x, use_reentrant=reentrant).backward()
    assert job.gradients() == {"a": 5.0, "b": 1.0}
    assert worker.sent[-1] == PRESENT


def test_gradients_by_other_means_are_no_second_backward(worker: Worker) -> None:
    job = Job(worker, "a")
    worker.begin(present=ones(1), a=ones(0))
    x = torch.tensor(3.0, requires_grad=True)
    (slope,) = torch.autograd.grad(job.a * x, x, create_graph=True)
    (job.a * x + slope**2).backward()
    assert job.gradients() == {"a": 2.5}


def test_parameters_that_are_trained_later(worker: Worker) -> None:
    job = Job(worker, "a", "b")
    job.a.requires_grad_(False)
    worker.begin(present=ones(0, 1))
    job.b.backward()
    job.step()
    job.sgd.zero_grad()
    job.a.requires_grad_(True)
    job.b.requires_grad_(False)
    job.model.register_parameter("c", torch.nn.Parameter(torch.ones(())))
    job.sgd.add_param_group({"params": [job.c]})
    job.reduction.end_batch()
    worker.begin(present=ones(1, 0, 1), a=ones(1), c=ones(3))
    (job.a + job.c).backward()
    assert job.gradients() == {"a": 1.0, "b": None, "c": 2.0}


@pytest.mark.parametrize("kernel", [1, 2])
def test_other_layouts_of_memory(kernel: int, worker: Worker) -> None:
    model = torch.nn.Conv2d(2, 3, kernel, bias=False).to(memory_format=torch.channels_last)
    sgd = torch.optim.SGD(model.parameters(), lr=0.0)
    reduction = GradientReduction(optimizers_of(worker), sgd, model, LastStep())
    images = torch.randn(2, 2, 4, 4).to(memory_format=torch.channels_last)
    for samples in (0, 2, 2, 2):
        sgd.zero_grad()
        worker.begin(samples, present=ones(1))
        (local,) = torch.autograd.grad(model(images).square().sum(), [model.weight])
        model(images).square().sum().backward()
        mean = model.weight.grad
        assert mean is not None
        assert torch.equal(mean, local * samples / 4)
        # A fused optimizer goes through the memory of both.
        assert mean.stride() == model.weight.stride()
        reduction.end_step(skipped=False)


def test_the_mean_of_a_row_major_gradient_is_not_copied(worker: Worker) -> None:
    job = Job(worker, "a")
    worker.begin(present=ones(1), a=ones(1))
    job.a.backward()
    received = {name: output for _, output, name in worker.flights}
    assert job.a.grad is received["edl.gradient.a"]


def test_a_graph_of_gradients_is_none_of_the_jobs(worker: Worker) -> None:
    job = Job(worker, "a")
    worker.begin(present=ones(1), a=ones(4))
    with pytest.warns(UserWarning, match="create_graph=True"):
        (job.a**2).backward(create_graph=True)
    assert job.a.grad is not None
    assert (job.gradients(), job.a.grad.requires_grad) == ({"a": 3.0}, False)


# --- several backward passes in one step


def test_gradients_of_several_batches_are_sent_with_the_last(worker: Worker) -> None:
    job = Job(worker, "a", "b")
    for _ in range(2):
        worker.begin()
        with job.reduction.accumulation.no_sync():
            (2 * job.a + job.b).backward()
        assert (worker.sent, job.gradients()) == ([], {"a": 2.0, "b": 1.0})
        worker.begin(other_samples=2 * BATCH, present=ones(1, 0), a=ones(8))
        (4 * job.a).backward()
        assert job.gradients() == {"a": 7.0, "b": 0.5}
        assert worker.sent == ["edl.gradient.a", PRESENT, "edl.gradient.b"]
        job.step()
        job.sgd.zero_grad()


def test_each_batch_weighs_as_its_samples(worker: Worker) -> None:
    job = Job(worker, "a", "b")
    for samples, slope in ((BATCH, 3.0), (1, 9.0)):
        worker.begin(samples, other_samples=3, present=ones(1, 0), a=ones(1.5))
        with job.reduction.accumulation.no_sync():
            (slope * job.a / 3).backward()
    worker.begin(samples=0, other_samples=3, present=ones(1, 0), a=ones(1.5))
    (float("inf") * job.a + job.b).backward()
    assert job.gradients() == {"a": pytest.approx((2 * 3 + 1 * 9 + 3 * 3) / 6), "b": None}


def test_a_last_batch_for_padding_is_sent_with_those_before(worker: Worker) -> None:
    job = Job(worker, "a")
    worker.begin()
    with job.reduction.accumulation.no_sync():
        (2 * job.a).backward()
    worker.begin(samples=0, other_samples=0, present=ones(0))
    (float("nan") * job.a).backward()
    assert job.gradients() == {"a": 4.0}, "the mean over one full batch of two"


def test_alone_each_batch_weighs_as_its_samples_too(worker: Worker) -> None:
    worker.ring.alone = True
    job = Job(worker, "a")
    for samples, slope in ((BATCH, 3.0), (1, 9.0)):
        worker.begin(samples)
        with job.reduction.accumulation.no_sync():
            (slope * job.a / 2).backward()
    job.step()
    assert job.a.item() == pytest.approx(1 - (2 * 3 + 1 * 9) / 3)
    job.sgd.zero_grad()
    worker.begin(samples=1)
    (3 * job.a).backward()
    assert job.gradients() == {"a": 3.0}, "a small batch of one pass is as it is"


@pytest.mark.parametrize("samples", [BATCH, 1])
def test_passes_over_the_parts_of_one_batch(samples: int, worker: Worker) -> None:
    job = Job(worker, "a", passes=3)
    for _ in range(2):
        worker.begin(samples, other_samples=0, present=ones(0))
        for slope in (1.0, 2.0, 3.0):
            assert worker.sent == []
            (slope * job.a).backward()
        assert worker.sent == ["edl.gradient.a", PRESENT]
        assert job.gradients() == {"a": pytest.approx(6.0)}
        with pytest.raises(UsageError, match=r"gradient of a was computed twice in one step"):
            job.a.backward()
        job.step()
        job.sgd.zero_grad()


def test_sums_of_batches_that_the_script_has_left_are_dropped(worker: Worker) -> None:
    job = Job(worker, "a", passes=3)
    worker.begin()
    (8 * job.a).backward()
    worker.leave()
    job.reduction.end_batch()
    worker.begin(present=ones(0))
    for _ in range(3):
        assert worker.sent == []
        (2 * job.a).backward()
    assert job.gradients() == {"a": 3.0}


@pytest.mark.parametrize("passes", [1, 3])
def test_a_step_after_fewer_passes_sends_what_there_is(passes: int, worker: Worker) -> None:
    job = Job(worker, "a", passes=passes)
    worker.begin(present=ones(1), a=ones(8))
    with contextlib.nullcontext() if passes > 1 else job.reduction.accumulation.no_sync():
        (2 * job.a).backward()
    assert worker.sent == []
    job.step()
    assert job.a.item() == 1.0 - 5.0
    job.sgd.zero_grad()
    worker.begin()
    job.a.backward()
    assert bool(worker.sent) == (passes == 1), "the next step begins anew"


def test_survivors_send_the_sum_again_and_who_missed_the_step_drops_it(worker: Worker) -> None:
    job = Job(worker, "a", weight_decay=0.5)
    for completed_by_peers in (False, True):
        worker.begin()
        with job.reduction.accumulation.no_sync():
            (2 * job.a).backward()
        worker.begin(other_samples=2 * BATCH, present=ones(1), a=ones(8))
        worker.breaks = [lambda answer=completed_by_peers: answer]
        (2 * job.a).backward()
        assert job.gradients() == {"a": 0.0 if completed_by_peers else 6.0}
        before = job.a.item()
        job.step()
        assert (job.a.item() == before) == completed_by_peers
        job.sgd.zero_grad()


def test_a_batch_may_be_left_out_of_a_step(worker: Worker) -> None:
    job = Job(worker, "a")
    for left_out in (True, False):
        worker.begin()
        with job.reduction.accumulation.no_sync():
            if left_out:
                assert job.reduction.accumulation.leave_out()
            else:
                (3 * job.a).backward()
    worker.begin(other_samples=3 * BATCH, present=ones(0))
    assert not job.reduction.accumulation.leave_out()
    (3 * job.a).backward()
    assert job.gradients() == {"a": 3.0}


def test_gradients_that_are_not_added_up_are_not_weighted(worker: Worker) -> None:
    job = Job(worker, "a", "b")
    worker.begin()
    with job.reduction.accumulation.no_sync():
        job.a.backward()
    worker.begin(samples=0, other_samples=2 * BATCH, present=ones(1, 1))
    with job.reduction.accumulation.no_sync():
        assert torch.autograd.grad(3 * job.b, job.b) == (torch.tensor(3.0),)
        (job.a * float("nan")).backward()
    worker.begin(other_samples=2 * BATCH, present=ones(1, 1))
    (job.a + job.b).backward()
    assert job.gradients() == {"a": pytest.approx(2 * 3 / 2 / 2), "b": pytest.approx(3 / 2 / 2)}


def test_nothing_to_train_leaves_gradients_that_a_scaler_can_look_at(worker: Worker) -> None:
    job = Job(worker, "a", passes=2)
    worker.begin(samples=0, other_samples=0)
    for _ in range(2):
        job.a.backward()
    assert job.gradients() == {"a": 0.0}


def test_a_model_that_has_changed_since_is_refused_by_name(worker: Worker) -> None:
    job = Job(worker, "a", passes=2)
    job.model.double()
    worker.begin(samples=1)
    with pytest.raises(UsageError, match="the dtype or the device of a has changed since"):
        job.a.backward()


def test_no_sync_ends_with_its_block(worker: Worker) -> None:
    job = Job(worker, "a")
    with contextlib.suppress(ZeroDivisionError), job.reduction.accumulation.no_sync():
        raise ZeroDivisionError
    with job.reduction.accumulation.no_sync(), job.reduction.accumulation.no_sync():
        pass
    worker.begin(present=ones(1))
    job.a.backward()
    assert worker.sent


# --- refusals


def test_a_second_backward_is_refused_by_name(worker: Worker) -> None:
    job = Job(worker, "a", "b")
    worker.begin(present=ones(1, 0))
    job.a.backward()
    with pytest.raises(UsageError, match="gradient of a was computed twice in one step"):
        job.a.backward()
    with pytest.raises(UsageError, match=r"gradient of b was computed by a second backward\(\)"):
        job.b.backward()


def test_a_change_while_the_reduction_is_under_way_is_refused_by_name(worker: Worker) -> None:

    def clip(parameter: Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.clamp_(max=0.1)

    def replace(parameter: Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad = parameter.grad / 2

    def remove(parameter: Tensor) -> None:
        parameter.grad = None

    for change in (clip, replace, remove):
        job = Job(worker, "a", "b")
        job.a.register_post_accumulate_grad_hook(change)  # type: ignore[no-untyped-call]
        worker.begin()
        with pytest.raises(UsageError, match="gradient of a was changed while it was being"):
            (job.a + job.b).backward()


@pytest.mark.parametrize("alone", [False, True])
def test_gradients_over_batches_are_refused_by_name(alone: bool, worker: Worker) -> None:
    worker.ring.alone = alone
    job = Job(worker, "a", "b")
    for settle in (job.step, job.reduction.end_batch):
        job.sgd.zero_grad()
        worker.begin(present=ones(1, 1))
        (job.a + job.b).backward()
        settle()
        worker.begin(present=ones(1, 1))
        with pytest.raises(UsageError, match="gradient of a is still there from the step before"):
            job.a.backward()
        job.reduction.skip()
    job.sgd.zero_grad()
    worker.begin(present=ones(1, 1))
    (job.a + job.b).backward()
    job.step()
    worker.begin(present=ones(1, 1))
    job.a.grad = None
    with pytest.raises(UsageError, match="gradient of b is still there from the step before"):
        job.a.backward()


def test_with_several_a_gradient_of_the_step_before_is_refused_though_others_have_one() -> None:
    """It was not sent, and the mean is that of the others; one that was zeroed is no such one."""
    parameter = torch.nn.Parameter(torch.ones(1))
    gradient = Gradient(parameter, Contribution(parameter, lambda: None), name="a")
    parameter.grad = ones(3.0)
    gradient.remember()
    gradient.become_mean(ones(5.0), step=2)
    with pytest.raises(UsageError, match="gradient of a is still there from the step before"):
        gradient.check_unmixed(2)
    parameter.grad.zero_()
    assert gradient.is_local(3)
    gradient.become_mean(ones(5.0), step=3)
    gradient.check_unmixed(3)


ZEROING: dict[str, Callable[[Job], None]] = {
    "none": lambda job: job.sgd.zero_grad(),
    "zeros": lambda job: job.sgd.zero_grad(set_to_none=False),
    "model": lambda job: job.model.zero_grad(set_to_none=False),
    "by hand": lambda job: [p.grad.zero_() for p in job.model.parameters()] and None,  # type: ignore[union-attr]
}


@pytest.mark.parametrize("how", ZEROING)
@pytest.mark.parametrize("skips", [False, True])
def test_gradients_that_are_zeroed_are_not_refused(how: str, skips: bool, worker: Worker) -> None:
    job = Job(worker, "a", "b")
    for _ in range(4):
        worker.begin(present=ones(1, 1), a=ones(1), b=ones(3))
        (job.a + job.b).backward()
        torch.nn.utils.clip_grad_norm_(job.model.parameters(), 100.0)
        assert job.gradients() == {"a": 1.0, "b": 2.0}
        if skips:
            job.reduction.end_batch()
        else:
            job.step()
        assert not worker.loader.open
        ZEROING[how](job)


def test_an_unreduced_step_is_not_settled(worker: Worker) -> None:
    job = Job(worker, "a")
    worker.begin()
    job.reduction.end_batch()
    assert worker.loader.open
    job.reduction.skip()
    assert (worker.loader.open, worker.sent) == (False, [PRESENT])


def test_errors_come_out_of_backward_as_themselves(worker: Worker) -> None:
    for error in (SystemExit(0), RingBroken(1, "for good"), UsageError("no")):
        job = Job(worker, "a")
        worker.begin()

        def fail(error: BaseException = error) -> bool:
            raise error

        worker.breaks = [fail]
        with pytest.raises(type(error)) as raised:
            job.a.backward()
        assert raised.value is error
        worker.breaks = []


def test_a_wait_at_the_end_of_backward_is_found_in_any_thread(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU the end of backward may come in a thread of the engine's."""
    watch = activity.ThreadWatch(worker.ring)
    watch.start()
    waiting, go_on = threading.Event(), threading.Event()

    @activity.waits("waiting for a test")
    def wait(_handle: int) -> Tensor:
        waiting.set()
        go_on.wait(10)
        return ones(0, 0)

    job = Job(worker, "a")
    worker.begin(samples=0)
    monkeypatch.setattr(gradients, "finish", wait)
    thread = threading.Thread(target=job.a.backward)
    with _joined(thread, go_on):
        assert waiting.wait(10)
        assert watch.look().doing == "waiting for a test"


@contextlib.contextmanager
def _joined(thread: threading.Thread, go_on: threading.Event) -> Iterator[None]:
    thread.start()
    try:
        yield
    finally:
        go_on.set()
        thread.join(10)


def test_pieces_of_a_step_that_the_script_has_left_are_not_added() -> None:
    parameter = torch.nn.Parameter(torch.zeros(2))
    gradient = Gradient(parameter, Contribution(parameter, lambda: None))
    for step, ones in ((3, 1.0), (3, 2.0)):
        parameter.grad, gradient.computed = torch.full((2,), ones), step
        gradient.put_aside(step)
        assert parameter.grad is None
    gradient.take_back(3)
    assert parameter.grad is not None
    assert parameter.grad.tolist() == [3.0, 3.0]
    parameter.grad = torch.ones(2)
    gradient.put_aside(3)
    parameter.grad, gradient.computed = torch.full((2,), 5.0), 4
    gradient.take_back(4)
    assert parameter.grad.tolist() == [5.0, 5.0]
    parameter.grad = torch.full((2,), 7.0)  # of an earlier step: it is not this one's to take
    gradient.put_aside(5)
    assert parameter.grad.tolist() == [7.0, 7.0]
