"""Draw at random when jobs are submitted: a Poisson process whose rate may change with time.

:func:`times` draws the times; :func:`shape` returns the rates that a name stands for.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import cycle

from edl.errors import UsageError

MINUTE_S = 60.0
HOUR_S = 3600.0
Pieces = Sequence[tuple[float, float]]
"""Seconds, and arrivals a second meanwhile; they come one after the other, over and over."""

LOW, HIGH = 0.2 / MINUTE_S, 1.0 / MINUTE_S
SHAPES: dict[str, Pieces] = {
    "low": [(HOUR_S, LOW)],
    "high": [(HOUR_S, HIGH)],
    "mixed": [(HOUR_S, LOW), (HOUR_S, HIGH)],
    "bursts": [(10 * MINUTE_S, 3.0 / MINUTE_S), (50 * MINUTE_S, 0.1 / MINUTE_S)],
}
"""JSA's rates of arrival; that "mixed" changes each hour is theirs, the rates themselves are not
known. Jobs of 45 minutes on one slot each keep 9 of 40 slots busy at 0.2 a minute, and ask for 45
at 1 a minute."""


def times(pieces: Pieces, until_s: float, chance: random.Random) -> Iterator[float]:
    """Yield the times at which jobs are submitted, in seconds from 0, before `until_s`."""
    begun_s, owed = 0.0, chance.expovariate(1.0)
    for seconds, per_s in cycle(pieces):
        at_s, end_s = begun_s, min(begun_s + seconds, until_s)
        while owed < (end_s - at_s) * per_s:
            at_s += owed / per_s
            yield at_s
            owed = chance.expovariate(1.0)
        owed -= (end_s - at_s) * per_s
        begun_s += seconds
        if begun_s >= until_s:
            return


def shape(text: str) -> Pieces:
    """Return the rates of submission that `text` names, for `times`."""
    if text in SHAPES:
        return SHAPES[text]
    try:
        per_minute = float(text)
    except ValueError:
        per_minute = 0.0
    if not 0 < per_minute <= 1000:
        raise UsageError(
            f"there are no arrivals {text!r}; use {', '.join(SHAPES)}, or a number of jobs a minute"
        )
    return [(HOUR_S, per_minute / MINUTE_S)]
