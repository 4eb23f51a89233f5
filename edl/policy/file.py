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

import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any

from edl.errors import UsageError
from edl.policy.goodput import Goodput
from edl.policy.hill_climbing import Cost, Throughput, Votes
from edl.policy.observation import (
    Lines,
    Rule,
    SizeMeasurement,
    Suggestion,
    is_number,
    made,
    near,
    time_of,
)
from edl.policy.step_time import StepTime, StepTimeSample
from edl.policy.stragglers import Stragglers
from edl.schedules import (
    RULES as SCALING_RULES,
)
from edl.schedules import (
    Constant,
    Cosine,
    Knee,
    Linear,
    OneCycle,
    Scaling,
    Schedule,
    Step,
)
from edl.spec import Sizes, setting
from edl.step.batching import NAMES, Batching, batching

# ------------------------------------------------------------
# Name a custom size rule as `module:function`, and check what the function returns.
#
# A custom size rule is a function of the user that chooses a job's number of workers. `CustomRule`
# describes it, and `suggestion` checks its answers; nothing here calls it.

_NAME = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_]\w*)")


@dataclass(frozen=True)
class CustomRule:
    """A size rule that the user has written: a function of a module, called as a `Rule` is."""

    module: str = ""
    function: str = ""
    every_steps: int = setting(10, "steps between two questions", least=1)
    deadline_s: float = setting(10.0, "for an answer; then the policy is off")

    def __str__(self) -> str:
        return f"{self.module}:{self.function}"


def module_and_function(text: str) -> tuple[str, str] | None:
    match = _NAME.fullmatch(text)
    return None if match is None else (match[1], match[2])


def suggestion(answer: Any, rule: CustomRule) -> Suggestion:
    if not isinstance(answer, tuple) or len(answer) != 3:
        raise UsageError(
            f"{rule} returned {answer!r}; it must return (size, reason, state): a whole number, a "
            "sentence, and a dict that it is given the next time"
        )
    np, reason, state = answer
    if isinstance(np, bool) or not isinstance(np, int) or np < 1:
        raise UsageError(f"{rule} returned the size {np!r}; it must be a whole number above 0")
    if not isinstance(reason, str):
        raise UsageError(f"{rule} returned the reason {reason!r}; it must be a sentence")
    try:
        same = json.loads(json.dumps(state))
    except (TypeError, ValueError) as error:
        raise UsageError(f"{rule} returned a state that is no JSON: {error}") from None
    if not isinstance(same, dict):
        raise UsageError(f"{rule} returned the state {state!r}; it must be a dict")
    return Suggestion(np, reason, same)


# ------------------------------------------------------------
# Read the table [learning_rate] of a policy: a schedule by samples, and a scaling by batch.

TABLE = "learning_rate"
SCHEDULES: Mapping[str, type[Schedule]] = {
    "constant": Constant,
    "step": Step,
    "linear": Linear,
    "cosine": Cosine,
    "one-cycle": OneCycle,
    "knee": Knee,
}
OF_SCALING = ("scaling", "batch", "ramp")


@dataclass(frozen=True)
class LearningRate:
    schedule: Schedule | None  # by trained samples; None: the rate of the script is the base
    scaling: Scaling | None  # by the global batch


def learning_rate(given: Mapping[str, Any], lines: Lines) -> LearningRate:
    if "schedule" not in given and "scaling" not in given:
        raise lines.error(
            "",
            TABLE,
            'table [learning_rate] needs a schedule, like schedule = "knee", or a scaling, like '
            'scaling = "linear"',
        )
    return LearningRate(_schedule(given, lines), _scaling(given, lines))


def _schedule(given: Mapping[str, Any], lines: Lines) -> Schedule | None:
    own = {key: value for key, value in given.items() if key not in OF_SCALING}
    if "schedule" not in own:
        for key in own:
            raise lines.error(TABLE, key, f"{key} is part of a schedule; name that, too")
        return None
    name = own.pop("schedule")
    if not isinstance(name, str) or name not in SCHEDULES:
        what = f"there is no schedule {name!r}{near(str(name), SCHEDULES)}"
        raise lines.error(TABLE, "schedule", what)
    kind = SCHEDULES[name]
    known = {one.name: one for one in fields(kind)}
    for key, value in own.items():
        if key not in known:
            raise lines.error(TABLE, key, f"schedule {name} has no {key!r}{near(key, known)}")
        numbers = value if key == "milestones" and isinstance(value, list) else [value]
        if not all(map(is_number, numbers)) or (key == "milestones") != isinstance(value, list):
            what = "numbers of samples, like [1000, 2000]" if key == "milestones" else "a number"
            raise lines.error(TABLE, key, f"{key} is {value!r}; it must be {what}")
    for key, one in known.items():
        if one.default is MISSING and key not in own:
            raise lines.error(TABLE, "schedule", f"schedule {name} needs {key}")
    found: Schedule = _made(kind, own, "schedule", lines)
    return found


