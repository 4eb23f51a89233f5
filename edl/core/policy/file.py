"""Read a policy file with :func:`parse_policy`, which returns a :class:`PolicyFile`.

The file is TOML. Its tables are [size] (the number of workers), [batch], [learning_rate] and
[stragglers] (slow workers). Each table is optional, but a file without any is refused.

Example::

    [size]
    rule = "throughput"
    threshold = 0.1

An error in the file is raised as a ``UsageError`` with one sentence, which names the line of the
key at fault if there is one.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from edl.core.policy.cost import Cost
from edl.core.policy.custom_rule import CustomRule, module_and_function
from edl.core.policy.goodput import Goodput
from edl.core.policy.learning_rate import LearningRate, learning_rate
from edl.core.policy.observation import Rule
from edl.core.policy.reading import Lines, made, near, time_of
from edl.core.policy.stragglers import Stragglers
from edl.core.policy.throughput import Throughput
from edl.core.policy.votes import Votes
from edl.core.sizes import Sizes
from edl.errors import UsageError
from edl.step.batching import NAMES, Batching, batching

RULES: Mapping[str, type[Any]] = {
    "throughput": Throughput,
    "cost": Cost,
    "goodput": Goodput,
    "votes": Votes,
}
TABLES = ("size", "batch", "learning_rate", "stragglers")
COMMON = ("rule", "hold", "data_wait")  # keys that each rule may have
HOLD_S = 1800.0


@dataclass(frozen=True)
class PolicyFile:
    """A parsed policy file, as `parse_policy` returns it."""

    text: str
    size: Rule | CustomRule | None = None  # None: only people change the number of workers
    hold_s: float = HOLD_S  # so long the rule does not change a number that a person asked for
    stragglers: Stragglers | None = None
    data_wait: float | None = None  # the job does not grow above this part of a step (0 to 1]
    batch: Batching | None = None  # with `batch_size` 0: the script's own size for one worker
    learning_rate: LearningRate | None = None

    @property
    def needs_noise(self) -> bool:
        """Whether the size rule is `goodput`, which needs a measured gradient noise scale."""
        return isinstance(self.size, Goodput)

    @property
    def of_script(self) -> tuple[Batching | None, LearningRate | None]:
        """The tables that a script reads only when it starts."""
        return self.batch, self.learning_rate

    @property
    def needs_times(self) -> str:
        """What of this policy needs the workers' step times: "[stragglers] and data_wait", say."""
        needing = {"[stragglers]": self.stragglers, "data_wait": self.data_wait}
        return " and ".join(name for name, value in needing.items() if value is not None)


def parse_policy(text: str, source: str) -> PolicyFile:
    """Parse a policy file and return its rules and settings."""
    lines = Lines(text, source)
    tables = _tables(text, source, lines)
    policy = PolicyFile(text)
    if "size" in tables:
        policy = _with_size(policy, tables["size"], source, lines)
    if "stragglers" in tables:
        given = tables["stragglers"]
        rule = made(Stragglers, given, "stragglers", "table stragglers", (), lines)
        policy = replace(policy, stragglers=rule)
    if "batch" in tables:
        policy = replace(policy, batch=_batch(tables["batch"], lines))
    if "learning_rate" in tables:
        policy = replace(policy, learning_rate=learning_rate(tables["learning_rate"], lines))
    return policy


def _tables(text: str, source: str, lines: Lines) -> dict[str, dict[str, Any]]:
    """Return the tables of a policy file by name, each with its keys and values as written."""
    try:
        tables = tomllib.loads(text)
    except ValueError as error:  # or Python's own, of an integer with thousands of digits
        raise UsageError(f"{source} is not TOML: {error}") from None
    for name, table in tables.items():
        if name not in TABLES:
            raise lines.error("", name, f"there is no table [{name}]{near(name, TABLES)}")
        if not isinstance(table, dict):
            raise lines.error("", name, f"{name} is a table: write [{name}] above its keys")
    if not tables:
        others = " or ".join(f"[{name}]" for name in TABLES[1:])
        raise UsageError(f"{source} says nothing; {RULE_NEEDED}, or {others}")
    return tables


def _with_size(
    policy: PolicyFile, given: Mapping[str, Any], source: str, lines: Lines
) -> PolicyFile:
    """Return `policy` with what the table [size] sets: the rule, `hold` and `data_wait`."""
    policy = replace(policy, size=_size(given, source, lines))
    if "hold" in given:
        policy = replace(policy, hold_s=time_of(given["hold"], "size", "hold", lines))
    if "data_wait" in given:
        policy = replace(policy, data_wait=_part(given["data_wait"], "data_wait", lines))
    return policy


def _batch(given: Mapping[str, Any], lines: Lines) -> Batching:
    """Return the batching that the table [batch] asks for."""
    for key in given:
        if key not in NAMES:
            raise lines.error("batch", key, f"table [batch] has no {key!r}{near(key, NAMES)}")
    if not given:
        raise lines.error("", "batch", f"table [batch] is empty; it may have {', '.join(NAMES)}")
    try:
        found = batching("[batch]", **given)
        if "batch_size" in given or "global_batch" in given:
            return found
        return replace(found, batch_size=0)  # the script chooses it
    except UsageError as error:
        raise lines.error("batch", [*given][-1], str(error)) from None


def _size(given: Mapping[str, Any], source: str, lines: Lines) -> Rule | CustomRule:
    """Return the object of the rule that the table [size] names, with its settings."""
    if "rule" not in given:
        raise UsageError(f"{source} names no rule; {RULE_NEEDED}")
    name = str(given["rule"])
    own = module_and_function(name)
    if name not in RULES and own is None:
        hint = f"{near(name, RULES)}; or name your own, as module:function"
        raise lines.error("size", "rule", f"there is no rule {given['rule']!r}{hint}")
    kind = CustomRule if own is not None else RULES[name]
    rule = made(kind, given, "size", f"rule {name}", COMMON, lines)
    if own is not None:
        rule = replace(rule, module=own[0], function=own[1])
    if isinstance(rule, Cost):
        _check_cost(rule, given, lines)
    found: Rule | CustomRule = rule
    return found


RULE_NEEDED = f'write [size] and below it rule = "throughput", or one of {", ".join(RULES)}'


def check_sizes(policy: PolicyFile, sizes: Sizes, source: str) -> None:
    """Raise an error if `policy` has a size rule but the job may have only one size."""
    if policy.size is None:
        return
    least = sizes.above(sizes.min_np)
    if sizes.max_np is not None and least is not None and sizes.above(least + 1) is None:
        raise UsageError(
            f"{source} is to find the job's size, and the job may have {sizes} only; start it with "
            "other --min-np, --max-np or --sizes"
        )


def check_change(before: PolicyFile, after: PolicyFile, source: str) -> None:
    """Raise an error if a running job cannot change from the policy `before` to `after`."""
    if before.of_script != after.of_script:
        raise UsageError(
            f"{source} has other [batch] or [learning_rate] than the job began with, and a running "
            "job keeps these: write them as they were, or start the job anew (it goes on from its "
            "checkpoint)"
        )


def _part(value: Any, key: str, lines: Lines) -> float:
    """Return the `value` of `key` in the table [size], a fraction above 0 and up to 1."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
        what = "it must be a part, above 0 and up to 1"
        raise lines.error("size", key, f"{key} is {value!r}; {what}")
    return float(value)


def _check_cost(rule: Cost, given: Mapping[str, Any], lines: Lines) -> None:
    """Raise an error if settings of rule `cost` are missing or exclude each other."""
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
