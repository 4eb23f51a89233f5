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
_ELEMENTWISE = {
    *("Pow", "Abs", "Mul", "Neg", "View", "Clone", "ToCopy", "Square", "Sqrt", "T"),
    *("Add", "Sub", "Div", "Exp", "Log", "Softplus", "Cat"),
}
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
        if worker.rank == 0 and (why := self._why_one_is_none(losses, samples)) is not None:
            logger.warning("%s", why)
            self._left = 0

    def _why_one_is_none(self, losses: list[Any] | tuple[Any, ...], samples: int) -> str | None:
        """Return why one of ``losses`` is no mean; None also for a graph that cannot be read.

        What the nodes of a graph keep is no interface of PyTorch's, and a script may have nodes of
        its own: a hint never ends a step.
        """
        try:
            for loss in losses:
                if isinstance(loss, torch.Tensor) and (why := self.why_no_mean(loss, samples)):
                    return why
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
            logger.debug("the losses are not looked at, their graph cannot be read: %s", error)
            self._left = 0
        return None

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
    # each node, what its result is divided by, and the product of the factors below 1
    waiting: list[tuple[Any, float, float]] = [(loss.grad_fn, 1.0, 1.0)]
    for _ in range(DEEPEST):
        if not waiting:
            return
        node, divisor, factor = waiting.pop()
        if node is None:
            continue
        kind, below = _kind(node), _below(node)
        if kind == "Stack" or (kind in _PASSING and len(_sizes(node)) == 0):
            number = _number(node)
            divisor *= number if kind == "Div" else 1.0
            factor *= number if kind == "Mul" and 0 < number < 1 else 1.0
            waiting += [(each, divisor, factor) for each in below]
        elif kind in ("Sum", "Mean") and below and _kind(below[0]) == "Stack":
            waiting.append((below[0], divisor, factor))  # of a list of losses
        elif (term := _term(node, kind, samples, divisor, factor)) is not None:
            yield term


def _term(node: Any, kind: str, samples: int, divisor: float, factor: float) -> LossTerm | None:
    """Return what ``node`` reduces a batch by; None: it does not, or that says nothing."""
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


def _below(node: Any) -> list[Any]:
    """Return the nodes whose results ``node`` has got."""
    return [each for each, _ in node.next_functions if each is not None]


def _number(node: Any) -> float:
    """Return the number that a node multiplies or divides by.

    1.0 if it does neither; infinite if the number is learned, or computed by the model, and so says
    nothing about the batch.
    """
    other = getattr(node, "_saved_other", None)
    if isinstance(other, int | float):  # one of Python, as for ``label_smoothing``
        return abs(float(other))
    if not isinstance(other, torch.Tensor) or other.numel() != 1:
        return 1.0
    return math.inf if other.requires_grad else abs(float(other))


def _is_penalty(node: Any) -> bool:
    """Return whether a sum is of no samples.

    That is one over parameters, such as ``weight.abs().sum()``, or over what is a mean of the batch
    already, such as the entropy of the mean prediction.
    """
    waiting, is_of_data = _below(node), False
    for _ in range(DEEPEST):
        if not waiting:
            return not is_of_data
        node = waiting.pop()
        kind = _kind(node)
        if kind == "Mean" and 0 in getattr(node, "_saved_dim", ()):
            return True
        if kind not in (*_ELEMENTWISE, "AccumulateGrad"):
            return False
        saved = [getattr(node, name, None) for name in ("_saved_self", "_saved_other")]
        is_of_data |= any(
            isinstance(each, torch.Tensor) and each.numel() > 1 and not each.requires_grad
            for each in saved
        )
        waiting += _below(node)
    return False
