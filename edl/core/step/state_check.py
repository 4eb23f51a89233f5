"""Whether all workers hold the same state, and where it differs first.

Each worker makes a digest of every part of what all must hold alike, and folds them into one
number that rides on its step record. All then see from the same table whether they agree. Only
if they do not, they exchange the digests of the parts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from edl.core.plural import names
from edl.core.step.step_record import StepRecords

Digests = Mapping[str, int]  # of each part of a state, by its name
ADVICE = (
    "What all share may change in optimizer.step() only, or on all workers alike: look for code "
    "that runs on some of them, for a schedule of your own that edl.track does not know, and for "
    "decisions by numbers that are a worker's own (edl.mean makes them the job's). "
    "EDL_STATE_CHECK_STEPS=0 turns this check off"
)


def due(step: int, begins_epoch: bool, every: int) -> bool:
    """Whether the state is compared that follows ``step``; 0 for ``every``: never."""
    return every > 0 and step > 0 and (begins_epoch or step % every == 0)


def fold(digests: Digests) -> int:
    """One number for a whole state: positive, below 2**63, whatever the order of its parts."""
    encoded = json.dumps(sorted(digests.items())).encode()
    return int.from_bytes(hashlib.blake2b(encoded, digest_size=8).digest(), "big") % (2**63 - 1) + 1


@dataclass(frozen=True)
class Split:
    """Workers whose states differ: the ``odd`` ones from what most hold, if most agree."""

    groups: tuple[tuple[int, ...], ...]  # workers that agree with each other, the largest first

    @property
    def odd(self) -> tuple[int, ...]:
        most, *others = self.groups
        rest = tuple(sorted(worker for group in others for worker in group))
        return rest if len(most) > len(rest) else ()


def split(states: Iterable[tuple[int, int]]) -> Split | None:
    """Who differs from whom, by (worker, digest) in rank order; None: nobody. 0 says nothing."""
    groups: dict[int, list[int]] = {}
    for worker, state in states:
        if state:
            groups.setdefault(state, []).append(worker)
    if len(groups) < 2:
        return None
    return Split(tuple(tuple(g) for g in sorted(groups.values(), key=lambda g: -len(g))))


def split_of(records: StepRecords) -> Split | None:
    """The same by the rows of a step."""
    if not records.differ_in("state"):
        return None
    return split(zip(records.values("worker"), records.values("state"), strict=True))


def first_difference(tables: Mapping[int, Digests]) -> str:
    """The first part in which not all workers agree, in the order of the first worker's parts."""
    first, *others = tables.values()
    for name in first:
        if any(other.get(name) != first[name] for other in others):
            return name
    return next((name for other in others for name in other if name not in first), "its parts")


def reason(found: Split, step: int, tables: Mapping[int, Digests]) -> str:
    """What differs, on whom, since when, what causes such, and what to do: for people."""
    if found.odd:
        who = f"the state of {names(found.odd)} differs from that of {names(found.groups[0])}"
    else:
        who = f"the states of {' and '.join(names(group) for group in found.groups)} differ"
    return f"{who} after step {step}, first in {first_difference(tables)}. {ADVICE}"
