"""Decide which fault ``edl chaos`` causes, when, and on which worker.

:func:`read_order` reads an order, :class:`Plan` has all orders and when they are carried out, and
:func:`choose_worker` chooses the worker. An order is an action and a target, with or without a step
of the job. The action is an option such as ``--kill``; its value is the target and the step::

    leader            w3            worker           newcomer
    leader@step=40    w3@step=100   worker@step=60

``worker`` means any worker of the ring, ``newcomer`` any worker of the job that is not in the ring;
if several match a target, one is drawn. Only workers on the host of ``edl chaos`` can be a target.

An order with a step is carried out once, as soon as the job reaches the step. An order without a
step is carried out at once; or, with ``--every``, again and again: the pauses are drawn evenly from
0 to twice that time, and each time one of the orders without a step is drawn. An order without a
worker to choose waits for one. All random choices come from one seed, so the same seed in the same
situation gives the same faults.

A worker is never chosen for ``--kill``, ``--term`` or ``--freeze`` if its death could lose the
job's state, which only workers of the ring hold.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeVar

from edl.errors import UsageError
from edl.text import seconds

LEADER, WORKER, NEWCOMER = "leader", "worker", "newcomer"
_ORDER = re.compile(r"(leader|worker|newcomer|w(?:0|[1-9][0-9]*))(?:@step=([0-9]+))?")


T = TypeVar("T")


class RandomSource(Protocol):
    """The interface of a source of random numbers; a `random.Random` has it."""

    def uniform(self, a: float, b: float) -> float: ...
    def choice(self, seq: Sequence[T]) -> T: ...


class Action(StrEnum):
    """A fault that `edl chaos` causes in a worker; its value is the name of the option."""

    KILL = "kill"  # SIGKILL
    TERM = "term"  # SIGTERM: it leaves
    FREEZE = "freeze"  # SIGSTOP, and later SIGCONT
    EXPIRE = "expire-session"  # ZooKeeper ends its session
    CUT = "cut"  # its connections in the ring are cut


FATAL = frozenset({Action.KILL, Action.TERM, Action.FREEZE})
"""After these the worker may be gone; a freeze may outlast its session."""


@dataclass(frozen=True)
class Order:
    """One fault that the user asked `edl chaos` for."""

    action: Action  # the kind of the fault
    target: str  # LEADER, WORKER, NEWCOMER, or a worker's name like "w3"
    step: int | None = None  # that the job must have completed; None: it waits for no step

    def __str__(self) -> str:
        return f"{self.action} {self.target}" + ("" if self.step is None else f"@step={self.step}")


@dataclass(frozen=True)
class Plan:
    """All that one call of `edl chaos` is asked to do."""

    orders: tuple[Order, ...]  # the faults to cause
    seed: int  # the seed of all random choices
    every_s: float | None = None  # the mean pause between orders without a step; None: once each
    count: int | None = None  # end after so many faults
    duration_s: float | None = None  # end after so long
    freeze_s: float = 5.0  # for how many seconds a FREEZE stops a worker's process

    def __post_init__(self) -> None:
        if not self.orders:
            raise UsageError(
                "nothing to do; give at least one of --kill, --term, --freeze, --expire-session "
                "and --cut, for example --kill leader@step=40"
            )
        recurring = [order for order in self.orders if order.step is None]
        if self.every_s is not None and not recurring:
            raise UsageError(
                "--every needs an order without @step to repeat, for example --kill worker"
            )
        if self.every_s is None and self.count is not None:
            raise UsageError("--count needs --every: without it each order strikes once")
        if self.every_s == 0:
            raise UsageError("--every must be longer than 0 s")

    @property
    def at_steps(self) -> tuple[Order, ...]:
        """The orders that wait for a step, the lowest step first; equal ones as in `orders`."""
        waiting = [order for order in self.orders if order.step is not None]
        return tuple(sorted(waiting, key=lambda order: order.step or 0))

    @property
    def others(self) -> tuple[Order, ...]:
        return tuple(order for order in self.orders if order.step is None)

    def moments(self, random: RandomSource) -> Iterator[tuple[float, Order]]:
        """Yield (seconds since the start, order) for each fault without a step."""
        if self.every_s is None:
            yield from ((0.0, order) for order in self.others)
            return
        at = 0.0
        while True:
            at += random.uniform(0.0, 2 * self.every_s)
            yield at, random.choice(self.others)


@dataclass(frozen=True)
class ObservedWorker:
    """The facts about a worker that decide whether `edl chaos` may choose it."""

    id: int  # the number of the worker
    in_ring: bool  # whether the worker is a member of the job's newest generation
    here: bool  # its process is on this host, and it is that worker's
    trained: bool = True  # whether the worker has completed a step in that generation's ring


def choose_worker(
    order: Order, workers: Collection[ObservedWorker], leader: int | None, random: RandomSource
) -> tuple[int | None, str]:
    here = sorted((w for w in workers if w.here), key=lambda w: w.id)
    wanted: Sequence[ObservedWorker]
    if order.target == LEADER:
        wanted = [w for w in here if w.id == leader]
    elif order.target == WORKER:
        wanted = [w for w in here if w.in_ring]
    elif order.target == NEWCOMER:
        wanted = [w for w in here if not w.in_ring]
    else:
        wanted = [w for w in here if f"w{w.id}" == order.target]
    if not wanted:
        return None, f"there is no {order.target} on this host"
    # A worker may hold the only sure copy of the job's state.
    sure = {w.id for w in workers if w.in_ring and w.trained}
    able = [w for w in wanted if order.action not in FATAL or not w.in_ring or sure - {w.id}]
    if not able:
        names = ", ".join(f"w{w.id}" for w in wanted)
        return None, f"no other worker than {names} holds the state of the job for certain"
    chosen = random.choice(able)
    return chosen.id, f"w{chosen.id} is one of {len(able)} to choose from"


def read_order(action: Action, text: str) -> Order:
    match = _ORDER.fullmatch(text)
    if match is None:
        raise UsageError(
            f"--{action} {text!r} names nobody: write leader, worker, newcomer or a name like w3, "
            "each with or without a step, like leader@step=40"
        )
    return Order(action, match[1], None if match[2] is None else int(match[2]))


def read_duration(option: str, text: str) -> float:
    found = seconds(text)
    if found is None:
        raise UsageError(f"{option} {text!r} is no duration; write 500ms, 5s, 2m or 1h")
    return found
