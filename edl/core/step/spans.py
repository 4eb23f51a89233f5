"""Compute with spans of positions and lists of spans.

A span is a pair (start, stop) and holds the positions p with start <= p < stop. A list of spans has
an order, which the functions keep. Spans of one list do not overlap.
"""

from __future__ import annotations

from collections.abc import Iterable

Span = tuple[int, int]


def length(spans: Iterable[Span]) -> int:
    """Return how many positions `spans` hold together."""
    total = 0
    for start, stop in spans:
        total += stop - start
    return total


def take(spans: list[Span], count: int) -> tuple[Span, ...]:
    """Remove the first `count` positions of `spans`, and return them as spans in their order."""
    taken: list[Span] = []
    while count > 0 and spans:
        start, stop = spans[0]
        cut = min(stop, start + count)
        taken.append((start, cut))
        count -= cut - start
        if cut == stop:
            spans.pop(0)
        else:
            spans[0] = (cut, stop)
    return tuple(taken)


def parted(spans: tuple[Span, ...], count: int) -> tuple[tuple[Span, ...], tuple[Span, ...]]:
    """Split `spans` after the first `count` positions, or after all if there are fewer."""
    if count > 0 and spans and spans[0][0] + count < spans[0][1]:  # usual: a thousand times a step
        start, stop = spans[0]
        return ((start, start + count),), ((start + count, stop), *spans[1:])
    rest = list(spans)
    return take(rest, count), tuple(rest)


def joined(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Return `spans` with each span merged into the one before it that ends at its start."""
    found: list[Span] = []
    for start, stop in spans:
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], stop)
        else:
            found.append((start, stop))
    return tuple(found)


def subtract_spans(spans: Iterable[Span], taken: Iterable[Span]) -> tuple[Span, ...]:
    """Return `spans` without the positions in `taken`, in the order of `spans`."""
    rest = list(spans)
    for start, stop in taken:
        rest = [
            (a, b)
            for one, two in rest
            for a, b in ((one, min(two, start)), (max(one, stop), two))
            if a < b
        ]
    return tuple(rest)


def common(spans: Iterable[Span], others: Iterable[Span]) -> tuple[Span, ...]:
    """Return the positions of `spans` that are in `others` too, in the order of `spans`."""
    others = list(others)
    found: list[Span] = []
    for start, stop in spans:
        inside = ((max(start, a), min(stop, b)) for a, b in others)
        found.extend(sorted((a, b) for a, b in inside if a < b))
    return tuple(found)
