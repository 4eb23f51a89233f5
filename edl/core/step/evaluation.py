"""Divide the batches of an evaluation among workers, some of which may die before they answer.

A worker evaluates its part of each open span of batches (:func:`parts_of`), and all workers then
exchange what they found. The parts of workers that died before are open again
(:func:`open_parts`), and are divided among the survivors. So each batch is in exactly one result.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from edl.core.step.spans import Span


def parts_of(open_spans: Iterable[Span], rank: int, size: int) -> tuple[Span, ...]:
    """Return the part of each span that the worker of `rank` evaluates, of `size` workers."""
    parts = []
    for start, stop in open_spans:
        count = stop - start
        part = (start + count * rank // size, start + count * (rank + 1) // size)
        if part[0] < part[1]:
            parts.append(part)
    return tuple(parts)


def open_parts(
    open_spans: Iterable[Span], size: int, evaluated: Collection[Span]
) -> tuple[Span, ...]:
    """Return the parts of all `size` workers that are not in `evaluated`, in their order."""
    every = [part for rank in range(size) for part in parts_of(open_spans, rank, size)]
    return tuple(sorted(part for part in every if part not in evaluated))
