"""Shorten long texts: before they are written to ZooKeeper, and to the width of a terminal.

The entry points are :func:`excerpt` for one text, such as a script's error message,
:func:`excerpts` for all texts of a JSON value, and :func:`cropped` for a line on a terminal. A node
of ZooKeeper holds at most 1 MB, and ZooKeeper disconnects a client that sends more.
:func:`printable` makes one line of a text that others have written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

# ------------------------------------------------------------
# Write numbers and names for reasons and messages: "1 worker", "2 slots", "w1, w3".


def verb(count: int, one: str = "is", several: str = "are") -> str:
    return one if count == 1 else several


def counted(count: int, what: str, groups: bool = False) -> str:
    """Return "2 slots", or with `groups`, as on the dashboard, "1,400 bytes"."""
    number = f"{count:,}" if groups else str(count)
    return f"{number} {verb(count, what, f'{what}s')}"


def workers(count: int) -> str:
    return counted(count, "worker")


def workers_train(count: int) -> str:
    """Return how many workers train, as a clause: "1 worker trains", "2 workers train"."""
    return f"{workers(count)} {verb(count, 'trains', 'train')}"


def names(numbers: Sequence[int]) -> str:
    """Return the names of workers in the order of their `numbers`, such as "w3, w1"."""
    return ", ".join(f"w{number}" for number in numbers)


def by_host(counts: Mapping[str, int]) -> str:
    """Return counts by host as a text, in their order: "a: 2, b: 1"."""
    return ", ".join(f"{host}: {count}" for host, count in counts.items())


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines in which each column begins at one place."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def in_brackets(numbers: Sequence[int]) -> str:
    """Return " (0, 1)"; empty without numbers."""
    return f" ({', '.join(map(str, numbers))})" if numbers else ""


# ------------------------------------------------------------
# Define which texts can be the name of a job, a host, a queue or a cluster.

RULE = "1 to 64 letters, digits, dots, dashes and underscores, beginning with a letter or a digit"
PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$(?!\n)"
"""The same as a regular expression, of Python and of JSON schema. Python's ``$`` alone would accept
a line break at the end."""

ALONE = "alone"
"""The name of the job of a script without a launcher."""

_NAME = re.compile(PATTERN)
_MADE_UP = re.compile(r".+-(?=[0-9]*[a-f])[0-9a-f]{4}")


def is_name(name: str) -> bool:
    return _NAME.match(name) is not None


def ends_made_up(job: str) -> bool:
    """Return whether a name ends as those that edl makes up, like "train-3f9a", not "run-2024"."""
    return _MADE_UP.fullmatch(job) is not None


def is_given_name(job: str) -> bool:
    """Return whether a user has certainly given a job its name, and edl has not made it up."""
    return job != ALONE and not ends_made_up(job)


# ------------------------------------------------------------
# Read and write durations as people do: "500ms", "5s", "15m", "2h", "1d"; "5" means 5 seconds.
#
# In sentences they are written with words: "4 min 10 s".

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


def span(duration_s: float) -> str:
    """Return `duration_s` for people: "45 s", from 120 s on "12 min", from 2 h on "2.5 h"."""
    if duration_s < 120:
        return f"{duration_s:.0f} s"
    return f"{duration_s / 60:.0f} min" if duration_s < 7200 else f"{duration_s / 3600:.1f} h"


CHARS = 8000
_MARK_CHARS = 50  # so that an excerpt of an excerpt is the same


def excerpt(text: str, chars: int = CHARS) -> str:
    """Return `text`, or its beginning and its end with at most `chars` characters in all."""
    if len(text) <= chars:
        return text
    half = (chars - _MARK_CHARS) // 2
    return f"{text[:half]} [... {len(text) - 2 * half} characters ...] {text[-half:]}"


def excerpts(value: Any) -> Any:
    if isinstance(value, str):
        return excerpt(value)
    if isinstance(value, dict):
        return {key: excerpts(one) for key, one in value.items()}
    return [excerpts(one) for one in value] if isinstance(value, list | tuple) else value


def cropped(text: str, width: int) -> str:
    """Return `text`, made printable, with at most `width` characters, then with an ellipsis."""
    shown = printable(text)
    return shown if len(shown) <= width else f"{shown[: max(0, width - 1)]}…"


def printable(text: str) -> str:
    """Return `text` as one line that a terminal, a log and UTF-8 can have."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() else "\ufffd" for c in text)


# ------------------------------------------------------------
# Encode an HTTP answer as JSON, whatever texts it has (`json_text`).

_SURROGATE = re.compile("[\ud800-\udfff]")


def json_text(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_encodable(msgspec.to_builtins(value)))


def _encodable(value: Any) -> Any:
    # A byte of a path that is not UTF-8 is half a surrogate pair here, which has no encoding.
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, dict):
        return {_encodable(key): _encodable(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_encodable(one) for one in value]
    return value
