"""Make a step of logical workers the same, bit for bit, however many workers run them.

A job with logical workers (the setting ``logical``) trains one microbatch for each of them in each
step. Two things here see to it that it does not matter which worker trains which of them:

- :class:`LogicalBuffers`: each logical worker begins with the same buffers (BatchNorm's averages),
  those that the step began with. At the end of the step each buffer is the mean over all logical
  workers.
- :class:`LogicalSums`: the gradients of the logical workers are kept apart until the step ends.
  Then they are added up so that the sum is the same in any order (:mod:`edl.torch.exact_sum`).

The random generators are seeded for each logical worker by :mod:`edl.framework.random_numbers`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch

from edl.core.step.weighting import Weights
from edl.errors import RingBroken, UsageError
from edl.ring.ring import CollectiveFailed
from edl.torch.collectives import average_start, finish
from edl.torch.exact_sum import add_rounded, divide_into, rounding_constant
from edl.torch.gradient import Gradient
from edl.worker.worker import Worker

SEEDS_DIFFER = (
    "the workers have seeded PyTorch with different numbers, so the result of a logical worker "
    "would depend on the worker that runs it; call torch.manual_seed() with the same number on all "
    "workers (edl seeds each logical worker anew), without edl.rank() in it, or leave out --logical"
)
THREADS_DIFFER = (
    "the workers compute with different numbers of threads (torch.get_num_threads()), by which the "
    "last bits of a result may differ; set OMP_NUM_THREADS, the same on all hosts, or leave out "
    "--logical"
)
LARGEST, SUM = "edl.logical.largest", "edl.logical.sum"  # names of collectives


class Means(NamedTuple):
    """The result of a step of all logical workers.

    Attributes:
        gradients: pairs of a gradient's record and the mean gradient over the global batch, for
            each gradient that some logical worker has, in the dtype of the local gradients.
        buffers: pairs of a buffer and its new value, for each buffer that some forward pass has
            changed.
    """

    gradients: list[tuple[Gradient, torch.Tensor]]
    buffers: list[tuple[torch.Tensor, torch.Tensor]]


class _Summands(NamedTuple):
    """What is added up to one tensor: by logical worker of this worker, its values and weight.

    Attributes:
        target: the parameter or buffer, whose shape and dtype the result gets.
        own: pairs of values and weight; empty: this worker has none.
        divisor: the sum is divided by this.
    """

    target: torch.Tensor
    own: list[tuple[torch.Tensor, float]]
    divisor: float

    @property
    def largest(self) -> float:
        """The largest absolute value times its weight; -1.0 without summands, inf for a nan."""
        if not self.own:
            return -1.0
        each = [_largest(values) * weight for values, weight in self.own]
        return max(each) if all(map(math.isfinite, each)) else math.inf


class LogicalBuffers:
    """The buffers of a model in a step of logical workers.

    Args:
        model: the model.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._before: list[tuple[torch.Tensor, torch.Tensor]] = []  # a buffer, and its copy
        self._after: list[list[torch.Tensor | None]] = []  # by logical worker; None: unchanged

    def begin_step(self) -> None:
        """Keep a copy of all buffers, with which each logical worker of the step begins."""
        self._before = [(each, each.detach().clone()) for each in self._model.buffers()]
        self._after = []

    def end_piece(self, counts: bool) -> None:
        """Keep what the pass of a logical worker has made of the buffers, and put the copies back.

        ``counts`` says whether the pass was of a logical worker; False: of a padding batch.
        """
        changed = [not torch.equal(each, copy) for each, copy in self._before]
        if counts:
            self._after.append(
                [
                    each.detach().clone() if has_changed else None
                    for (each, _), has_changed in zip(self._before, changed, strict=True)
                ]
            )
        with torch.no_grad():
            for (each, copy), has_changed in zip(self._before, changed, strict=True):
                if has_changed:
                    each.copy_(copy)

    def summands(self, pieces: int) -> Iterator[tuple[_Summands, bool]]:
        """Yield for each buffer what this worker adds to its mean, and whether a pass changed it.

        ``pieces`` is the number of logical workers that train in the step, on all workers.
        """
        for index, (each, copy) in enumerate(self._before):
            after = [one[index] for one in self._after]
            values = [copy if one is None else one for one in after]
            has_changed = any(one is not None for one in after)
            yield _Summands(each, [(one, 1.0) for one in values], float(pieces)), has_changed


