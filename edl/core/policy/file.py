"""A policy as people write it: TOML, one table for each thing that it decides.

::

    [size]
    rule = "throughput"
    threshold = 0.1

Whatever cannot be is refused in one sentence that names the line.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, replace
from difflib import get_close_matches
from typing import Any, get_args, get_type_hints

from edl.core.duration import seconds
from edl.core.policy.cost import Cost
from edl.core.policy.goodput import Goodput
from edl.core.policy.observation import Rule
from edl.core.policy.own import Own, named
from edl.core.policy.stragglers import Stragglers
from edl.core.policy.throughput import Throughput
from edl.core.policy.votes import Votes
from edl.core.sizes import Sizes
from edl.errors import UsageError

RULES: Mapping[str, type[Any]] = {
    "throughput": Throughput,
    "cost": Cost,
    "goodput": Goodput,
    "votes": Votes,
}
TABLES = ("size", "stragglers")
COMMON = ("rule", "hold", "data_wait")  # keys that each rule may have
HOLD_S = 1800.0


@dataclass(frozen=True)
class Policy:
    """What was written. ``text``: as it was, for whoever reads it later.

    Attributes:
        size: the rule for the number of workers; None: people say it.
        hold_s: for how long it leaves a size alone that a person has asked for.
        data_wait: the part of a step that may go by waiting for data; above it the job does not
            grow. None: any.
        stragglers: what is done about slow workers; None: nothing.
    """

    text: str
    size: Rule | Own | None = None
    hold_s: float = HOLD_S
    stragglers: Stragglers | None = None
    data_wait: float | None = None

    @property
    def needs_noise(self) -> bool:
        """It weighs how much a larger batch is worth."""
        return isinstance(self.size, Goodput)

    @property
    def needs_times(self) -> str:
        """What of it counts only where the workers' times are known."""
        needing = {"[stragglers]": self.stragglers, "data_wait": self.data_wait}
        return " and ".join(name for name, value in needing.items() if value is not None)


def parse(text: str, source: str) -> Policy:
    """The policy in ``text``, which is from ``source``, a file.

    Raises:
        UsageError: it is no TOML; a table, a rule or a key that does not exist; a value that
            cannot be, or one that needs another.
    """
    lines = _Lines(text, source)
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{source} is not TOML: {error}") from None
    for name, table in values.items():
        if name not in TABLES:
            raise lines.error("", name, f"there is no table [{name}]{_near(name, TABLES)}")
        if not isinstance(table, dict):
            raise lines.error("", name, f"{name} is a table: write [{name}] above its keys")
    if not values:
        raise UsageError(f"{source} says nothing; {RULE_NEEDED}, or [stragglers]")
    policy = Policy(text)
    if "size" in values:
        size = values["size"]
        policy = replace(policy, size=_size(size, source, lines))
        if "hold" in size:
            policy = replace(policy, hold_s=_seconds(size["hold"], "size", "hold", lines))
        if "data_wait" in size:
            policy = replace(policy, data_wait=_part(size["data_wait"], "data_wait", lines))
    if "stragglers" in values:
        given = values["stragglers"]
        rule = _made(Stragglers, given, "stragglers", "table stragglers", (), lines)
        policy = replace(policy, stragglers=rule)
    return policy


def _size(given: Mapping[str, Any], source: str, lines: _Lines) -> Rule | Own:
    """The rule in the table."""
    if "rule" not in given:
        raise UsageError(f"{source} names no rule; {RULE_NEEDED}")
    name = str(given["rule"])
    own = named(name)
    if name not in RULES and own is None:
        hint = f"{_near(name, RULES)}; or name your own, as module:function"
        raise lines.error("size", "rule", f"there is no rule {given['rule']!r}{hint}")
    kind = Own if own is not None else RULES[name]
    rule = _made(kind, given, "size", f"rule {name}", COMMON, lines)
    if own is not None:
        rule = replace(rule, module=own[0], function=own[1])
    if isinstance(rule, Cost):
        _check_cost(rule, given, lines)
    found: Rule | Own = rule
    return found


RULE_NEEDED = f'write [size] and below it rule = "throughput", or one of {", ".join(RULES)}'


