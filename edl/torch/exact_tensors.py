"""Add PyTorch's tensors up exactly: on a GPU many of them in one operation.

:class:`Tensors` is the :class:`edl.framework.exact_mean.ArrayKind` of PyTorch. On a CPU it takes
one tensor after the other, in chunks that stay in the processor's cache. A GPU needs some
microseconds to begin an operation, however small, and the processor waits for all that was begun
when it reads a result. So there an operation takes all tensors of one type that fit into a chunk
(``torch._foreach_...``, as in PyTorch's optimizers), and many results are read at once. The bits
are those of one tensor after the other, because each element is computed on its own.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import torch

from edl.framework.exact_mean import Summands
from edl.framework.exact_sum import CHUNK, add_rounded, divide_into

GPU_CHUNK = 1 << 23  # elements that a GPU rounds at once: 64 MiB of float64


class _Slice(NamedTuple):
    """A part of a row of elements: the index of the row, the first element, and the end."""

    row: int
    begin: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.begin

    def of(self, flat: torch.Tensor) -> torch.Tensor:
        """Return these elements of the row `flat`."""
        return flat if self.size == flat.numel() else flat[self.begin : self.end]


class Tensors:
    """The tensors of PyTorch as `ArrayKind`."""

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
        """Return this worker's sums, in the memory of the last ones if that fits."""
        sizes = [_size(row.target) for row in rows]
        sums = self._sums(sum(sizes), rows)
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
        """Return the mean of each row, in the memory of its first summand if that fits."""
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

    def _sums(self, size: int, rows: Sequence[Summands]) -> torch.Tensor:
        """Return memory for sums of `size` elements."""
        device = rows[0].target.device if rows else torch.device("cpu")
        sums = self._memory
        if sums is None or sums.numel() != size or sums.device != device:
            sums = self._memory = torch.empty(size, dtype=torch.float64, device=device)
        return sums


def _add_up_together(
    rows: Sequence[Summands],
    constants: Sequence[float],
    sums: torch.Tensor,
    scratch: torch.Tensor,
) -> None:
    """Set `sums` to the sums of all rows, each of whose summands is rounded by its constant."""
    begin = 0
    for batch, summands in _with_summands(rows, max(1, len(scratch))):
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
    """Set each total to the sum of its summands, as `add_rounded` does."""
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
    """Set the tensors `flats` to `sums` divided by the divisors of their rows."""
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
    """Copy each source into its target, which has its shape; types and devices may differ."""
    for indices in by_type(targets, sources):
        torch._foreach_copy_([targets[i] for i in indices], [sources[i] for i in indices])


def by_type(*lists: Sequence[torch.Tensor]) -> list[list[int]]:
    """Return groups of indices: in each list the tensors of a group have one type and device."""
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
            norms = torch._foreach_norm(_floating(some), ord=math.inf)
            read.append(torch.stack(norms).double())
            continue
        for index, one in zip(indices, some, strict=True):  # the norm would take ten times as long
            least, most = map(float, torch.aminmax(one))
            found[index] = max(-least, most)
    bounds = torch.cat([one.to(read[0].device) for one in read]).tolist() if read else []
    for index, bound in zip(order, bounds, strict=True):
        found[index] = bound
    return found


def _floating(values: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return tensors of one type and device, or what they are in float64 if they are integers."""
    first = values[0]
    if first.is_floating_point():
        return values
    sizes = [one.numel() for one in values]
    memory = torch.empty(sum(sizes), dtype=torch.float64, device=first.device)
    floating = [*memory.split_with_sizes(sizes)]
    copy_each(floating, [one.reshape(-1) for one in values])
    return floating


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


def _with_summands(
    rows: Sequence[Summands], chunk: int
) -> Iterator[tuple[list[_Slice], list[list[tuple[torch.Tensor, float]]]]]:
    """Yield the batches of rows, and the summands of each slice with their weights."""
    row, flats = -1, []
    for batch in _batches([_size(one.target) for one in rows], chunk):
        summands = []
        for each in batch:
            if each.row != row:
                row = each.row
                flats = [(_flat(values), weight) for values, weight in rows[row].own]
            summands.append([(each.of(flat), weight) for flat, weight in flats])
        yield batch, summands


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
