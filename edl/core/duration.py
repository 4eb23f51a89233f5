"""Read and write durations as people do: "500ms", "5s", "15m", "2h", "1d"; "5" means 5 seconds.

In sentences they are written with words: "4 min 10 s".
"""

from __future__ import annotations

import re

_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?) *(ms|s|m|h|d|)")
_WORDS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_SECONDS = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds(text: str) -> float | None:
    """Return the duration that `text` describes; None if it describes none."""
    match = _DURATION.fullmatch(text.strip())
    return None if match is None else float(match[1]) * _SECONDS[match[2]]


def rounded(duration_s: float) -> str:
    """Return a duration in its largest unit with three or more: "3d", "47h", "15m", "119s"."""
    for unit in ("d", "h", "m"):
        if (count := int(duration_s / _SECONDS[unit])) >= 3:
            return f"{count}{unit}"
    return f"{max(0, int(duration_s))}s"


def duration_in_words(duration_s: float) -> str:
    """Return a duration as sentences have it: "8 s", "4 min 10 s", "3 h 5 min"."""
    # As in `duration` of the dashboard's `format.mjs`: all durations on a page have one form.
    left = max(0, round(duration_s))
    first = next((at for at, (size, _) in enumerate(_WORDS) if left >= size), len(_WORDS) - 1)
    parts = []
    for size, unit in _WORDS[first : first + 2]:
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts) or "0 s"
