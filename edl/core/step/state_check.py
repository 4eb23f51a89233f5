"""Check whether all workers hold the same state, and find what differs and which workers are right.

Each worker makes a digest of every part of the state that must be equal on all workers, and folds
the digests into one number, which is sent with its step record. All workers then see from the same
table whether they agree. Only if they do not, they exchange the digests of the parts.

A digest of the whole state costs too much for every step. So a state is cut by bytes into as many
groups as there are steps between two comparisons, and after each step one of them is compared: the
cost is the same in each step, and every bit is compared in its turn.
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


# A save of a script copies its whole state: 40 to 50 ms for 25 million parameters with Adam. The
# digest of all of it took 104 to 116 ms there, that of such a part 2.4 ms.
PARTS_OF_SCRIPT = 50
NEVER = -2  # stands for the step after which newcomers joined, if none has joined
ALIGN_BYTES = 64  # a part is cut at multiples of this: whole elements of any type


@dataclass(frozen=True)
class StateGroup:
    """The ``index``-th of ``count`` groups of equal size into which a state is cut by bytes."""

    index: int
    count: int


WHOLE = StateGroup(0, 1)


def due(step: int, begins_epoch: bool, every: int, joined_after: int = NEVER) -> StateGroup | None:
    """Decide which part of the state after ``step`` is compared; None: nothing.

    The whole state is compared at the beginning of an epoch and after the first step of newcomers,
    and one group after each other step: among any ``every`` successive steps, each group has one.

    Args:
        step: the number of the step.
        begins_epoch: whether the next step begins an epoch.
        every: into how many groups the state is cut; 0: nothing is ever compared.
        joined_after: the step after which the newest newcomers joined.
    """
    if every == 0 or step == 0:  # before step 1 all workers have just received the state
        return None
    whole = begins_epoch or step == joined_after + 1
    return WHOLE if whole else StateGroup(step % every, every)


def due_at_save(step: int, every: int, is_first: bool) -> StateGroup | None:
    """Decide which part of the state is compared when a script saves it for the ``step``-th time.

    The whole state is compared if the save ``is_first``, and then one of :data:`PARTS_OF_SCRIPT`
    groups each time, of fewer if ``every`` is less. None if ``every`` is 0: nothing is ever
    compared.
    """
    if every == 0:
        return None
    count = min(every, PARTS_OF_SCRIPT)
    return WHOLE if is_first else StateGroup(step % count, count)


@dataclass(frozen=True)
class Extent:
    """The bytes from ``start`` to ``stop`` of the ``part``-th part of a state."""

    part: int
    start: int
    stop: int


def extents(ends: Sequence[int], group: StateGroup) -> list[Extent]:
    """Return the bytes that belong to a group; the groups of a state have no gap and no overlap.

    Args:
        ends: the sizes of the state's parts in bytes, each at least 1, added up: shape (parts,). A
            part is cut at multiples of :data:`ALIGN_BYTES` from its beginning only.
        group: the group.
    """
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
    """Return the last allowed cut at or before byte ``at`` of a part of ``size`` bytes."""
    return size if at >= size else max(0, at) // ALIGN_BYTES * ALIGN_BYTES


def fold(digests: Digests) -> int:
    """Return one number for the digests of a state: positive, below 2**63.

    It does not depend on the order of the parts.
    """
    encoded = json.dumps(sorted(digests.items())).encode()
    return int.from_bytes(hashlib.blake2b(encoded, digest_size=8).digest(), "big") % (2**63 - 1) + 1


@dataclass(frozen=True)
class Split:
    """The groups of workers whose states agree, when not all do.

    Attributes:
        groups: the ids of workers that agree with each other, the largest group first.
    """

    groups: tuple[tuple[int, ...], ...]

    @property
    def odd(self) -> tuple[int, ...]:
        """The workers that differ from the largest group; empty unless that group is a majority."""
        most, *others = self.groups
        rest = tuple(sorted(worker for group in others for worker in group))
        return rest if len(most) > len(rest) else ()

    @property
    def source(self) -> int:
        """The worker that sends its state to the odd ones."""
        return self.groups[0][0]


def split_by_digest(states: Iterable[tuple[int, int]]) -> Split | None:
    """Return the groups of workers whose states differ; None if all agree.

    Args:
        states: each worker with the digest of its state, in rank order; a digest of 0 is ignored.
    """
    groups: dict[int, list[int]] = {}
    for worker, state in states:
        if state:
            groups.setdefault(state, []).append(worker)
    if len(groups) < 2:
        return None
    return Split(tuple(tuple(g) for g in sorted(groups.values(), key=lambda g: -len(g))))


def split_of(records: StepRecords) -> Split | None:
    """Return the groups of workers whose states differ by the rows of a step; None if all agree."""
    if not records.differ_in("state"):
        return None
    return split_by_digest(zip(records.values("worker"), records.values("state"), strict=True))


def different_rate(rates: Mapping[int, Rates]) -> str:
    """Return the name of the first learning rate on which the workers disagree; empty: none.

    ``rates`` holds the learning rates of each worker. A rate that some worker lacks is ignored.
    """
    if not rates:
        return ""
    first, *others = rates.values()
    known = (name for name in first if all(name in other for other in others))
    return next((n for n in known if any(other[n] != first[n] for other in others)), "")


def first_difference(tables: Mapping[int, Digests]) -> str:
    """Return the name of the first part of the state that differs between workers.

    ``tables`` holds the digests of each worker. The order is that of the first worker's parts.
    """
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
    """Return a message that says which states differ, in what, the likely cause, and what to do.

    Args:
        found: the groups of workers whose states differ.
        step: the number of the step after which they differ.
        tables: the digests of the parts, by worker.
        rates: the learning rates, by worker.
        advice: the likely cause and what to do, as the end of the message.
        unit: what ``step`` counts, in the singular.
    """
    return f"{_difference(found, step, tables, rates, unit)}. {advice}"


def resynced(found: Split, step: int, tables: Mapping[int, Digests]) -> str:
    """Return a message that says which states differ, and that the odd workers get another state.

    It is for workers that get the state that most hold; the parameters are as in :func:`reason`.
    """
    verb = "gets" if len(found.odd) == 1 else "get"
    how = f"{names(found.odd)} {verb} the state of w{found.source}"
    return f"{_difference(found, step, tables)}; {how}. {ADVICE}"


def undecided(found: Split, step: int, tables: Mapping[int, Digests]) -> str:
    """Return a message that says which states differ, and that no majority agrees on a state.

    No worker is resynced then; the parameters are as in :func:`reason`.
    """
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
    """Return a clause that says which states differ, since which step, and in what first."""
    if found.odd:
        who = f"the state of {names(found.odd)} differs from that of {names(found.groups[0])}"
    else:
        who = f"the states of {' and '.join(names(group) for group in found.groups)} differ"
    if named := different_rate(rates):
        values = (f"{rates[group[0]][named]:.6g} on {names(group)}" for group in found.groups)
        return f"{who} after {unit} {step}: the {named} is {' and '.join(values)}"
    return f"{who} after {unit} {step}, first in {first_difference(tables)}"
