"""What a change of a job's slots costs: for how many seconds nobody of it trains.

Published simulators charge one constant, for the first start, too (Pollux: 30 s, a stop and a
restart from a checkpoint). With edl the kinds of change differ by two orders of magnitude.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import StrEnum

from edl.core.cluster.state import Placement
from edl.errors import UsageError


class Change(StrEnum):
    """What became of a job's slots."""

    START = "start"  # the first it ever had
    RESTART = "restart"  # from a checkpoint: it had none just before
    JOIN = "join"  # those it had, and more
    LEAVE = "leave"  # some of those it had
    MIGRATE = "migrate"  # some others
    PREEMPT = "preempt"  # none any more, by a decision
    FAILURE = "failure"  # none any more: a node of it failed


@dataclass(frozen=True)
class ResizeCost:
    """Seconds by kind of change; slots that are taken away altogether cost nothing then."""

    start: float = 30.0
    restart: float = 30.0
    join: float = 30.0
    leave: float = 30.0
    migrate: float = 30.0

    def of(self, change: Change) -> float:
        """Seconds without training."""
        if change in (Change.PREEMPT, Change.FAILURE):
            return 0.0
        seconds: float = getattr(self, change.value)
        return seconds

    @property
    def resize_s(self) -> float:
        """What a policy counts with that weighs a change of size: a join or a leave, the mean."""
        return (self.join + self.leave) / 2


def constant(seconds: float) -> ResizeCost:
    """The same for all kinds."""
    return ResizeCost(seconds, seconds, seconds, seconds, seconds)


def parse(text: str) -> ResizeCost:
    """The costs in "30", or in "start=20,restart=25,join=0.3": what is not named costs 30 s.

    Raises:
        UsageError: it is neither, or a time is negative.
    """
    parts = [part.partition("=") for part in text.split(",")]
    names = [one.name for one in fields(ResizeCost)]
    try:
        if len(parts) == 1 and not parts[0][1]:
            cost = constant(float(text))
        else:
            given = {name.strip(): float(value) for name, _, value in parts}
            if not given.keys() <= set(names):
                raise ValueError
            cost = replace(ResizeCost(), **given)
    except ValueError:
        raise UsageError(
            f"{text!r} is no cost of a resize; write seconds, like 30, or some of "
            f"{', '.join(f'{name}=SECONDS' for name in names)}"
        ) from None
    if not all(0 <= getattr(cost, name) < float("inf") for name in names):
        raise UsageError(f"{text!r} has a time that is negative or endless; write 0 or more")
    return cost


def change_of(before: Placement, after: Placement, trained: bool) -> Change:
    """What a new placement is.

    Args:
        trained: the job had slots at some time.
    """
    if not after:
        return Change.PREEMPT
    if not before:
        return Change.RESTART if trained else Change.START
    had, has = _by_node(before), _by_node(after)
    if all(has.get(node, 0) >= count for node, count in had.items()):
        return Change.JOIN
    if all(had.get(node, 0) >= count for node, count in has.items()):
        return Change.LEAVE
    return Change.MIGRATE


def _by_node(placement: Placement) -> dict[str, int]:
    slots: dict[str, int] = {}
    for node, count in placement:
        slots[node] = slots.get(node, 0) + count
    return slots
