"""Make a step of logical workers the same, bit for bit, however many workers run them.

A job with logical workers (the setting ``logical``) trains one microbatch for each of them in each
step. Two things here see to it that it does not matter which worker trains which of them:

- :mod:`edl.torch.logical_buffers`: each logical worker begins with the same buffers (BatchNorm's
  averages), those that the step began with. At the end of the step each buffer is the mean over all
  logical workers.
- :class:`LogicalSums`: the gradients of the logical workers are kept apart until the step ends.
  Then they are added up so that the sum is the same in any order (:mod:`edl.framework.exact_mean`).

The random generators are seeded for each logical worker by :mod:`edl.framework.random_numbers`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from edl.config import environment
from edl.core.job.signature import Arithmetic
from edl.core.step.weighting import Weights
from edl.errors import RingBroken, UsageError
from edl.framework.digest import ByteRange
from edl.framework.exact_audit import ExactAudit
from edl.framework.exact_mean import Summands, exact_means, logical_workers_of_step
from edl.framework.instructions import of_mkl, of_onednn
from edl.framework.pass_options import PassOptions
from edl.ring.ring import CollectiveFailed
from edl.torch.collectives import average_start, finish
from edl.torch.computed_options import option_numbers
from edl.torch.digest import digests, size_of
from edl.torch.exact_tensors import Tensors
from edl.torch.gradient import Gradient
from edl.torch.logical_buffers import LogicalBuffers
from edl.torch.replica import rates_of
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
NO_STEP = (
    "the loop body took a batch without calling optimizer.step(): call it for each batch, since "
    "gradients of several batches are not added up with --logical; to train more samples in an "
    "update give the loader larger batches, or a larger --logical"
)
TOO_MANY_PASSES = (
    "the script has called backward() {count} times for the batch of a logical worker: call it "
    "once, on the sum of the losses, and then optimizer.step(); or, for parts of the batch, as "
    "often as backward_passes_per_step says, which is {expected}"
)
CHANGED = (
    "the gradient of {name} was changed between backward() and optimizer.step(), where it is that "
    "of one rank; call optimizer.synchronize() before, which makes it the mean (torch.nn.utils."
    "clip_grad_norm_ comes after it), and optimizer.step() in `with optimizer.skip_synchronize():`"
)
THREADS_DIFFER = (
    "the workers compute with different numbers of threads (torch.get_num_threads()), by which the "
    "last bits of a result may differ; set OMP_NUM_THREADS, the same on all hosts, or leave out "
    "--logical"
)


def arithmetic() -> Arithmetic:
    """Return what the last bits of this process' results depend on."""
    cuda: Any = torch.cuda
    return Arithmetic(torch.get_num_threads(), _instructions(cuda.is_initialized()))


@functools.cache
def _instructions(on_gpu: bool) -> str:
    """Return by what this process computes; `on_gpu`: a GPU, too, which is not started here."""
    environ = environment()
    used = [
        f"ATen {torch.backends.cpu.get_cpu_capability()}",
        of_onednn(environ),
        of_mkl(environ),
    ]
    return ", ".join([*used, torch.cuda.get_device_name()] if on_gpu else used)


class Means(NamedTuple):
    """The result of a step of all logical workers."""

    gradients: list[tuple[Gradient, torch.Tensor]]  # that some logical worker has, and the means
    buffers: list[tuple[torch.Tensor, torch.Tensor]]  # that some pass has changed, and the means


