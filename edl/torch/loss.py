"""A look at the losses of a script's first backward passes: are they means over the samples?

What a loss is can be seen in its graph, from its end to the functions that reduce a batch to one
number. Only the first passes of rank 0 are looked at, in ``torch.autograd.backward``, which
``Tensor.backward`` calls; then PyTorch's own function stands there again. A loss that was compiled
with its model shows nothing.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from edl.core.step.loss_form import LossTerm, why_no_mean
from edl.daemon.worker import Worker

logger = logging.getLogger(__name__)

LOOKS = 20  # backward passes: a batch without padding among them does not hide the others
DEEPEST = 100  # nodes of a graph that are looked at
NOTHING, MEAN, SUM = 0, 1, 2  # the reductions of a loss function, as its node keeps them
# They pass a number on, perhaps multiplied by another one.
_PASSING = {"Add", "Sub", "Neg", "Mul", "Div", "View", "Squeeze", "Unsqueeze", "ToCopy", "Clone"}
_ELEMENTWISE = {"Pow", "Abs", "Mul", "Neg", "View", "Clone", "ToCopy", "Square", "Sqrt", "T"}
_SELECTING = {"Index", "MaskedSelect"}


class LossLook:
    """Looks at the first losses that the script of ``worker`` computes gradients of."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._left = LOOKS
        self._before: dict[str, LossTerm] = {}
        self._plain: Callable[..., None] = torch.autograd.backward

    def begin(self) -> None:
        """Look from now on, if others may share the batches of this job."""
        if not self._worker.is_shared:
            return
        self._plain = torch.autograd.backward

        def backward(tensors: Any, *arguments: Any, **named: Any) -> None:
            if self._left > 0:
                self._look(tensors)
                if self._left == 0 and torch.autograd.backward is backward:
                    torch.autograd.backward = self._plain
            return self._plain(tensors, *arguments, **named)

        torch.autograd.backward = backward

    def _look(self, tensors: Any) -> None:
        worker = self._worker
        if worker.warming_up or not worker.loader.open:
            return
        samples = worker.loader.batch_weight
        losses = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        if samples < 2 or not isinstance(losses, list | tuple):
            return
        self._left -= 1
        for loss in losses if worker.rank == 0 else ():
            if isinstance(loss, torch.Tensor) and (why := self.why_no_mean(loss, samples)):
                logger.warning("%s", why)
                self._left = 0
                return

    def why_no_mean(self, loss: torch.Tensor, samples: int) -> str | None:
        """Return why ``loss``, of a batch of ``samples``, is no mean over them; None: it may be."""
        for number, term in enumerate(terms_of(loss, samples)):
            key = f"{number}.{term.name}"
            if (why := why_no_mean(term, self._before.get(key))) is not None:
                return why
            self._before.setdefault(key, term)
        return None


def terms_of(loss: torch.Tensor, samples: int) -> Iterator[LossTerm]:
    """Yield what a batch of ``samples`` was reduced by, where that says something.

    A mean over all entries of the samples is a mean over them, and is left out.
    """
    waiting: list[tuple[Any, float]] = [(loss.grad_fn, 1.0)]  # and what it is divided by
    for _ in range(DEEPEST):
        if not waiting:
            return
        node, divisor = waiting.pop()
        if node is None:
            continue
        kind, below = _kind(node), [each for each, _ in node.next_functions if each is not None]
        if kind == "Stack" or (kind in _PASSING and len(_sizes(node)) == 0):
            waiting += [(each, divisor * _divisor(node, kind)) for each in below]
        elif kind in ("Sum", "Mean") and below and _kind(below[0]) == "Stack":
            waiting.append((below[0], divisor))  # of a list of losses
        elif (term := _term(node, kind, samples, divisor)) is not None:
            yield term


def _term(node: Any, kind: str, samples: int, divisor: float) -> LossTerm | None:
    """Return what ``node`` reduces a batch by; None: it does not, or that says nothing."""
    reduction = getattr(node, "_saved_reduction", NOTHING)
    if kind == "Sum":
        reduction = SUM
    elif kind == "Mean":
        reduction = MEAN
    if reduction == NOTHING:
        return None
    entries = _entries(node)
    selects = any(_kind(each) in _SELECTING for each, _ in node.next_functions if each is not None)
    if kind in ("Sum", "Mean") and not selects and (entries % samples or _is_of_weights(node)):
        return None  # a penalty
    if reduction == SUM:
        return None if divisor == entries else LossTerm(kind, samples, divisor, False)
    if (weight := _total_weight(node)) is not None:
        is_whole = node._saved_weight is None and weight == entries and not entries % samples
        return None if is_whole or weight == 0 else LossTerm(kind, samples, weight, True)
    if selects or entries % samples:
        return LossTerm(kind, samples, float(entries), True)
    return None


def _kind(node: Any) -> str:
    """Return the function that a node belongs to: ``NllLoss`` of a NllLossBackward0."""
    name = str(node.name()).rpartition("::")[2]
    return name.partition("Backward")[0]


def _sizes(node: Any) -> tuple[int, ...]:
    """Return the shape of a node's result; that of a number is empty."""
    return tuple(node._input_metadata[0].shape)


def _entries(node: Any) -> int:
    if (target := getattr(node, "_saved_target", None)) is not None:
        return int(target.numel())
    if (sizes := getattr(node, "_saved_self_sym_sizes", None)) is not None:
        return math.prod(int(size) for size in sizes)
    return int(node._saved_self.numel())


def _total_weight(node: Any) -> float | None:
    """Return the sum of the weights of a cross entropy's targets, 0 for those it ignores."""
    weight = getattr(node, "_saved_total_weight", None)
    return None if weight is None else float(weight)


def _divisor(node: Any, kind: str) -> float:
    """Return what a node divides a number by; a factor below 1 divides it, too."""
    other = getattr(node, "_saved_other", None)
    if kind not in ("Div", "Mul") or other is None or other.numel() != 1:
        return 1.0
    value = abs(float(other))
    if kind == "Div":
        return value
    return 1 / value if 0 < value < 1 else 1.0


def _is_of_weights(node: Any) -> bool:
    """Return whether a sum is over a parameter, such as the penalty ``weight.abs().sum()``."""
    for _ in range(DEEPEST):
        below = [each for each, _ in node.next_functions if each is not None]
        if not below:
            return _kind(node) == "AccumulateGrad"
        node = below[0]
        other = getattr(node, "_saved_other", None)
        is_data = other is not None and other.numel() > 1 and not other.requires_grad
        if _kind(node) not in (*_ELEMENTWISE, "AccumulateGrad") or is_data:
            return False
    return False
