"""Define what a change of a job's slots costs, and draw when nodes fail, by seed."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum

from edl.cluster.state import Node, Placement
from edl.errors import UsageError

# Published simulators charge one constant, also for the first start (Pollux: 30 s, for a stop and a
# restart from a checkpoint). With edl the costs of the kinds differ by two orders of magnitude.


class SlotChange(StrEnum):
    """The kind of a change of a job's slots."""

    START = "start"  # the job gets its first slots
    RESTART = "restart"  # it gets slots after it had none, and starts from a checkpoint
    JOIN = "join"  # it keeps its slots and gets more
    LEAVE = "leave"  # it keeps only some of its slots
    MIGRATE = "migrate"  # any other change
    PREEMPT = "preempt"  # a decision takes all its slots
    FAILURE = "failure"  # one of its nodes fails, and it loses all slots


@dataclass(frozen=True)
class ResizeCost:
    """The cost of each kind of change of a job's slots, in seconds without training."""

    start: float = 30.0  # when the job gets its first slots
    restart: float = 30.0  # when it gets slots after it had lost all
    join: float = 30.0  # when it gets further slots, or has its slots in another order
    leave: float = 30.0  # when it keeps only some of its slots
    migrate: float = 30.0  # any other change
    # until the new workers of a join or migration are there; meanwhile the job trains with the
    # slots that it had, and then it pays for the change
    prepare: float = 0.0

    def of(self, change: SlotChange) -> float:
        if change in (SlotChange.PREEMPT, SlotChange.FAILURE):
            return 0.0
        seconds: float = getattr(self, change.value)
        return seconds

    @property
    def resize_s(self) -> float:
        """The seconds that policies assume a resize to cost: the mean of `join` and `leave`."""
        return (self.join + self.leave) / 2


def constant(seconds: float) -> ResizeCost:
    return ResizeCost(seconds, seconds, seconds, seconds, seconds)


def parse_resize_cost(text: str) -> ResizeCost:
    """Return the costs that `text` gives, like "30" or "start=20,restart=25,join=0.3"."""
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


def change_of(before: Placement, after: Placement, trained: bool) -> SlotChange:
    # never `FAILURE`: a job without slots counts as preempted
    if not after:
        return SlotChange.PREEMPT
    if not before:
        return SlotChange.RESTART if trained else SlotChange.START
    had, has = _by_node(before), _by_node(after)
    if all(has.get(node, 0) >= count for node, count in had.items()):
        return SlotChange.JOIN
    if all(had.get(node, 0) >= count for node, count in has.items()):
        return SlotChange.LEAVE
    return SlotChange.MIGRATE


def _by_node(placement: Placement) -> dict[str, int]:
    slots: dict[str, int] = {}
    for node, count in placement:
        slots[node] = slots.get(node, 0) + count
    return slots


@dataclass(frozen=True)
class Failures:
    """The rates at which nodes fail and come back."""

    mean_up_s: float  # from the return of a node (at first from time 0) to its next failure
    mean_down_s: float  # from its failure to its return
    seed: int = 0  # each node has a generator of its own, so others do not change its times

    def events(self, nodes: Sequence[Node]) -> Iterator[tuple[float, str, bool]]:
        """Yield the failures and the returns of all `nodes`, in order of time, without end."""
        chance = {node.name: random.Random(f"{self.seed} {node.name}") for node in nodes}
        coming = [(self._after(chance[name], True), name, False) for name in chance]
        heapq.heapify(coming)
        while coming:
            at_s, name, up = coming[0]
            yield at_s, name, up
            heapq.heapreplace(coming, (at_s + self._after(chance[name], up), name, not up))

    def _after(self, chance: random.Random, up: bool) -> float:
        return chance.expovariate(1 / (self.mean_up_s if up else self.mean_down_s))
