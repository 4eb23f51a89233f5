"""Make a step of logical workers the same, bit for bit, however many workers run them.

A job with logical workers (the setting ``logical``) trains one microbatch for each of them in each
step. Two things here see to it that it does not matter which worker trains which of them:

- :class:`LogicalBuffers`: each logical worker begins with the same buffers (BatchNorm's averages),
  those that the step began with. At the end of the step each buffer is the mean over all logical
  workers.
- :class:`LogicalSums`: the gradients of the logical workers are kept apart until the step ends.
  Then they are added up so that the sum is the same in any order (:mod:`edl.framework.exact_mean`).

The random generators are seeded for each logical worker by :mod:`edl.framework.random_numbers`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from edl.core.step.weighting import Weights
from edl.errors import RingBroken, UsageError
from edl.framework.exact_mean import Summands, exact_means
from edl.framework.exact_sum import CHUNK, divide_into
from edl.ring.ring import CollectiveFailed
from edl.torch.collectives import average_start, finish
from edl.torch.gradient import Gradient
from edl.worker.worker import Worker

SEEDS_DIFFER = (
    "the workers have seeded PyTorch with different numbers, so the result of a logical worker "
    "would depend on the worker that runs it; call torch.manual_seed() with the same number on all "
    "workers (edl seeds each logical worker anew), without edl.rank() in it, or leave out --logical"
)
SET_BY_HAND = (
    "the gradient of {name} was set by the script and not by backward(), so it would not be "
    "added up over the logical workers; compute it by backward(), or leave out --logical"
)
ADDED_UP = (
    "the script has called backward() for the batch of a logical worker, and no optimizer.step(): "
    "call it for each batch; to train more samples in a step give more logical workers"
)
THREADS_DIFFER = (
    "the workers compute with different numbers of threads (torch.get_num_threads()), by which the "
    "last bits of a result may differ; set OMP_NUM_THREADS, the same on all hosts, or leave out "
    "--logical"
)
GPU_CHUNK = 1 << 22  # elements of a sum that a GPU rounds at once; to launch costs more than caches


class Means(NamedTuple):
    """The result of a step of all logical workers.

    Attributes:
        gradients: pairs of a gradient's record and the mean gradient over the global batch, for
            each gradient that some logical worker has, in the dtype of the parameter.
        buffers: pairs of a buffer and its new value, for each buffer that some forward pass has
            changed.
    """

    gradients: list[tuple[Gradient, torch.Tensor]]
    buffers: list[tuple[torch.Tensor, torch.Tensor]]


class _Buffer(NamedTuple):
    """A buffer of a module, and a copy of its values at the beginning of the step."""

    module: torch.nn.Module
    name: str
    buffer: torch.Tensor
    copy: torch.Tensor

    def take_back(self) -> torch.Tensor | None:
        """Set the buffer to the copy; return the values that it had; None: they are the same.

        A forward pass may also have put another tensor in the place of the buffer.
        """
        now = self.module._buffers.get(self.name)
        if now is None or (now is self.buffer and torch.equal(now, self.copy)):
            return None
        values = now.detach().clone()
        self.module._buffers[self.name] = self.buffer
        with torch.no_grad():
            self.buffer.copy_(self.copy)
        return values


class LogicalBuffers:
    """The buffers of a model in a step of logical workers.

    Args:
        model: the model.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._before: list[_Buffer] = []
        self._after: list[list[torch.Tensor | None]] = []  # by logical worker; None: unchanged

    def begin_step(self) -> None:
        """Keep a copy of all buffers, with which each logical worker of the step begins."""
        known: dict[int, _Buffer] = {}
        for module in self._model.modules():
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    known.setdefault(
                        id(buffer), _Buffer(module, name, buffer, buffer.detach().clone())
                    )
        self._before, self._after = [*known.values()], []

    def end_piece(self, counts: bool) -> None:
        """Keep what the pass of a logical worker has made of the buffers, and put the copies back.

        ``counts`` says whether the pass was of a logical worker; False: of a padding batch.
        """
        after = [each.take_back() for each in self._before]
        if counts:
            self._after.append(after)

    def summands(self, pieces: int) -> Iterator[Summands]:
        """Yield for each buffer what this worker adds to its mean; it counts if a pass changed it.

        ``pieces`` is the number of logical workers that train in the step, on all workers.
        """
        for index, (_, _, buffer, copy) in enumerate(self._before):
            after = [one[index] for one in self._after]
            own = [(copy.clone() if one is None else one, 1.0) for one in after]
            has_changed = any(one is not None for one in after)
            yield Summands(buffer, own, float(pieces), has_changed, copy)


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
        self._tensors = Tensors()
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

        Raises:
            UsageError: the script has set a gradient that no backward pass has computed.
        """
        if not self._in_piece:
            return
        self._in_piece = False
        loader = self._worker.loader
        weight = loader.batch_weight / loader.progress.source.batching.micro_batch
        for gradient in gradients:
            local = gradient.parameter.grad
            if local is None:
                continue
            gradient.parameter.grad = None  # zeros too: an optimizer would decay weights by them
            if gradient.computed != self._step:
                if local.any():
                    raise UsageError(SET_BY_HAND.format(name=gradient.name))
                continue
            if weight:
                own = local.detach().resolve_conj()
                self._kept.setdefault(gradient, []).append((own, weight))
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
        rows = [Summands(each.parameter, self._kept.get(each, []), divisor) for each in gradients]
        rows += self._buffers.summands(pieces)
        if weights.sends:
            sending()
        together = self._together if weights.sends else lambda alone, _: alone
        alike = [(self._seed, SEEDS_DIFFER), (torch.get_num_threads(), THREADS_DIFFER)]
        found = exact_means(rows, pieces, alike, self._tensors, together)
        count = len(gradients)
        return Means(
            [
                (each, mean)
                for each, mean in zip(gradients, found, strict=False)
                if mean is not None
            ],
            [
                (row.target, mean)
                for row, mean in zip(rows[count:], found[count:], strict=True)
                if mean is not None
            ],
        )

    def _together(self, summed: Any, kind: str) -> Any:
        """Return the element-wise sum or largest of all workers' ``summed``, which is overwritten.

        It is a tensor, or a list of floats. ``kind`` is "sum" or "max".

        Raises:
            RingBroken: the ring is broken.
        """
        tensor = torch.tensor(summed, dtype=torch.float64) if isinstance(summed, list) else summed
        try:
            name = f"edl.logical.{kind}{self._suffix}"
            result: torch.Tensor = finish(average_start(tensor, tensor, name, kind))
        except CollectiveFailed as error:
            raise RingBroken(self._worker.generation, str(error)) from error
        return result.tolist() if isinstance(summed, list) else result


class Tensors:
    """The tensors of PyTorch as :class:`edl.framework.exact_mean.ArrayKind`.

    An object keeps the memory of its last sums: to allocate it takes as long as to add gradients
    up.
    """

    def __init__(self) -> None:
        self._memory: torch.Tensor | None = None

    def size(self, target: torch.Tensor) -> int:
        """Return the number of elements of ``target``; a complex number counts as two."""
        return target.numel() * (2 if target.is_complex() else 1)

    def flat(self, values: torch.Tensor) -> torch.Tensor:
        """Return ``values`` as real numbers in one dimension."""
        real = torch.view_as_real(values.resolve_conj()) if values.is_complex() else values
        return real.reshape(-1)

    def largest(self, values: torch.Tensor) -> float:
        """Return the largest absolute value in ``values`` that is finite; 0.0 if none is."""
        flat = self.flat(values)
        if not flat.numel():
            return 0.0
        least, most = map(float, torch.aminmax(flat))
        if math.isfinite(least) and math.isfinite(most):
            return max(-least, most)
        return self.largest(flat[flat.isfinite()])

    def memory(
        self, size: int, targets: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return memory for sums of ``size`` elements and for a chunk of them, as the targets have.

        The memory for the sums is that of the last call, if it fits.
        """
        device = targets[0].device if targets else torch.device("cpu")
        sums = self._memory
        if sums is None or sums.numel() != size or sums.device != device:
            sums = self._memory = torch.empty(size, dtype=torch.float64, device=device)
        chunk = min(_chunk(device), size)
        return sums, torch.empty(chunk, dtype=torch.float64, device=device)

    def mean(self, row: Summands, total: torch.Tensor) -> torch.Tensor:
        """Return the mean of ``row``, in the memory of its first summand if that fits.

        Integers are rounded. ``total`` is changed.
        """
        target = row.target
        mean: torch.Tensor = row.own[0][0] if row.own else torch.empty_like(target)
        if mean.dtype != target.dtype or not mean.is_contiguous():
            mean = torch.empty(target.shape, dtype=target.dtype, device=target.device)
        whole = not (target.is_floating_point() or target.is_complex())
        divide_into(self.flat(mean), total, row.divisor, whole, _chunk(total.device))
        return mean


def _chunk(device: torch.device) -> int:
    """Return how many elements of a sum are rounded at once on a device."""
    return CHUNK if device.type == "cpu" else GPU_CHUNK