class LogicalSums:
    """The gradients and buffers that this worker's logical workers have computed in the open step.

    Args:
        worker: the worker of this process.
        model: the model, whose buffers are those of the step.
        suffix: the end of the names of the collectives, different for each optimizer.
    """

    def __init__(self, worker: Worker, model: torch.nn.Module, suffix: str) -> None:
        self._worker = worker
        self._suffix = suffix
        self._kept: dict[Gradient, list[tuple[torch.Tensor, float]]] = {}
        self._memory: torch.Tensor | None = None  # for the sums of the next step
        self._step = -1  # the step that they are of
        self._seed = 0
        self._in_piece = False
        self._buffers = LogicalBuffers(model)

    def begin_piece(self, step: int, seed: int) -> None:
        """Prepare for the pass of one logical worker.

        Args:
            step: the number of the open step.
            seed: the seed that the script has given to PyTorch last.
        """
        self._seed = seed % 2**53  # float64 has it exactly
        if step != self._step:
            self._kept.clear()
            self._step = step
            self._buffers.begin_step()
        self._in_piece = True

    def end_piece(self, gradients: Sequence[Gradient]) -> None:
        """Keep the gradients that a backward pass has computed, and set those of the model to None.

        A second call after the same :meth:`begin_piece` does nothing.

        Args:
            gradients: the records of the optimizer's gradients.
        """
        if not self._in_piece:
            return
        self._in_piece = False
        loader = self._worker.loader
        weight = loader.batch_weight / loader.progress.source.batching.micro_batch
        for gradient in gradients:
            local = gradient.parameter.grad
            if gradient.computed != self._step or local is None:
                continue
            gradient.parameter.grad = None
            if weight:
                self._kept.setdefault(gradient, []).append((local.detach(), weight))
        self._buffers.end_piece(weight > 0)

    def clear(self) -> None:
        """Drop all gradients, at the end of the step."""
        self._kept.clear()
        self._step, self._in_piece = -1, False

    def means(
        self, gradients: Sequence[Gradient], weights: Weights, sending: Callable[[], None]
    ) -> Means:
        """Return the mean of each gradient and buffer over all logical workers of the step.

        All workers call it with the same ``gradients``, in the same order. If the ring breaks, what
        is kept is as before, so it can be called again in the next ring. Afterwards the memory of
        what was kept has the means.

        Args:
            gradients: the records of the optimizer's gradients.
            weights: the factors of the step; with ``weights.sends`` the other workers are asked.
            sending: called with the first collective.

        Raises:
            RingBroken: the ring is broken.
            UsageError: the workers have seeded PyTorch differently, or have other numbers of
                threads.
        """
        loader = self._worker.loader
        micro_batch = loader.progress.source.batching.micro_batch
        total = weights.total or loader.engine.batches.samples  # of a warm-up, which has no records
        pieces, divisor = -(-total // micro_batch), total / micro_batch
        rows = [
            (_Summands(each.parameter, self._kept.get(each, []), divisor), True)
            for each in gradients
        ]
        rows += self._buffers.summands(pieces)
        alike = [float(self._seed), float(torch.get_num_threads())]
        largest = torch.tensor(
            [
                *(each.largest if counts else -1.0 for each, counts in rows),
                *alike,
                *(-value for value in alike),
            ],
            dtype=torch.float64,
        )
        if weights.sends:
            sending()
            largest = self._together(largest, LARGEST, "max")
        *bounds, seed, threads, least_seed, least_threads = largest.tolist()
        if seed != -least_seed:
            raise UsageError(SEEDS_DIFFER)
        if threads != -least_threads:
            raise UsageError(THREADS_DIFFER)
        found = [
            (index, each, bound)
            for index, ((each, _), bound) in enumerate(zip(rows, bounds, strict=True))
            if bound >= 0.0
        ]
        sums = self._sums([(each, bound) for _, each, bound in found], pieces)
        if weights.sends:
            sums = self._together(sums, SUM, "sum")
        values = _means(sums, [each for _, each, _ in found])
        count = len(gradients)
        return Means(
            [
                (gradients[index], value)
                for (index, _, _), value in zip(found, values, strict=True)
                if index < count
            ],
            [
                (each.target, value)
                for (index, each, _), value in zip(found, values, strict=True)
                if index >= count
            ],
        )

    def _sums(self, found: list[tuple[_Summands, float]], pieces: int) -> torch.Tensor:
        """Return the exact sums of this worker's summands, one after the other in one tensor.

        Args:
            found: pairs of summands, and the largest of them on any worker, in absolute value.
            pieces: how many summands each sum has at most, over all workers.
        """
        sizes = [_elements(each.target) for each, _ in found]
        device = found[0][0].target.device if found else None
        sums = self._memory  # to allocate memory takes as long as to add the gradients up
        if sums is None or sums.numel() != sum(sizes) or sums.device != device:
            sums = self._memory = torch.empty(sum(sizes), dtype=torch.float64, device=device)
        for part, (each, bound) in zip(torch.split(sums, sizes), found, strict=True):
            own = [(_flat(values), weight) for values, weight in each.own]
            add_rounded(part, own, rounding_constant(bound, pieces))
        return sums

    def _together(self, tensor: torch.Tensor, name: str, kind: str) -> torch.Tensor:
        """Return the element-wise sum or largest of all workers' ``tensor``, which is overwritten.

        Raises:
            RingBroken: the ring is broken.
        """
        try:
            result: torch.Tensor = finish(
                average_start(tensor, tensor, f"{name}{self._suffix}", kind)
            )
        except CollectiveFailed as error:
            raise RingBroken(self._worker.generation, str(error)) from error
        return result


def _means(sums: torch.Tensor, found: list[_Summands]) -> list[torch.Tensor]:
    """Return the means of ``found`` from their ``sums``, in the shape and dtype of the targets.

    The first of the own summands gets the mean, if there is one; its values are not needed any
    more. ``sums`` are changed.
    """
    means = []
    parts = torch.split(sums, [_elements(each.target) for each in found])
    for part, each in zip(parts, found, strict=True):
        target = each.target
        mean = each.own[0][0] if each.own else torch.empty_like(target)
        if mean.dtype != target.dtype or not mean.is_contiguous():
            mean = torch.empty(target.shape, dtype=target.dtype, device=target.device)
        divide_into(_flat(mean), part, each.divisor)
        means.append(mean)
    return means


def _elements(tensor: torch.Tensor) -> int:
    return tensor.numel() * (2 if tensor.is_complex() else 1)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return ``tensor`` as real numbers in one dimension."""
    real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    return real.reshape(-1)


def _largest(tensor: torch.Tensor) -> float:
    """Return the largest absolute value in ``tensor``; nan if one is nan, 0.0 if it is empty."""
    if not tensor.numel():
        return 0.0
    least, most = torch.aminmax(_flat(tensor))
    return max(-float(least), float(most)) if not math.isnan(float(most)) else math.nan