def _made(
    kind: type[Any],
    given: Mapping[str, Any],
    table: str,
    what: str,
    others: Sequence[str],
    lines: _Lines,
) -> Any:
    """An object of ``kind`` with the values that are ``given`` for its settings.

    Args:
        what: has these settings, for messages.
        others: keys that may be there, too.
    """
    known = {one.name.removesuffix("_s"): one for one in fields(kind) if one.metadata}
    types, values = get_type_hints(kind), {}
    for key, value in given.items():
        if key in others:
            continue
        if key not in known:
            near = _near(key, [*known, *others])
            raise lines.error(table, key, f"{what} has no {key!r}{near}")
        values[known[key].name] = _value(known[key], types, value, table, key, lines)
    return kind(**values)


def check_sizes(policy: Policy, sizes: Sizes, source: str) -> None:
    """Refuse a policy that cannot reach any other size that the job may have.

    Raises:
        UsageError: there is only one size, or none within reach.
    """
    if policy.size is None:
        return
    least = sizes.above(sizes.min_np)
    if sizes.max_np is not None and least is not None and sizes.above(least + 1) is None:
        raise UsageError(
            f"{source} is to find the job's size, and the job may have {sizes} only; start it with "
            "other --min-np, --max-np or --sizes"
        )


class _Lines:
    """Where the keys of a file stand."""

    def __init__(self, text: str, source: str) -> None:
        self._source = source
        self._lines = text.splitlines()

    def error(self, table: str, key: str, sentence: str) -> UsageError:
        """``sentence``, after the line of ``key`` in ``table``; empty: ``key`` is one."""
        found = [number for within, number in self._numbers(key) if within in (table, "")]
        where = f"{self._source}, line {found[0]}" if found else self._source
        return UsageError(f"{where}: {sentence}")

    def _numbers(self, key: str) -> Iterator[tuple[str, int]]:
        """The lines that name ``key``, each with the table that it stands in."""
        pattern = re.compile(rf"\s*(\[+\s*)?[\"']?{re.escape(key)}[\"']?\s*[\]=.]")
        table = ""
        for number, line in enumerate(self._lines, 1):
            if pattern.match(line):
                yield ("" if line.lstrip().startswith("[") else table), number
            if header := re.match(r"\s*\[\s*[\"']?(\w+)", line):
                table = header[1]


def _value(
    one: Field[Any],
    types: Mapping[str, Any],
    value: Any,
    table: str,
    key: str,
    lines: _Lines,
) -> Any:
    if one.name == "utility":
        return _utility(value, lines)
    if one.name.endswith("_s"):
        return _seconds(value, table, key, lines)
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
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
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


def _seconds(value: Any, table: str, key: str, lines: _Lines) -> float:
    found = None if isinstance(value, bool) else seconds(str(value))
    if not found:
        what = 'it must be a time such as "90s", "15m" or "2h"'
        raise lines.error(table, key, f"{key} is {value!r}; {what}")
    return found


def _part(value: Any, key: str, lines: _Lines) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
        what = "it must be a part, above 0 and up to 1"
        raise lines.error("size", key, f"{key} is {value!r}; {what}")
    return float(value)


def _utility(value: Any, lines: _Lines) -> tuple[tuple[float, float], ...]:
    """[["1h", 10.0], ["2h", 0.0]]: what it is worth to end by then."""
    hint = 'utility is a list of times and values, like [["1h", 10], ["2h", 0]]'
    if not isinstance(value, list) or len(value) < 2:
        raise lines.error("size", "utility", hint)
    points: list[tuple[float, float]] = []
    for pair in value:
        if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[1], (int, float)):
            raise lines.error("size", "utility", hint)
        at_s = 0.0 if pair[0] == 0 else _seconds(pair[0], "size", "utility", lines)
        points.append((at_s, float(pair[1])))
    if [at_s for at_s, _ in points] != sorted({at_s for at_s, _ in points}):
        raise lines.error("size", "utility", f"{hint}; each time later than the one before")
    return tuple(points)


def _check_cost(rule: Cost, given: Mapping[str, Any], lines: _Lines) -> None:
    aims = [key for key in ("deadline", "max_cost", "utility") if key in given]
    if not aims:
        key, why = (
            ("price", "a price alone does not say what it is worth")
            if rule.price
            else (
                "rule",
                "rule cost needs to know what is wanted",
            )
        )
        raise lines.error("size", key, f"{why}; add a deadline, a max_cost or a utility")
    if "utility" in aims and len(aims) > 1:
        raise lines.error(
            "size", "utility", f"utility and {aims[0]} contradict each other; give one"
        )
    if not rule.price and aims != ["deadline"]:
        raise lines.error("size", aims[-1], f"{aims[-1]} needs the price of a worker for an hour")


def _near(word: str, known: Any) -> str:
    near = get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known)}"
