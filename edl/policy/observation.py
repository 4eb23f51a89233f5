"""Define the arguments and results of a size rule, the same for live and simulated jobs.

A :class:`Rule` is called with an :class:`Observation` and returns a :class:`Suggestion`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from difflib import get_close_matches
from typing import Any, NamedTuple, Protocol, get_args, get_type_hints

from edl.errors import UsageError
from edl.record import Record
from edl.spec import Sizes
from edl.step.batching import Batching
from edl.step.noise import UNKNOWN, NoiseScale
from edl.text import seconds

KEPT_STEPS = 200  # that a throughput is the mean of: a job may become slower, or faster
AGED_S = 600.0  # a measurement that is so much older than the next one of its size is dropped
CHANGE_S = 1.0  # what a change costs until one was measured
ALIKE = 1.25  # batches that differ by less are the same
State = Mapping[str, Any]
"""The state that a rule keeps between decisions, as JSON: another leader may make the next one."""


@dataclass(frozen=True)
class SizeMeasurement(Record):
    """The throughput that was measured with one number of workers."""

    samples_per_s: float  # of all workers together
    steps: int  # in which it was measured
    batch: float = 0.0  # samples of one worker in a step, on average; 0: unknown
    hosts: int = 1
    at_s: float = 0.0  # when it was measured last, since training began

    def and_then(self, more: SizeMeasurement) -> SizeMeasurement:
        """Return this measurement combined with `more`, a newer one of the same size."""
        if more.at_s - self.at_s > AGED_S:
            return more
        before = min(self.steps, KEPT_STEPS)
        both = before + more.steps
        rate = (self.samples_per_s * before + more.samples_per_s * more.steps) / both
        batch = (self.batch * before + more.batch * more.steps) / both
        return SizeMeasurement(rate, self.steps + more.steps, batch, more.hosts, more.at_s)


def alike(batch: float, other: float) -> bool:
    """Return whether two batches have about the same size; an unknown one (0) matches any."""
    # The last batch of an epoch is smaller than the others.
    least, most = sorted((batch, other))
    return most <= ALIKE * least or least <= 0


class ThroughputModel(Protocol):
    """A model of the throughput that a job would have with other numbers of workers."""

    def throughput(self, np: int) -> float:
        """Return the predicted throughput of `np` workers together, in samples a second."""

    def with_batches(self, np: int, batches: Sequence[float]) -> Sequence[float]:
        """Return the predicted throughput of `np` workers, for each of `batches` in order."""


@dataclass(frozen=True)
class Observation:
    """The facts about a job at one time that its size rule decides from."""

    np: int  # the number of workers that train
    sizes: Sizes  # the numbers of workers that the job may have
    slots: int | None = None  # for how many workers there is room, with these; None: any number
    steps: int = 0  # complete ones with this number of workers, without the first after a change
    seen: Mapping[int, SizeMeasurement] = field(default_factory=dict)  # by number of workers
    awaits: bool = False  # a change of the workers was asked for and is not complete yet
    elapsed_s: float = 0.0  # since training began, in which the job had workers, also if it paused
    worker_s: float = 0.0  # the sum over all workers of their time in the job, which is paid for
    left: float | None = None  # samples still to train until the end; None: unknown
    # By rank: how many workers more (below 0: fewer) a script asks for; empty: not known yet.
    size_changes: Sequence[int] = ()
    data_part: float = 0.0  # the fraction of a step that workers wait for data, on average
    model: ThroughputModel | None = None  # None: none was fitted
    batch: float = 0.0  # samples of one worker in a step, on average; 0: unknown
    batching: Batching | None = None  # of edl's loader; None: unknown
    step_batches: int = 1  # batches whose gradients a worker adds up for one step
    noise: NoiseScale = UNKNOWN  # the gradient noise scale
    change_s: float = CHANGE_S  # so long training stands still when the size changes
    # The different batches that were measured, as `batch`, in ascending order.
    batches_seen: Sequence[float] = ()

    @property
    def most(self) -> int:
        """The largest allowed size for which the hosts have room; at least the present size."""
        limits = [n for n in (self.sizes.max_np, self.slots) if n is not None]
        top = self.sizes.below(min(limits)) if limits else None
        return max(self.np, top or 0) if limits else UNLIMITED

    @property
    def least(self) -> int:
        """The smallest size that the job may have; `min_np` if no size is allowed at all."""
        return self.sizes.above(self.sizes.min_np) or self.sizes.min_np

    def steps_since(self, np: int, steps: int) -> int:
        """Return the steps with the present `np` since an earlier observation of `np`, `steps`."""
        # More steps than now: the job had another number of workers in between.
        goes_on = np == self.np and steps <= self.steps
        return self.steps - steps if goes_on else self.steps


UNLIMITED = 1 << 30


class Suggestion(NamedTuple):
    """The answer of a size rule."""

    np: int  # the number of workers that the rule wants
    reason: str  # a clause for people
    state: State  # with which the rule is called the next time


class Rule(Protocol):
    """A size rule with its settings; the protocol of every rule that a policy can name."""

    def __call__(self, now: Observation, state: State, now_s: float) -> Suggestion:
        """Return the number of workers that the job should have, why, and the rule's new state.

        The state is empty at the first call. The time since training began, `now_s`, goes on under
        a new leader. The number need not be allowed: `decide_size` limits it.
        """


# ------------------------------------------------------------
# Turn the tables of a policy file into objects, and refuse what is wrong with its line number.
#
# `made` builds the object of a table; `Lines` finds the line that a message names.


class Lines:
    def __init__(self, text: str, source: str) -> None:
        self._source = source
        self._lines = text.splitlines()

    def error(self, table: str, key: str, sentence: str) -> UsageError:
        found = [number for within, number in self._numbers(key) if within in (table, "")]
        where = f"{self._source}, line {found[0]}" if found else self._source
        return UsageError(f"{where}: {sentence}")

    def _numbers(self, key: str) -> Iterator[tuple[str, int]]:
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
    kinds = isinstance(value, (int, float)) and not isinstance(value, bool)
    return kinds and abs(value) <= sys.float_info.max


def near(word: str, known: Iterable[str]) -> str:
    names = list(known)
    found = get_close_matches(word, names, n=1, cutoff=0.5)
    return f"; did you mean {found[0]}?" if found else f"; there are {', '.join(names)}"