def _scaling(given: Mapping[str, Any], lines: Lines) -> Scaling | None:
    own = {key: given[key] for key in OF_SCALING if key in given}
    if "scaling" not in own:
        for key in own:
            raise lines.error(TABLE, key, f"{key} is part of a scaling; name that, too")
        return None
    rule = own.pop("scaling")
    if not isinstance(rule, str) or rule not in SCALING_RULES:
        what = f"there is no scaling {rule!r}{near(str(rule), SCALING_RULES)}"
        raise lines.error(TABLE, "scaling", what)
    for key, value in own.items():
        if not is_number(value) or (key == "ramp" and not isinstance(value, int)):
            what = "a whole number of updates" if key == "ramp" else "a number of samples"
            raise lines.error(TABLE, key, f"{key} is {value!r}; it must be {what}")
    if "batch" not in own:
        what = "scaling needs batch, the global batch for which the learning rate was chosen"
        raise lines.error(TABLE, "scaling", what)
    found: Scaling = _made(Scaling, {"rule": rule, **own}, "scaling", lines)
    return found


def _made(kind: type[Any], values: Mapping[str, Any], key: str, lines: Lines) -> Any:
    try:
        return kind(**values)
    except UsageError as error:
        raise lines.error(TABLE, key, str(error).partition(": ")[2]) from None


# ------------------------------------------------------------
# Predict the throughput of a job with other numbers of workers: the step-time model, multiplied by
# the ratio of measured to modelled throughput at the nearest measured size. So for a measured size
# and its batch the result is the measurement.

ENOUGH_STEPS = 10  # for a measurement to count more than the model


@dataclass(frozen=True)
class ScalingModel:
    """A model of a job's throughput, by the step time and by measured throughputs."""

    step_time: StepTime
    batch: float  # samples of one worker in a step
    slots: Sequence[int] = ()  # of the hosts, in the order in which they are filled; empty: one
    seen: Mapping[int, SizeMeasurement] = field(default_factory=dict)  # by number of workers

    def throughput(self, np: int) -> float:
        return self.with_batches(np, [self.batch])[0]

    def with_batches(self, np: int, batches: Sequence[float]) -> Sequence[float]:
        modelled = self.step_time.throughputs(np, self._hosts(np), batches)
        known = [n for n, one in self.seen.items() if one.steps >= ENOUGH_STEPS]
        nearest = min(known, key=lambda n: abs(n - np), default=None)
        if nearest is None:
            return modelled
        seen = self.seen[nearest]
        batch = seen.batch or self.batch
        (there,) = self.step_time.throughputs(nearest, self._hosts(nearest), [batch])
        return [rate * seen.samples_per_s / there for rate in modelled]

    def _hosts(self, np: int) -> int:
        """Return the number of hosts that `np` workers occupy, filling hosts in order."""
        room = 0
        for count, slots in enumerate(self.slots, 1):
            room += slots
            if room >= np:
                return count
        return max(1, len(self.slots))


def step_time_samples(seen: Iterable[tuple[int, SizeMeasurement]]) -> list[StepTimeSample]:
    """Return the step times that follow from measured throughputs, for fitting a model."""
    return [
        StepTimeSample(np, one.hosts, one.batch, np * one.batch / one.samples_per_s)
        for np, one in seen
        if one.batch > 0 and one.samples_per_s > 0
    ]


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
    text: str
    size: Rule | CustomRule | None = None  # None: only people change the number of workers
    hold_s: float = HOLD_S  # so long the rule does not change a number that a person asked for
    stragglers: Stragglers | None = None
    data_wait: float | None = None  # the job does not grow above this part of a step (0 to 1]
    batch: Batching | None = None  # with `batch_size` 0: the script's own size for one worker
    learning_rate: LearningRate | None = None

    @property
    def needs_noise(self) -> bool:
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
        given = tables["size"]
        policy = replace(policy, size=_size(given, source, lines))
        if "hold" in given:
            policy = replace(policy, hold_s=time_of(given["hold"], "size", "hold", lines))
        if (part := given.get("data_wait")) is not None:
            if not isinstance(part, (int, float)) or isinstance(part, bool) or not 0 < part <= 1:
                what = "it must be a part, above 0 and up to 1"
                raise lines.error("size", "data_wait", f"data_wait is {part!r}; {what}")
            policy = replace(policy, data_wait=float(part))
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


def _batch(given: Mapping[str, Any], lines: Lines) -> Batching:
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


def _check_cost(rule: Cost, given: Mapping[str, Any], lines: Lines) -> None:
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
