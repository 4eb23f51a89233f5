"""Warn once if the script's loss is not a mean over the samples of a batch.

The autograd graph of a loss shows which functions reduce the batch to one number, and what divides
their results. Only the first 20 backward passes are checked, on rank 0, without the warm-up and
without batches of one sample; until then ``torch.autograd.backward``, which ``Tensor.backward``
calls, is replaced. A loss compiled with its model is one node of the graph, and cannot be checked.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from edl.step.weighting import LossTerm, why_no_mean
from edl.worker.worker import Worker

logger = logging.getLogger(__name__)
CHECKS = 20  # backward passes that are checked: the first batches may all be without padding
MAX_NODES = 100  # of a graph that are visited
NOTHING, MEAN, SUM = 0, 1, 2  # the reductions of a loss function, as its node keeps them
# Functions of one number: nodes between the loss and its terms.
_PASSING = {"Add", "Sub", "Neg", "Mul", "Div", "View", "Squeeze", "Unsqueeze", "ToCopy", "Clone"}
_ELEMENTWISE = {
    *("Pow", "Abs", "Mul", "Neg", "View", "Clone", "ToCopy", "Square", "Sqrt", "T"),
    *("Add", "Sub", "Div", "Exp", "Log", "Softplus", "Cat"),
}
_SELECTING = {"Index", "MaskedSelect"}


class LossCheck:
    """A check whether the script's first losses are means over the samples of their batches."""

    def __init__(self, worker: Worker) -> None:
        self._worker, self._left = worker, CHECKS
        self._before: dict[str, LossTerm] = {}
        self._plain: Callable[..., None] = torch.autograd.backward

    def begin(self) -> None:
        if not self._worker.is_shared:
            return
        self._plain = torch.autograd.backward

        def backward(tensors: Any, *arguments: Any, **named: Any) -> None:
            if self._left > 0:
                self._check(tensors)
            if self._left == 0 and torch.autograd.backward is backward:
                torch.autograd.backward = self._plain
            return self._plain(tensors, *arguments, **named)

        torch.autograd.backward = backward

    def end(self) -> None:
        """Check no further losses; call this where another weighting of the losses is known."""
        self._left = 0

    def _check(self, tensors: Any) -> None:
        worker = self._worker
        if worker.warming_up or not worker.loader.open:
            return
        samples = worker.loader.batch_weight
        losses = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        if samples < 2 or not isinstance(losses, list | tuple):
            return
        self._left -= 1
        if worker.rank != 0:
            return
        try:
            for loss in losses:
                if isinstance(loss, torch.Tensor) and (why := self.why_no_mean(loss, samples)):
                    logger.warning("%s", why)
                    self._left = 0
                    return
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
            # The attributes of nodes are no public interface of PyTorch.
            logger.debug("the losses are not checked, their graph cannot be read: %s", error)
            self._left = 0

    def why_no_mean(self, loss: torch.Tensor, samples: int) -> str | None:
        for number, term in enumerate(terms_of(loss, samples)):
            key = f"{number}.{term.name}"
            # The divisor of a mean over the samples grows with their number.
            if (why := why_no_mean(term, self._before.get(key))) is not None:
                return why
            self._before.setdefault(key, term)
        return None


def terms_of(loss: torch.Tensor, samples: int) -> Iterator[LossTerm]:
    # each node, what its result is divided by, and the product of the factors below 1
    waiting: list[tuple[Any, float, float]] = [(loss.grad_fn, 1.0, 1.0)]
    for _ in range(MAX_NODES):
        if not waiting:
            return
        node, divisor, factor = waiting.pop()
        if node is None:
            continue
        kind, below = _kind(node), _below(node)
        if kind == "Stack" or (kind in _PASSING and len(_sizes(node)) == 0):
            # One that is learned, or computed by the model, says nothing of the size of the batch.
            other, number = getattr(node, "_saved_other", None), 1.0
            if isinstance(other, int | float):  # one of Python, as for ``label_smoothing``
                number = abs(float(other))
            elif isinstance(other, torch.Tensor) and other.numel() == 1:
                number = math.inf if other.requires_grad else abs(float(other))
            divisor *= number if kind == "Div" else 1.0
            factor *= number if kind == "Mul" and 0 < number < 1 else 1.0
            waiting += [(each, divisor, factor) for each in below]
        elif kind in ("Sum", "Mean") and below and _kind(below[0]) == "Stack":
            waiting.append((below[0], divisor, factor))  # of a list of losses
        elif (term := _term(node, kind, samples, divisor, factor)) is not None:
            yield term


def _term(node: Any, kind: str, samples: int, divisor: float, factor: float) -> LossTerm | None:
    reduction = getattr(node, "_saved_reduction", NOTHING)
    if kind == "Sum":
        reduction = SUM
    elif kind == "Mean":
        reduction = MEAN
    if reduction == NOTHING:
        return None
    entries = _entries(node)
    selects = any(_kind(each) in _SELECTING for each in _below(node))
    if kind in ("Sum", "Mean") and not selects and (entries % samples or _is_penalty(node)):
        return None
    if reduction == SUM:
        is_known = 0 < divisor < math.inf and divisor != entries
        return LossTerm(kind, samples, divisor, False, factor) if is_known else None
    # Of a cross entropy; 0 for targets that are ignored.
    if (total := getattr(node, "_saved_total_weight", None)) is not None:
        weight = float(total)
        is_whole = node._saved_weight is None and weight == entries and not entries % samples
        return None if is_whole or weight == 0 else LossTerm(kind, samples, weight, True)
    if selects or entries % samples:
        return LossTerm(kind, samples, float(entries), True)
    return None


def _kind(node: Any) -> str:
    name = str(node.name()).rpartition("::")[2]
    return name.partition("Backward")[0]


def _sizes(node: Any) -> tuple[int, ...]:
    return tuple(node._input_metadata[0].shape)


def _entries(node: Any) -> int:
    if (target := getattr(node, "_saved_target", None)) is not None:
        return int(target.numel())
    if (sizes := getattr(node, "_saved_self_sym_sizes", None)) is not None:
        return math.prod(int(size) for size in sizes)
    return int(node._saved_self.numel())


def _below(node: Any) -> list[Any]:
    return [each for each, _ in node.next_functions if each is not None]


def _is_penalty(node: Any) -> bool:
    """Return whether `node` sums a penalty: parameters, or values that are means already."""
    waiting, is_of_data = _below(node), False
    for _ in range(MAX_NODES):
        if not waiting:
            return not is_of_data
        node = waiting.pop()
        kind = _kind(node)
        if kind == "Mean" and 0 in getattr(node, "_saved_dim", ()):
            return True
        if kind not in (*_ELEMENTWISE, "AccumulateGrad"):
            return False  # nobody knows
        saved = [getattr(node, name, None) for name in ("_saved_self", "_saved_other")]
        is_of_data |= any(
            isinstance(each, torch.Tensor) and each.numel() > 1 and not each.requires_grad
            for each in saved
        )
        waiting += _below(node)
    return False
