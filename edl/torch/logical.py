"""Make a step of logical workers the same, bit for bit, however many workers run them.

A job with logical workers (the setting ``logical``) trains one microbatch for each of them in each
step. Each begins with the same buffers (BatchNorm's averages), those that the step began with; at
the end of the step each buffer is the mean over all logical workers. Their gradients are kept apart
until then, and added up so that the sum is the same in any order (:mod:`edl.binding.exact`).
:mod:`edl.binding.loop` seeds the random generators for each of them.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import torch

from edl.binding.api import of_mkl, of_onednn
from edl.binding.exact import (
    CHUNK,
    ExactAudit,
    Summands,
    add_rounded,
    divide_into,
    exact_means,
    logical_workers_of_step,
)
from edl.binding.loop import PassOptions
from edl.binding.replica import ByteRange
from edl.config import environment
from edl.errors import RingBroken, UsageError
from edl.job.script import Arithmetic
from edl.ring.ring import CollectiveFailed
from edl.step.weighting import Weights
from edl.torch.collectives import average_start, finish
from edl.torch.gradients import Gradient
from edl.torch.replica import digests, option_numbers, rates_of, size_of
from edl.worker.worker import Worker

# ------------------------------------------------------------
# Add PyTorch's tensors up exactly: on a GPU many of them in one operation.
#
# On a CPU one tensor comes after the other, in chunks that stay in the processor's cache. A GPU
# needs some microseconds to begin an operation, however small, and the processor waits for all that
# was begun when it reads a result. So there an operation takes all tensors of one type that fit
# into a chunk (`torch._foreach_...`), and many results are read at once. The bits are those of one
# tensor after the other, because each element is computed on its own.

GPU_CHUNK = 1 << 23  # elements that a GPU rounds at once: 64 MiB of float64


class _Slice(NamedTuple):
    row: int
    begin: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.begin

    def of(self, flat: torch.Tensor) -> torch.Tensor:
        return flat if self.size == flat.numel() else flat[self.begin : self.end]


class Tensors:
    def __init__(self) -> None:
        self._memory: torch.Tensor | None = None  # kept: to allocate takes as long as to add up

    def largest(self, values: Sequence[torch.Tensor]) -> list[float]:
        """Return for each tensor the largest absolute value in it that is finite, or 0.0."""
        found = [0.0] * len(values)
        filled = [index for index, one in enumerate(values) if one.numel()]
        bounds = _bounds([_real(values[index]) for index in filled])
        for index, bound in zip(filled, bounds, strict=True):
            found[index] = bound
        wrong = [index for index, bound in enumerate(found) if not math.isfinite(bound)]
        if wrong:
            finite = [_real(values[index]).nan_to_num(0.0, 0.0, 0.0) for index in wrong]
            for index, bound in zip(wrong, self.largest(finite), strict=True):
                found[index] = bound
        return found

    def add_up(self, rows: Sequence[Summands], constants: Sequence[float]) -> torch.Tensor:
        sizes = [_size(row.target) for row in rows]
        device = rows[0].target.device if rows else torch.device("cpu")
        sums = self._memory
        if sums is None or sums.numel() != sum(sizes) or sums.device != device:
            sums = self._memory = torch.empty(sum(sizes), dtype=torch.float64, device=device)
        is_gpu = is_launched(sums.device)
        chunk = min(GPU_CHUNK if is_gpu else CHUNK, len(sums))
        scratch = torch.empty(chunk, dtype=torch.float64, device=sums.device)
        if is_gpu:
            _add_up_together(rows, constants, sums, scratch)
            return sums
        for row, constant, total in zip(rows, constants, sums.split_with_sizes(sizes), strict=True):
            own = [(_flat(values), weight) for values, weight in row.own]
            add_rounded(total, own, constant, scratch)
        return sums

    def means(self, rows: Sequence[Summands], sums: torch.Tensor) -> list[torch.Tensor]:
        found = [_mean_memory(row) for row in rows]
        flats = [_flat(mean) for mean in found]
        if is_launched(sums.device):
            _divide_together(rows, sums, flats)
        else:
            totals = sums.split_with_sizes([flat.numel() for flat in flats])
            for row, flat, total in zip(rows, flats, totals, strict=True):
                divide_into(flat, total, row.divisor, whole=not flat.is_floating_point())
        for mean, flat in zip(found, flats, strict=True):
            if not mean.is_contiguous():  # then its elements in one dimension are a copy
                _real(mean).copy_(flat.view(_real(mean).shape))
        return found


def _add_up_together(
    rows: Sequence[Summands],
    constants: Sequence[float],
    sums: torch.Tensor,
    scratch: torch.Tensor,
) -> None:
    begin, last, flats = 0, -1, []
    for batch in _batches([_size(row.target) for row in rows], max(1, len(scratch))):
        summands = []
        for each in batch:
            if each.row != last:
                last = each.row
                flats = [(_flat(values), weight) for values, weight in rows[last].own]
            summands.append([(each.of(flat), weight) for flat, weight in flats])
        sizes = [each.size for each in batch]
        end = begin + sum(sizes)
        _add_batch(
            sums[begin:end].split_with_sizes(sizes),
            summands,
            [constants[each.row] for each in batch],
            scratch[: end - begin].split_with_sizes(sizes),
        )
        begin = end


def _add_batch(
    totals: Sequence[torch.Tensor],
    summands: Sequence[Sequence[tuple[torch.Tensor, float]]],
    constants: Sequence[float],
    scratch: Sequence[torch.Tensor],
) -> None:
    without = [total for total, own in zip(totals, summands, strict=True) if not own]
    if without:
        torch._foreach_zero_(without)
    for number in range(max(map(len, summands))):
        having = [index for index, own in enumerate(summands) if len(own) > number]
        rounded = [(scratch if number else totals)[index] for index in having]
        copy_each(rounded, [summands[index][number][0] for index in having])
        weights = [summands[index][number][1] for index in having]
        if any(weight != 1.0 for weight in weights):
            torch._foreach_mul_(rounded, weights)
        shift = [constants[index] for index in having]
        torch._foreach_add_(rounded, shift)
        torch._foreach_sub_(rounded, shift)
        if number:
            torch._foreach_add_([totals[index] for index in having], rounded)


def _divide_together(
    rows: Sequence[Summands], sums: torch.Tensor, flats: Sequence[torch.Tensor]
) -> None:
    begin = 0
    sizes = [flat.numel() for flat in flats]
    for divisor, run in groupby(zip(rows, sizes, strict=True), lambda each: each[0].divisor):
        end = begin + sum(size for _, size in run)
        sums[begin:end] /= divisor
        begin = end
    quotients = sums.split_with_sizes(sizes)
    whole = [
        part
        for part, flat in zip(quotients, flats, strict=True)
        if flat.numel() and not flat.is_floating_point()
    ]
    if whole:
        torch._foreach_round_(whole)
    copy_each(flats, quotients)


def copy_each(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    for indices in by_type(targets, sources):
        torch._foreach_copy_([targets[i] for i in indices], [sources[i] for i in indices])


def by_type(*lists: Sequence[torch.Tensor]) -> list[list[int]]:
    keys: list[list[Any]] = []
    for tensors in lists:
        keys += [[one.dtype for one in tensors], [one.device for one in tensors]]
    groups: defaultdict[Any, list[int]] = defaultdict(list)
    for index, key in enumerate(zip(*keys, strict=True)):
        groups[key].append(index)
    return [*groups.values()]


def _bounds(values: Sequence[torch.Tensor]) -> list[float]:
    """Return for each real tensor the largest absolute value in it; inf or nan if it has one."""
    found = [0.0] * len(values)
    order: list[int] = []
    read: list[torch.Tensor] = []
    for indices in by_type(values):
        some = [values[index] for index in indices]
        if is_launched(some[0].device):
            order += indices
            if not some[0].is_floating_point():  # what they are in float64
                sizes = [one.numel() for one in some]
                memory = torch.empty(sum(sizes), dtype=torch.float64, device=some[0].device)
                floating = [*memory.split_with_sizes(sizes)]
                copy_each(floating, [one.reshape(-1) for one in some])
                some = floating
            norms = torch._foreach_norm(some, ord=math.inf)
            read.append(torch.stack(norms).double())
            continue
        for index, one in zip(indices, some, strict=True):  # the norm would take ten times as long
            least, most = map(float, torch.aminmax(one))
            found[index] = max(-least, most)
    bounds = torch.cat([one.to(read[0].device) for one in read]).tolist() if read else []
    for index, bound in zip(order, bounds, strict=True):
        found[index] = bound
    return found


def _batches(sizes: Sequence[int], chunk: int) -> Iterator[list[_Slice]]:
    """Divide rows of so many elements, one after the other, into batches of at most `chunk`."""
    batch: list[_Slice] = []
    left = chunk
    for row, size in enumerate(sizes):
        for begin in range(0, size, chunk):
            each = _Slice(row, begin, min(begin + chunk, size))
            if each.size > left:
                yield batch
                batch, left = [], chunk
            batch.append(each)
            left -= each.size
    if batch:
        yield batch


def _mean_memory(row: Summands) -> torch.Tensor:
    """Return the first summand of a row; new memory if the mean does not fit, or it is the base."""
    target = row.target
    first: torch.Tensor | None = row.own[0][0] if row.own else None
    if first is row.base or (first is not None and first.dtype != target.dtype):
        first = None
    if first is not None and first.is_contiguous() and target.is_contiguous():
        return first
    new = torch.empty_like(target)
    return first if first is not None and first.stride() == new.stride() else new


def _size(target: torch.Tensor) -> int:
    return target.numel() * (2 if target.is_complex() else 1)


def _real(values: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(values.resolve_conj()) if values.is_complex() else values


def _flat(values: torch.Tensor) -> torch.Tensor:
    return _real(values).reshape(-1)


def is_launched(device: torch.device) -> bool:
    """Return whether operations on a device are begun by the processor and run beside it."""
    return device.type != "cpu"


# ------------------------------------------------------------
# Let each logical worker of a step begin with the same buffers: those that the step began with.
#
# After each pass the buffers are compared with their values at the beginning of the step, and what
# the pass has changed is kept. On a GPU the processor would have to wait for the pass there. So
# small buffers on a GPU are kept whether they have changed or not, and compared at the end of the
# step.

SMALL = 1 << 20  # elements; a larger buffer seldom changes, and to keep it takes memory


class _Buffer(NamedTuple):
    path: str
    module: torch.nn.Module
    name: str
    buffer: torch.Tensor
    copy: torch.Tensor

    def is_replaced(self) -> bool:
        return self.module._buffers.get(self.name) is not self.buffer

    def take_back(self) -> torch.Tensor | None:
        """Set the buffer to the copy; return the values that it had; None: they are the same."""
        now = self.module._buffers.get(self.name)
        if now is None or (now is self.buffer and torch.equal(now, self.copy)):
            return None
        values = now.detach().clone()
        self.module._buffers[self.name] = self.buffer
        with torch.no_grad():
            self.buffer.copy_(self.copy)
        return values


class _GpuBuffers:
    """Small buffers of one type on one GPU, each operation on which takes all of them."""

    def __init__(self, buffers: Sequence[torch.Tensor]) -> None:
        self._buffers = buffers
        self._before = self._values()
        self._after: list[torch.Tensor] = []  # by logical worker
        self.copies = self._divide(self._before)

    def end_piece(self, counts: bool) -> list[torch.Tensor]:
        values = self._values()
        with torch.no_grad():
            torch._foreach_copy_([*self._buffers], self.copies)
        if counts:
            self._after.append(values)
        return self._divide(values)

    def changes(self) -> list[torch.Tensor]:
        """Return for each buffer 1.0 where some pass has changed it, else 0.0."""
        if not self._after:
            return []
        changed = (torch.stack(self._after) != self._before).any(dim=0)
        return self._divide(changed.float())

    def _values(self) -> torch.Tensor:
        return torch.cat([buffer.detach().reshape(-1) for buffer in self._buffers])

    def _divide(self, values: torch.Tensor) -> list[torch.Tensor]:
        parts = values.split_with_sizes([buffer.numel() for buffer in self._buffers])
        return [part.view(buffer.shape) for part, buffer in zip(parts, self._buffers, strict=True)]


class LogicalBuffers:
    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._before: list[_Buffer] = []
        self._gpu: list[tuple[list[int], _GpuBuffers]] = []  # with their indices in _before
        self._after: list[list[torch.Tensor | None]] = []  # by logical worker; None: unchanged
        self._changed: set[int] = set()  # the indices of what some pass has changed for certain

    def begin_step(self) -> None:
        known: dict[int, tuple[str, torch.nn.Module, str, torch.Tensor]] = {}
        for path, module in self._model.named_modules():
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    full = f"{path}.{name}" if path else name
                    known.setdefault(id(buffer), (full, module, name, buffer))
        buffers = [each[-1] for each in known.values()]
        small = [index for index, buffer in enumerate(buffers) if _is_compared_later(buffer)]
        self._gpu = []
        copies: dict[int, torch.Tensor] = {}
        for group in by_type([buffers[index] for index in small]):
            indices = [small[each] for each in group]
            together = _GpuBuffers([buffers[index] for index in indices])
            self._gpu.append((indices, together))
            copies.update(zip(indices, together.copies, strict=True))
        self._before = [
            _Buffer(*each, copies[index] if index in copies else each[-1].detach().clone())
            for index, each in enumerate(known.values())
        ]
        self._after, self._changed = [], set()

    @property
    def names(self) -> list[str]:
        return [f"the buffer {each.path}" for each in self._before]

    def end_piece(self, counts: bool) -> list[torch.Tensor]:
        """Put the copies back; return what the pass made of the buffers, kept if it `counts`."""
        after: list[torch.Tensor | None] = [None] * len(self._before)
        looked_at = set(range(len(self._before)))
        for indices, together in self._gpu:
            for index, values in zip(indices, together.end_piece(counts), strict=True):
                if not self._before[index].is_replaced():
                    after[index] = values
                    looked_at.remove(index)
        changed = set()
        for index in looked_at:
            after[index] = self._before[index].take_back()
            if after[index] is not None:
                changed.add(index)
        if counts:
            self._after.append(after)
            self._changed |= changed
        pairs = zip(self._before, after, strict=True)
        return [each.copy if one is None else one for each, one in pairs]

    def summands(self, pieces: int) -> Iterator[Summands]:
        changed = self._changed | self._compared()
        for index, (_, _, _, buffer, copy) in enumerate(self._before):
            after = [one[index] for one in self._after]
            own = [(copy if one is None else one, 1.0) for one in after]
            yield Summands(buffer, own, float(pieces), index in changed, copy)

    def _compared(self) -> set[int]:
        order, changes = [], []
        for indices, together in self._gpu:
            if found := together.changes():
                order += indices
                changes += found
        largest = Tensors().largest(changes)
        return {index for index, most in zip(order, largest, strict=True) if most > 0.0}


def _is_compared_later(buffer: torch.Tensor) -> bool:
    """Return whether a buffer is compared at the end of the step, and put back in any case."""
    shape = zip(buffer.shape, buffer.stride(), strict=True)
    shares = any(size > 1 and step == 0 for size, step in shape)  # so it cannot be written to
    return is_launched(buffer.device) and buffer.numel() <= SMALL and not shares


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
    cuda: Any = torch.cuda
    return Arithmetic(torch.get_num_threads(), _instructions(cuda.is_initialized()))


@functools.cache
def _instructions(on_gpu: bool) -> str:
    """Return by what this process computes; `on_gpu`: a GPU, too, which is not started here."""
    environ, capability = environment(), torch.backends.cpu.get_cpu_capability()
    used = [f"ATen {capability}", of_onednn(environ), of_mkl(environ)]
    return ", ".join([*used, torch.cuda.get_device_name()] if on_gpu else used)


class Means(NamedTuple):
    gradients: list[tuple[Gradient, torch.Tensor]]  # that some logical worker has, and the means
    buffers: list[tuple[torch.Tensor, torch.Tensor]]  # that some pass has changed, and the means


class LogicalSums:
    def __init__(
        self, worker: Worker, model: torch.nn.Module, suffix: str, passes: int = 1
    ) -> None:
        self._worker, self._suffix, self._passes = worker, suffix, passes
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
        if not_computed:  # read at once: each read waits for the device
            device = not_computed[0][1].device
            is_set = torch.stack([has_value.to(device) for _, has_value in not_computed]).tolist()
            for (name, _), has_value in zip(not_computed, is_set, strict=True):
                if has_value:
                    raise UsageError(SET_BY_HAND.format(name=name))
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
        self._kept.clear()
        self._step, self._in_piece = -1, False

    def means(
        self, gradients: Sequence[Gradient], weights: Weights, sending: Callable[[], None]
    ) -> Means:
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
        pairs = zip(gradients, found, strict=False)
        after = zip(rows[len(gradients) :], found[len(gradients) :], strict=True)
        return Means(
            [(each, mean) for each, mean in pairs if mean is not None],
            [(row.target, mean) for row, mean in after if mean is not None],
        )

    def _digests(
        self, found: Sequence[tuple[Gradient, torch.Tensor]], buffers: Sequence[torch.Tensor]
    ) -> dict[str, int]:
        values = [(_name(gradient), own) for gradient, own in found]
        values += zip(self._buffers.names, buffers, strict=True)
        return digests(ByteRange(name, one, 0, size_of(one) or 0, True) for name, one in values)

    def _together(self, summed: Any, kind: str) -> Any:
        tensor = torch.tensor(summed, dtype=torch.float64) if isinstance(summed, list) else summed
        try:
            name = f"edl.logical.{kind}{self._suffix}"
            result: torch.Tensor = finish(average_start(tensor, tensor, name, kind))
        except CollectiveFailed as error:
            raise RingBroken(self._worker.generation, str(error)) from error
        return result.tolist() if isinstance(summed, list) else result


def _name(gradient: Gradient) -> str:
    return f"the gradient of {gradient.name}"
