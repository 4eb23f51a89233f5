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
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from difflib import get_close_matches
from typing import Any, get_args, get_type_hints

from edl.core.duration import seconds
from edl.core.policy.cost import Cost
from edl.core.policy.observation import Rule
from edl.core.policy.own import Own, named
from edl.core.policy.throughput import Throughput
from edl.core.sizes import Sizes
from edl.errors import UsageError

RULES: Mapping[str, type[Any]] = {"throughput": Throughput, "cost": Cost}
TABLES = ("size",)
COMMON = ("rule", "hold")  # keys that each rule may have
HOLD_S = 1800.0


@dataclass(frozen=True)
class Policy:
    """What was written. ``text``: as it was, for whoever reads it later.

    Attributes:
        size: the rule for the number of workers.
        hold_s: for how long it leaves a size alone that a person has asked for.
    """

    text: str
    name: str
    size: Rule | Own
    hold_s: float = HOLD_S


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
    for table in values:
        if table not in TABLES:
            raise lines.error(table, f"there is no table [{table}]{_near(table, TABLES)}")
    size = values.get("size")
    if not isinstance(size, dict) or "rule" not in size:
        raise UsageError(
            f'{source} names no rule; write [size] and below it rule = "throughput", or one of '
            f"{', '.join(RULES)}"
        )
    name = size["rule"]
    own = named(str(name))
    if name not in RULES and own is None:
        hint = f"{_near(str(name), RULES)}; or name your own, as module:function"
        raise lines.error("rule", f"there is no rule {name!r}{hint}")
    kind = Own if own is not None else RULES[name]
    known = {one.name.removesuffix("_s"): one for one in fields(kind) if one.metadata}
    given: dict[str, Any] = {} if own is None else {"module": own[0], "function": own[1]}
    for key, value in size.items():
        if key in COMMON:
            continue
        if key not in known:
            near = _near(key, [*known, *COMMON])
            raise lines.error(key, f"rule {name} has no {key!r}{near}")
        given[known[key].name] = _value(known[key], get_type_hints(kind), value, key, lines)
    hold_s = _seconds(size["hold"], "hold", lines) if "hold" in size else HOLD_S
    rule = kind(**given)
    if isinstance(rule, Cost):
        _check_cost(rule, size, lines)
    return Policy(text, name, rule, hold_s)


def check_sizes(policy: Policy, sizes: Sizes, source: str) -> None:
    """Refuse a policy that cannot reach any other size that the job may have.

    Raises:
        UsageError: there is only one size, or none within reach.
    """
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

    def error(self, key: str, sentence: str) -> UsageError:
        """``sentence``, after the line of ``key``."""
        number = next(self._numbers(key), 0)
        where = f"{self._source}, line {number}" if number else self._source
        return UsageError(f"{where}: {sentence}")

    def _numbers(self, key: str) -> Iterator[int]:
        pattern = re.compile(rf"\s*(\[+\s*)?[\"']?{re.escape(key)}[\"']?\s*[\]=.]")
        return (number for number, line in enumerate(self._lines, 1) if pattern.match(line))


def _value(one: Field[Any], types: Mapping[str, Any], value: Any, key: str, lines: _Lines) -> Any:
    if one.name == "utility":
        return _utility(value, lines)
    if one.name.endswith("_s"):
        return _seconds(value, key, lines)
    kinds = get_args(types[one.name]) or (types[one.name],)
    whole = int in kinds and float not in kinds
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        what = "a whole number" if whole else "a number"
        raise lines.error(key, f"{key} is {value!r}; it must be {what}")
    least = one.metadata.get("least")
    if least is not None and value < least:
        raise lines.error(key, f"{key} is {value}; it must be at least {least:g}")
    assert one.default is not MISSING
    return value if whole else float(value)


def _seconds(value: Any, key: str, lines: _Lines) -> float:
    found = None if isinstance(value, bool) else seconds(str(value))
    if not found:
        raise lines.error(
            key, f'{key} is {value!r}; it must be a time such as "90s", "15m" or "2h"'
        )
    return found


def _utility(value: Any, lines: _Lines) -> tuple[tuple[float, float], ...]:
    """[["1h", 10.0], ["2h", 0.0]]: what it is worth to end by then."""
    hint = 'utility is a list of times and values, like [["1h", 10], ["2h", 0]]'
    if not isinstance(value, list) or len(value) < 2:
        raise lines.error("utility", hint)
    points: list[tuple[float, float]] = []
    for pair in value:
        if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[1], (int, float)):
            raise lines.error("utility", hint)
        at_s = 0.0 if pair[0] == 0 else _seconds(pair[0], "utility", lines)
        points.append((at_s, float(pair[1])))
    if [at_s for at_s, _ in points] != sorted({at_s for at_s, _ in points}):
        raise lines.error("utility", f"{hint}; each time later than the one before")
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
        raise lines.error(key, f"{why}; add a deadline, a max_cost or a utility")
    if "utility" in aims and len(aims) > 1:
        raise lines.error("utility", f"utility and {aims[0]} contradict each other; give one")
    if not rule.price and aims != ["deadline"]:
        raise lines.error(aims[-1], f"{aims[-1]} needs the price of a worker for an hour")


def _near(word: str, known: Any) -> str:
    near = get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known)}"
