"""Check whether all workers hold the same state, and find what differs and which workers are right.

Each worker makes a digest of every part (tensor or value) of the state that must be equal on all
workers, and folds the digests into one number (:func:`fold`), which is sent with its step record.
All workers then see from the same table whether they agree (:func:`split_of`). Only if they do not,
they exchange the digests of the parts, from which :func:`reason` makes the message. The largest
group of workers that agree counts as right if it is a majority (:class:`Split`).

A digest of the whole state costs too much for every step. So a state is cut by bytes into as many
groups as there are steps between two comparisons, and after each step one of them is compared
(:func:`due`): the cost is the same in each step, and every byte is compared once in so many steps.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from edl.core.plural import names
from edl.core.step.step_record import StepRecords

Digests = Mapping[str, int]  # the digest of each part of a state, by the part's name
Rates = Mapping[str, float]  # learning rates, by name: "learning rate"
NO_RATES: Mapping[int, Rates] = {}
SCRIPT_ADVICE = (
    "What all share may change by the averaged gradients only, or on all workers alike: look for "
    "code that runs on some of them, and for rates that each computes by its own numbers. "
    "EDL_STATE_CHECK_STEPS=0 turns this check off"
)
ADVICE = (
    "What all share may change in optimizer.step() only, or on all workers alike: look for code "
    "that runs on some of them, for a schedule of your own that edl.track does not know, and for "
    "decisions by numbers that are a worker's own (edl.mean makes them the job's). "
    "EDL_STATE_CHECK_STEPS=0 turns this check off"
)
STEP_VALUE = "value that scheduler.step() got"  # stands among the rates of a worker, after them
VALUE_ADVICE = (
    "Each worker has computed that value by itself, from data of its own or with averages of "
    "BatchNorm of its own (edl's loaders make these the job's at an epoch's end): call "
    "scheduler.step(edl.mean(value)) on all workers"
)


# A save of a script copies its whole state: 40 to 50 ms for 25 million parameters with Adam. The
# digest of all of it took 104 to 116 ms there, that of such a part 2.4 ms.
PARTS_OF_SCRIPT = 50
NEVER = -2  # stands for the step after which newcomers joined, if none has joined
ALIGN_BYTES = 64  # a part is cut at multiples of this: whole elements of any type


@dataclass(frozen=True)
class StateGroup:
    """A group of bytes of a state: the `index`-th of `count` groups of equal size, from 0 on."""

    index: int
    count: int


WHOLE = StateGroup(0, 1)


def due(step: int, begins_epoch: bool, every: int, joined_after: int = NEVER) -> StateGroup | None:
    """Return the group of the state's bytes to compare after step `step`; None: nothing."""
    if every == 0 or step == 0:  # before step 1 all workers have just received the state
        return None
    whole = begins_epoch or step == joined_after + 1
    return WHOLE if whole else StateGroup(step % every, every)