class LogicalSums:
    """The gradients and buffers that this worker's logical workers computed in the open step."""

    def __init__(
        self, worker: Worker, model: torch.nn.Module, suffix: str, passes: int = 1
    ) -> None:
        self._worker = worker
        self._passes = passes
        self._suffix = suffix
        self._kept: dict[Gradient, list[tuple[torch.Tensor, float]]] = {}
        self._tensors = Tensors()
        self._step = -1  # the step that they are of
        self._seed = 0
        self._in_piece = False
        self._passed = 0  # backward passes of the present logical worker
        self._versions: dict[Gradient, tuple[torch.Tensor, int]] = {}  # as backward() left them
        self.unstepped = -1  # the step with gradients for which step() was not called; -1: none
        self._options = PassOptions()
        self._buffers = LogicalBuffers(model)
        self._audit = ExactAudit(worker)

    def begin_piece(self, step: int, seed: int) -> None:
        """Prepare for the pass of one logical worker."""
        if self.unstepped == step:
            raise UsageError(NO_STEP)
        self._passed = 0
        self._seed = seed % 2**53  # float64 has it exactly
        if step != self._step:
            self._kept.clear()
            self._step = step
            self._buffers.begin_step()
        self._audit.begin_pass(step)
        self._in_piece = True

    def end_backward(self, gradients: Sequence[Gradient]) -> bool:
        """Note the end of a backward pass; return whether the batch may have another one."""
        if not self._worker.loader.engine.logical:
            return False
        self._passed += 1
        if self._passed > self._passes:
            raise UsageError(TOO_MANY_PASSES.format(count=self._passed, expected=self._passes))
        for gradient in gradients:
            if (local := gradient.parameter.grad) is not None:
                self._versions[gradient] = local, local._version
        self.unstepped = self._step
        return self._passed < self._passes

    def end_batch(self, gradients: Sequence[Gradient]) -> None:
        """Note that the script has called `optimizer.step()`, or what stands for it."""
        self.unstepped = -1
        self.end_piece(gradients)

    def end_piece(self, gradients: Sequence[Gradient]) -> None:
        """Keep the gradients that a pass has computed, and set those of the model to None."""
        if not self._in_piece:
            return
        self._in_piece = False
        versions, self._versions = self._versions, {}
        loader = self._worker.loader
        weight = loader.batch_weight / loader.progress.source.batching.micro_batch
        not_computed: list[tuple[str, torch.Tensor]] = []
        found: list[tuple[Gradient, torch.Tensor]] = []
        for gradient in gradients:
            local = gradient.parameter.grad
            if local is None:
                continue
            if gradient in versions:
                computed, version = versions[gradient]
                if local is not computed or local._version != version:
                    raise UsageError(CHANGED.format(name=gradient.name))
            is_leftover = gradient.is_leftover()  # the script has left its loop before backward()
            gradient.parameter.grad = None  # zeros too: an optimizer would decay weights by them
            if gradient.computed != self._step:
                if not is_leftover:
                    not_computed.append((gradient.name, local.any()))
                continue
            own = local.detach().resolve_conj()
            found.append((gradient, own))
            if weight:
                self._kept.setdefault(gradient, []).append((own, weight))
        _refuse_any(not_computed)
        after = self._buffers.end_piece(weight > 0)
        self._audit.end_pass(lambda: self._digests(found, after))

    def check_options(self, optimizer: torch.optim.Optimizer, step: int, is_last: bool) -> None:
        """Raise UsageError if the options, such as rates, differ from those of the first pass."""
        loader = self._worker.loader
        if not (loader.engine.logical and loader.open) or (is_last and self._options.step != step):
            return
        options: dict[str, Any] = {**rates_of([optimizer])}
        for index, group in enumerate(option_numbers(optimizer)):
            options |= {f"{name} of parameter group {index}": one for name, one in group.items()}
        self._options.check(step, options, self._worker.step)

    def clear(self) -> None:
        """Drop all gradients, at the end of the step."""
        self._kept.clear()
        self._step, self._in_piece = -1, False

    def means(
        self, gradients: Sequence[Gradient], weights: Weights, sending: Callable[[], None]
    ) -> Means:
        """Return the mean of each gradient and buffer over all logical workers of the step."""
        # If the ring breaks, it is called again in the next: what is kept must be as before.
        loader = self._worker.loader
        source, engine = loader.progress.source, loader.engine
        total = weights.total or engine.batches.samples  # of a warm-up, which has no records
        pieces = logical_workers_of_step(source, engine.records, total)
        divisor = total / source.batching.micro_batch
        rows = [Summands(each.parameter, self._kept.get(each, []), divisor) for each in gradients]
        rows += self._buffers.summands(pieces)
        if weights.sends:
            sending()
        together = self._together if weights.sends else lambda alone, _: alone
        used = arithmetic()
        alike = [
            (self._seed, SEEDS_DIFFER),
            (used.threads, THREADS_DIFFER),
            (used.checksum, used.why_instructions_differ),
        ]
        names = [_name(each) for each in gradients] + self._buffers.names
        self._audit.compare(names, pieces, alike, together)
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

    def _digests(
        self, found: Sequence[tuple[Gradient, torch.Tensor]], buffers: Sequence[torch.Tensor]
    ) -> dict[str, int]:
        """Return the digests of gradients and of all buffers after a pass, by their names."""
        values = [(_name(gradient), own) for gradient, own in found]
        values += zip(self._buffers.names, buffers, strict=True)
        return digests(ByteRange(name, one, 0, size_of(one) or 0, True) for name, one in values)

    def _together(self, summed: Any, kind: str) -> Any:
        """Return the element-wise sum or largest of all workers' `summed`, which is overwritten."""
        tensor = torch.tensor(summed, dtype=torch.float64) if isinstance(summed, list) else summed
        try:
            name = f"edl.logical.{kind}{self._suffix}"
            result: torch.Tensor = finish(average_start(tensor, tensor, name, kind))
        except CollectiveFailed as error:
            raise RingBroken(self._worker.generation, str(error)) from error
        return result.tolist() if isinstance(summed, list) else result


def _name(gradient: Gradient) -> str:
    return f"the gradient of {gradient.name}"


def _refuse_any(gradients: Sequence[tuple[str, torch.Tensor]]) -> None:
    """Raise UsageError for the first of pairs of a gradient's name and whether it has a value."""
    if not gradients:
        return
    device = gradients[0][1].device
    found = torch.stack([has_value.to(device) for _, has_value in gradients]).tolist()
    for (name, _), has_value in zip(gradients, found, strict=True):
        if has_value:
            raise UsageError(SET_BY_HAND.format(name=name))
