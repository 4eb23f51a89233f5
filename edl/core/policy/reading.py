"""Turn the tables of a policy file into objects, and refuse what is wrong with its line number.

:func:`made` builds the object of a table; :class:`Lines` finds the line that a message names.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from difflib import get_close_matches
from typing import Any, get_args, get_type_hints

from edl.core.duration import seconds
from edl.errors import UsageError


class Lines:
    """The lines of a policy file, by which error messages name the line of a key."""

    def __init__(self, text: str, source: str) -> None:
        self._source = source
        self._lines = text.splitlines()

    def error(self, table: str, key: str, sentence: str) -> UsageError:
        """Return (not raise) an error that begins with the file's name and the line of `key`."""
        found = [number for within, number in self._numbers(key) if within in (table, "")]
        where = f"{self._source}, line {found[0]}" if found else self._source
        return UsageError(f"{where}: {sentence}")

    def _numbers(self, key: str) -> Iterator[tuple[str, int]]:
        """Yield a pair (table, line number) for each line that begins with `key`, from the top."""
        pattern = re.compile(rf"\s*(\[+\s*)?[\"']?{re.escape(key)}[\"']?\s*[\]=.]")
        table = ""
        for number, line in enumerate(self._lines, 1):
            if pattern.match(line):
                yield ("" if line.lstrip().startswith("[") else table), number
            if header := re.match(r"\s*\[\s*[\"']?(\w+)", line):
                table = header[1]


def made(
    kind: type[Any],
    given: Mapping[str, Any],
    table: str,
    what: str,
    others: Sequence[str],
    lines: Lines,
) -> Any:
    """Return an object of `kind` with the settings in `given`, where a time `x_s` is named `x`."""
    known = {one.name.removesuffix("_s"): one for one in fields(kind) if one.metadata}
    types, values = get_type_hints(kind), {}
    for key, value in given.items():
        if key in others:
            continue
        if key not in known:
            known_keys = [*known, *others]
            raise lines.error(table, key, f"{what} has no {key!r}{near(key, known_keys)}")
        values[known[key].name] = _value(known[key], types, value, table, key, lines)
    return kind(**values)


def _value(
    one: Field[Any],
    types: Mapping[str, Any],
    value: Any,
    table: str,
    key: str,
    lines: Lines,
) -> Any:
    """Return a setting's value as its field has it; times are in seconds."""
    if one.name == "utility":
        return _utility(value, lines)
    if one.name.endswith("_s"):
        return time_of(value, table, key, lines)
    kinds = get_args(types[one.name]) or (types[one.name],)
    if bool in kinds:
        if not isinstance(value, bool):
            raise lines.error(table, key, f"{key} is {value!r}; it must be true or false")
        return value
    if choices := one.metadata.get("choices"):
        if value not in choices:
            raise lines.error(table, key, f"{key} is {value!r}; it must be {' or '.join(choices)}")
        return value
    whole = int in kinds and float not in kinds
    if not is_number(value) or (whole and not isinstance(value, int)):
        what = "a whole number" if whole else "a number"
        raise lines.error(table, key, f"{key} is {value!r}; it must be {what}")
    least = one.metadata.get("least")
    if least is not None and value < least:
        raise lines.error(table, key, f"{key} is {value}; it must be at least {least:g}")
    most = one.metadata.get("most")
    if most is not None and value > most:
        raise lines.error(table, key, f"{key} is {value}; it must be at most {most:g}")
    assert one.default is not MISSING
    return value if whole else float(value)


def time_of(value: Any, table: str, key: str, lines: Lines) -> float:
    """Return the `value` of a key, a time such as "90s", in seconds."""
    found = None if isinstance(value, bool) else seconds(str(value))
    if not found or not is_number(found):
        what = 'it must be a time such as "90s", "15m" or "2h"'
        raise lines.error(table, key, f"{key} is {value!r}; {what}")
    return found


def _utility(value: Any, lines: Lines) -> tuple[tuple[float, float], ...]:
    """Return a utility such as [["1h", 10.0], ["2h", 0.0]] as pairs (seconds, value)."""
    hint = 'utility is a list of times and values, like [["1h", 10], ["2h", 0]]'
    if not isinstance(value, list) or len(value) < 2:
        raise lines.error("size", "utility", hint)
    points: list[tuple[float, float]] = []
    for pair in value:
        if not isinstance(pair, list) or len(pair) != 2 or not is_number(pair[1]):
            raise lines.error("size", "utility", hint)
        at_s = 0.0 if pair[0] == 0 else time_of(pair[0], "size", "utility", lines)
        points.append((at_s, float(pair[1])))
    if [at_s for at_s, _ in points] != sorted({at_s for at_s, _ in points}):
        raise lines.error("size", "utility", f"{hint}; each time later than the one before")
    return tuple(points)


def is_number(value: Any) -> bool:
    """Return whether `value` is a finite float, or an integer that is not above all floats."""
    kinds = isinstance(value, (int, float)) and not isinstance(value, bool)
    return kinds and abs(value) <= sys.float_info.max


def near(word: str, known: Iterable[str]) -> str:
    """Return a clause for the end of a message about `word`, which is not a `known` word."""
    names = list(known)
    found = get_close_matches(word, names, n=1, cutoff=0.5)
    return f"; did you mean {found[0]}?" if found else f"; there are {', '.join(names)}"
