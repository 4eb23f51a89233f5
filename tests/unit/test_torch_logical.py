"""The gradients and buffers of logical workers, and what a script must not do with them."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from edl.binding.exact import Summands, exact_means
from edl.errors import UsageError
from edl.step.state_check import AuditSteps
from edl.step.weighting import Averaging, Weights
from edl.torch import logical
from edl.torch.gradients import Gradient
from edl.torch.logical import LogicalBuffers, LogicalSums
from edl.worker.worker import Worker


@pytest.fixture(autouse=True, params=["cpu", "gpu"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    for module in (logical, logical):
        monkeypatch.setattr(module, "is_launched", lambda _: request.param == "gpu")
    return str(request.param)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(3))
        self.register_buffer("written", torch.tensor([1000.0, 1e-3], dtype=torch.float64))
        self.register_buffer("replaced", torch.zeros(2))
        self.register_buffer("seen", torch.tensor(5))

    def run(self, number: float) -> None:
        cast(torch.Tensor, self.written)[1] += number
        self.replaced = self.replaced + number
        cast(torch.Tensor, self.seen).add_(1)


class Pieces:
    def __init__(self, micro_batch: int = 2) -> None:
        self.net = Net()
        batching = SimpleNamespace(micro_batch=micro_batch)
        self.loader = SimpleNamespace(
            batch_weight=micro_batch,
            progress=SimpleNamespace(source=SimpleNamespace(batching=batching)),
            engine=SimpleNamespace(records=None, batches=SimpleNamespace(newest=None)),
            sampler=SimpleNamespace(audit=AuditSteps()),
        )
        self.sums = LogicalSums(cast(Worker, SimpleNamespace(loader=self.loader)), self.net, "")
        part: Any = None
        self.gradient = Gradient(self.net.w, part, name="w")

    def piece(self, number: float, gradient: torch.Tensor | None, samples: int = 2) -> None:
        self.loader.batch_weight = samples
        self.sums.begin_piece(1, 7)
        assert self.net.replaced.tolist() == [0.0, 0.0], "each begins with those of the step"
        self.net.run(number)
        if gradient is not None:
            self.gradient.computed, self.net.w.grad = 1, gradient
        self.sums.end_piece([self.gradient])
        assert self.net.w.grad is None

    def means(self, samples: int) -> tuple[torch.Tensor | None, dict[str, list[float]]]:
        weights = Weights(Averaging.LOCAL, total=samples)
        found = self.sums.means([self.gradient], weights, lambda: None)
        for buffer, mean in found.buffers:
            buffer.copy_(mean)
        buffers = {name: each.tolist() for name, each in self.net.named_buffers()}
        return (found.gradients[0][1] if found.gradients else None), buffers


def test_each_begins_with_the_same_buffers_and_the_step_ends_with_their_mean() -> None:
    pieces = Pieces()
    pieces.piece(0.25, torch.tensor([1.0, 2.0, 3.0]))
    pieces.piece(0.75, torch.tensor([3.0, 4.0, 5.0]))
    pieces.piece(9.0, torch.tensor([9.0, 9.0, 9.0]), samples=0)  # padding
    gradient, buffers = pieces.means(4)
    assert gradient is not None
    assert gradient.tolist() == [2.0, 3.0, 4.0]
    assert buffers["written"] == pytest.approx([1000.0, 0.501], abs=1e-12)
    assert (buffers["replaced"], buffers["seen"]) == ([0.5, 0.5], 6)


def test_a_short_one_counts_by_its_samples() -> None:
    pieces = Pieces()
    pieces.piece(0.0, torch.tensor([3.0, 3.0, 3.0]))
    pieces.piece(0.0, torch.tensor([6.0, 6.0, 6.0]), samples=1)
    gradient, _ = pieces.means(3)
    assert gradient is not None
    assert gradient.tolist() == [4.0, 4.0, 4.0]


def test_what_is_not_finite_stays_where_it_is() -> None:
    pieces = Pieces()
    pieces.piece(0.0, torch.tensor([1.0, torch.inf, 3.0]))
    pieces.piece(0.0, torch.tensor([2.0, 1.0, torch.nan]))
    gradient, _ = pieces.means(4)
    assert gradient is not None
    assert (gradient[0], gradient[1], gradient[2].isnan()) == (1.5, torch.inf, True)


def test_zeros_are_no_gradient_and_a_gradient_by_hand_is_refused() -> None:
    """An optimizer with weight decay changes a parameter by zeros, once for each pass."""
    pieces = Pieces()
    pieces.sums.begin_piece(1, 7)
    pieces.net.w.grad = torch.zeros(3)
    pieces.sums.end_piece([pieces.gradient])
    assert pieces.net.w.grad is None
    assert pieces.means(2)[0] is None
    pieces.sums.begin_piece(1, 7)
    pieces.net.w.grad = torch.ones(3)
    with pytest.raises(UsageError, match="the gradient of w was set by the script and not by"):
        pieces.sums.end_piece([pieces.gradient])


def test_a_second_backward_and_a_changed_gradient_are_refused() -> None:
    pieces = Pieces()
    pieces.loader.engine.logical = True
    pieces.sums.begin_piece(1, 7)
    pieces.net.w.grad = torch.ones(3)
    pieces.sums.end_backward([pieces.gradient])
    with pytest.raises(UsageError, match=r"backward\(\) 2 times for the .* says, which is 1"):
        pieces.sums.end_backward([pieces.gradient])
    torch.nn.utils.clip_grad_norm_([pieces.net.w], 0.1)
    with pytest.raises(UsageError, match=r"call optimizer\.synchronize\(\) before"):
        pieces.sums.end_piece([pieces.gradient])
    pieces.sums.unstepped = 1
    with pytest.raises(UsageError, match=r"a batch without calling optimizer\.step\(\): call it"):
        pieces.sums.begin_piece(1, 7)


def test_the_mean_of_a_buffer_does_not_depend_on_who_has_which_pass() -> None:
    """The grain counts the values that a worker's passes have not changed, too."""
    means = []
    for numbers in ([0.1], [0.1, 0.0]):
        pieces = Pieces()
        for number in numbers:
            pieces.piece(number, None)
        rows = [*pieces.sums._buffers.summands(2)]
        largest = max(each.base.abs().max().item() for each in rows[:1])
        means.append(largest)
    assert means == [1000.0, 1000.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
@pytest.mark.parametrize("is_alike", [True, False])
def test_a_mean_lies_in_memory_as_its_parameter(is_alike: bool, dtype: torch.dtype) -> None:
    numbers = torch.arange(6.0).view(3, 2).to(dtype)
    parameter = torch.nn.Parameter(torch.zeros(2, 3, dtype=dtype).T)
    own = [(numbers.clone(), 1.0) for _ in range(2)]
    if is_alike:
        own = [(numbers.T.contiguous().T, 1.0) for _ in range(2)]
    (mean,) = exact_means(
        [Summands(parameter, own, 1.0)], 2, [], logical.Tensors(), lambda alone, _: alone
    )
    assert torch.equal(mean, 2 * numbers)
    assert mean.stride() == parameter.stride()
    assert (mean is own[0][0]) == is_alike


class Several(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name in ("never", "once", "same", "replaced", "gone"):
            self.register_buffer(name, torch.tensor([3.0, 4.0]))
        self.register_buffer("large", torch.zeros(5))
        self.register_buffer("many", torch.ones(1).expand(4))
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("flag", torch.tensor([False]))
        self.register_buffer("transposed", torch.arange(6.0).view(2, 3).T)
        self.register_buffer("empty", torch.zeros(0))

    def run(self, number: int) -> None:
        if number == 1:
            self.once[0] = math.nan
            self.large[2] = 7.0
            self.flag[0] = True
            self.transposed[0, 1] += 2.0
        self.same.copy_(torch.tensor([3.0, 4.0]))
        self.replaced = self.replaced.clone()
        self.gone = None
        self.count += number


def test_only_buffers_that_a_pass_has_changed_have_a_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logical, "SMALL", 4)  # so that the one of five is large
    model = Several()
    buffers, names = LogicalBuffers(model), [name for name, _ in model.named_buffers()]
    before = {name: each.clone() for name, each in model.named_buffers()}
    buffers.begin_step()
    for number in (0, 1, 2):
        model.run(number)
        buffers.end_piece(counts=number < 2)
        for name, each in model.named_buffers():
            assert torch.equal(each, before[name]), f"{name} is put back"
    rows = dict(zip(names, buffers.summands(2), strict=True))
    changed = {name for name, row in rows.items() if row.counts}
    assert changed == {"once", "large", "replaced", "count", "flag", "transposed"}
    for name, row in rows.items():
        assert [values.shape for values, _ in row.own] == [before[name].shape] * 2
        assert torch.equal(row.own[0][0], before[name])
    once = rows["once"].own[1][0]
    assert (once[0].isnan(), once[1]) == (True, 4.0)
    assert rows["count"].own[1][0] == 1
    assert rows["transposed"].own[1][0].tolist() == [[0.0, 5.0], [1.0, 4.0], [2.0, 5.0]]