def coarser(group: StateGroup, most: int | None) -> StateGroup | None:
    """Return the group in place of `group` if a state may have `most` only; None: it is no turn."""
    if most is None or group.count <= most:
        return group
    index, rest = divmod(group.index, group.count // most)
    return StateGroup(index, most) if rest == 0 and index < most else None


def due_at_save(step: int, every: int, is_first: bool) -> StateGroup | None:
    """Return the group of the state's bytes to compare when a script saves its state."""
    if every == 0:
        return None
    count = min(every, PARTS_OF_SCRIPT)
    return WHOLE if is_first else StateGroup(step % count, count)


@dataclass(frozen=True)
class Extent:
    """The bytes from `start` to `stop - 1` of one part (tensor or value) of a state."""

    part: int  # its index in the state
    start: int  # counted from the beginning of the part
    stop: int


def extents(ends: Sequence[int], group: StateGroup) -> list[Extent]:
    """Return the bytes that belong to `group`, one extent for each part that has some, in order."""
    # `ends`: where each part ends, in bytes, when all are laid end to end.
    total = ends[-1] if ends else 0
    begin = total * group.index // group.count
    end = total * (group.index + 1) // group.count
    found = []
    for part in range(bisect_right(ends, begin), min(len(ends), bisect_left(ends, end) + 1)):
        first = ends[part - 1] if part else 0
        start, stop = (_cut(bound - first, ends[part] - first) for bound in (begin, end))
        if start < stop:
            found.append(Extent(part, start, stop))
    return found


def _cut(at: int, size: int) -> int:
    """Return where a part of `size` bytes is cut: at byte `at`, or a little before."""
    return size if at >= size else max(0, at) // ALIGN_BYTES * ALIGN_BYTES


def fold(digests: Digests) -> int:
    """Return one number for the digests of a state's parts, from 1 to 2**63 - 1."""
    encoded = json.dumps(sorted(digests.items())).encode()
    # Never 0, which stands for a state that was not compared.
    return int.from_bytes(hashlib.blake2b(encoded, digest_size=8).digest(), "big") % (2**63 - 1) + 1


@dataclass(frozen=True)
class Split:
    """The groups of workers whose states agree, when not all do; `split_of` returns it."""

    groups: tuple[tuple[int, ...], ...]  # two or more, in rank order, the largest first

    @property
    def odd(self) -> tuple[int, ...]:
        """The workers outside the largest group, ascending; empty if that is no majority."""
        most, *others = self.groups
        rest = tuple(sorted(worker for group in others for worker in group))
        return rest if len(most) > len(rest) else ()

    @property
    def source(self) -> int:
        """The id of the worker that sends its state to the odd ones: the largest group's first."""
        return self.groups[0][0]


def split_by_digest(states: Iterable[tuple[int, int]]) -> Split | None:
    """Return the groups of workers whose states agree; None if all workers agree."""
    groups: dict[int, list[int]] = {}
    for worker, state in states:
        if state:  # 0: it was not compared
            groups.setdefault(state, []).append(worker)
    if len(groups) < 2:
        return None
    return Split(tuple(tuple(g) for g in sorted(groups.values(), key=lambda g: -len(g))))


def split_of(records: StepRecords) -> Split | None:
    """Return the groups of workers whose states agree, by the step records; None if all agree."""
    if not records.differ_in("state"):
        return None
    return split_by_digest(zip(records.values("worker"), records.values("state"), strict=True))


def different_rate(rates: Mapping[int, Rates], is_value: bool = False) -> str:
    """Return the first name, in the order of the first worker, on whose value workers disagree."""
    if not rates:
        return ""
    first, *others = rates.values()
    known = (name for name in first if all(name in other for other in others))
    asked = (name for name in known if name.startswith(STEP_VALUE) == is_value)
    return next((n for n in asked if any(other[n] != first[n] for other in others)), "")


def different_rates(rates: Mapping[int, Rates], groups: Sequence[Sequence[int]]) -> tuple[str, str]:
    """Return a clause about the first rate on which groups of workers differ, and what to do."""
    if not (rate := different_rate(rates)):
        return "", ""

    def each(name: str, digits: int) -> str:
        return " and ".join(f"{rates[g[0]][name]:.{digits}g} on {names(g)}" for g in groups)

    clause = f"the {rate} is {each(rate, 6)}"
    if value := different_rate(rates, is_value=True):
        return f"{clause}; the {value} is {each(value, 9)}", VALUE_ADVICE
    return clause, ""


def first_difference(tables: Mapping[int, Digests]) -> str:
    """Return the name of the first part (tensor or value) of the state on which workers differ."""
    first, *others = tables.values()
    for name in first:
        if any(other.get(name) != first[name] for other in others):
            return name
    return next((name for other in others for name in other if name not in first), "its parts")


def reason(
    found: Split,
    step: int,
    tables: Mapping[int, Digests],
    rates: Mapping[int, Rates] = NO_RATES,
    advice: str = ADVICE,
    unit: str = "step",
) -> str:
    """Return a message that says which states differ, in what, the likely cause, and what to do."""
    _, cure = different_rates(rates, found.groups)
    return f"{_difference(found, step, tables, rates, unit)}. {cure or advice}"


def resynced(found: Split, step: int, tables: Mapping[int, Digests]) -> str:
    """Return a message that says which states differ, and whose state the odd workers get."""
    verb = "gets" if len(found.odd) == 1 else "get"
    how = f"{names(found.odd)} {verb} the state of w{found.source}"
    return f"{_difference(found, step, tables)}; {how}. {ADVICE}"


def undecided(found: Split, step: int, tables: Mapping[int, Digests]) -> str:
    """Return a message that says which states differ, and that no majority agrees on a state."""
    return (
        f"{_difference(found, step, tables)}; no majority agrees, so nobody is resynced. {ADVICE}"
    )


def _difference(
    found: Split,
    step: int,
    tables: Mapping[int, Digests],
    rates: Mapping[int, Rates] = NO_RATES,
    unit: str = "step",
) -> str:
    """Return the clause that says which states differ, after which step, and in what first."""
    if found.odd:
        who = f"the state of {names(found.odd)} differs from that of {names(found.groups[0])}"
    else:
        who = f"the states of {' and '.join(names(group) for group in found.groups)} differ"
    if clause := different_rates(rates, found.groups)[0]:
        return f"{who} after {unit} {step}: {clause}"
    return f"{who} after {unit} {step}, first in {first_difference(tables)}"
