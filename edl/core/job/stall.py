"""When a job stands still, and which of its workers the others wait for.

A worker that answers is alive, however long its step takes: an evaluation, a checkpoint, a slow
disk. So nobody is evicted for being slow unless the user set a limit; but who holds the job up
is named, with what it is doing. Who does not answer for long is frozen, whatever its ZooKeeper
session says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edl.core.record import Record

IN_USER_CODE = "in user code"
SAVING = "writing the last checkpoint"
FOR_RECORDS = "waiting for the step records of the others"
FOR_GRADIENTS = "waiting for the gradients of the others"
FOR_NUMBERS = "waiting for the numbers of the others"
AFTER_FIT = "after a fit"  # the work of a script between two fits, or after the last one
SPOKEN_OF = 3  # workers named one by one when nobody waits for anybody


@dataclass(frozen=True)
class StallLimits:
    """When a stand-still is a stall, and what follows.

    Attributes:
        stall_s: no step for this long, and for ``usual_steps`` of them; the first step, in which
            libraries are loaded and kernels compiled, may take ``first_step`` times as long;
            and so may what a script does after a fit.
        give_up_s: whoever holds the others up for this long is evicted; None: never.
        after_fit_s: the least of that for a script that has ended a fit: it evaluates, or saves.
        frozen_s: for a worker to answer; ``in_zookeeper`` times as long while its session lives.
    """

    stall_s: float
    frozen_s: float
    give_up_s: float | None = None
    usual_steps: int = 20
    first_step: float = 6.0
    after_fit_s: float = 600.0
    in_zookeeper: float = 3.0


@dataclass(frozen=True)
class Activity(Record):
    """What a worker's training thread does at one moment."""

    doing: str  # IN_USER_CODE, or what it waits for
    where: str  # innermost line of the user's code, "train.py:33"; empty if it is in no such line
    point: str  # the last point that it passed
    since_s: float  # how long ago it passed that point
    work: str = ""  # in the user's code: what is known to take long, "torch.compile"

    @property
    def waits(self) -> bool:
        """It waits for other workers, so it is not the one that holds the job up."""
        return self.doing != IN_USER_CODE


@dataclass(frozen=True)
class Report:
    """A worker of the ring; ``activity`` is None when it did not answer, ``step`` its last one."""

    worker: int
    rank: int
    host: str
    activity: Activity | None
    step: int = 0
    silent_s: float = 0.0  # how long it has not answered

    @property
    def name(self) -> str:
        return f"w{self.worker} (rank {self.rank}, host {self.host})"

    @property
    def doing(self) -> str:
        """What the worker does (:attr:`Activity.doing`); empty if it did not answer."""
        return "" if self.activity is None else self.activity.doing

    @property
    def doing_s(self) -> float:
        """How long the worker has been doing that, in seconds; 0.0 if it did not answer."""
        return 0.0 if self.activity is None else self.activity.since_s

    @property
    def waits(self) -> bool:
        """Whether the worker waits for other workers."""
        return self.activity is not None and self.activity.waits

    @property
    def is_after_fit(self) -> bool:
        return self.activity is not None and self.activity.work == AFTER_FIT

    def describe(self) -> str:
        if self.activity is None:
            return f"{self.name} does not answer"
        here, seconds = self.activity, f"for {self.activity.since_s:.0f} s"
        if here.waits:
            return f"{self.name} has been {here.doing} {seconds}"
        work = f" ({here.work})" if here.work else ""
        where = f", {here.where}," if here.where else ""
        return f"{self.name} has been in its own code{work}{where} {seconds}"


@dataclass(frozen=True)
class Stall:
    """Who holds the job up, as one sentence, and whom to evict for it, with the reason."""

    reason: str
    culprits: tuple[int, ...]
    evict: Mapping[int, str]


def stands_still(quiet_s: float, median_step_s: float, limits: StallLimits) -> bool:
    """No step has completed for ``limits.stall_s``, and for much longer than steps usually take.

    ``median_step_s`` is 0 before the first one.
    """
    if median_step_s == 0.0:
        return quiet_s >= limits.first_step * limits.stall_s
    return quiet_s >= max(limits.stall_s, limits.usual_steps * median_step_s)


def are_after_fit(reports: Sequence[Report], quiet_s: float, limits: StallLimits) -> bool:
    """Return whether no step is to be expected, for a script has ended a fit not long ago."""
    return any(r.is_after_fit for r in reports) and quiet_s < limits.first_step * limits.stall_s


def judge(reports: Sequence[Report], quiet_s: float, step: int, limits: StallLimits) -> Stall:
    """Name the workers that hold up a job, and decide whether to evict them.

    Args:
        reports: one of each worker of the ring.
        quiet_s: for how long no step has completed.
        step: the last complete step.
    """
    head = f"stalled in step {step + 1}"
    # A worker that does not answer may be frozen; what the other workers do says nothing then.
    unresponsive = [r for r in reports if r.activity is None]
    if unresponsive:
        frozen = _frozen(unresponsive, len(reports) - len(unresponsive), quiet_s, limits)
        return Stall(f"{head}: {_list(unresponsive)}", _ids(unresponsive), frozen)
    # A worker that left its loop in a step never sends its gradients: waiting does not help.
    if left := _left_in_a_step(reports):
        why = (
            f"{_names(left)} left a loop in the midst of step {step + 1}, with a batch in hand, "
            "and others wait for its gradients; leave a loop after an update, on all workers or on "
            "none: a `break` must not depend on what one worker sees"
        )
        return Stall(f"{head}: {why}", _ids(left), dict.fromkeys(_ids(left), why))
    # Writing the last checkpoint has a time limit of its own.
    saving = [r for r in reports if r.doing == SAVING]
    if saving:
        return Stall(f"{head}: {_list(saving)}", _ids(saving), {})
    # Every worker waits for another one: messages get lost, and no worker is to blame.
    working = [r for r in reports if not r.waits]
    if not working:
        what = f"no step for {quiet_s:.0f} s and everybody waits: {_list(reports)}"
        return Stall(f"{head}: {what}; check the network between the hosts", (), {})
    # No worker waits for another one (all evaluate, say): no worker is to blame.
    if len(working) == len(reports):
        nobody = "" if len(working) == 1 else "; nobody waits for another one"
        return Stall(f"{head}: {_list(working)}{nobody}", (), {})
    # Some workers wait for those in user code, which are evicted if the user has set a limit.
    them = "it" if len(working) == 1 else "them"
    why = f"{head}: {_list(working)}; the others wait for {them}"
    return Stall(why, _ids(working), _past_limit(working, step, limits))


def _frozen(
    unresponsive: Sequence[Report], answering: int, quiet_s: float, limits: StallLimits
) -> dict[int, str]:
    """Return the workers to evict because they are frozen, with the reason.

    A frozen worker mostly loses its session, which is how it is noticed. Here it is noticed when
    its session lives on for ``limits.in_zookeeper`` times ``limits.frozen_s``. When more workers
    are unresponsive than ``answering``, the leader may be the one that is cut off.
    """
    if len(unresponsive) > answering:
        return {}
    longest_s = limits.in_zookeeper * limits.frozen_s
    return {
        r.worker: f"it is frozen: {r.name} does not answer for {r.silent_s:.0f} s and no step "
        f"completes for {quiet_s:.0f} s, though it is in ZooKeeper"
        for r in unresponsive
        if r.silent_s >= longest_s
    }


def _past_limit(working: Sequence[Report], step: int, limits: StallLimits) -> dict[int, str]:
    """Return the workers to evict because the others wait too long for them, with the reason."""
    limit_s = limits.give_up_s
    if limit_s is None:
        return {}
    after_fit_s = max(limit_s, limits.after_fit_s)
    return {
        r.worker: f"{r.describe()} in step {step + 1}; the stall limit is {limit_s:g} s"
        for r in working
        if r.doing_s >= (after_fit_s if r.is_after_fit else limit_s)
    }


def _left_in_a_step(reports: Sequence[Report]) -> list[Report]:
    """Return the workers that have left a step in which other workers wait for their gradients.

    They wait for the records of a step that is no later than the one of those others. The others
    have their record of that step, so they have begun the step, and another one since.
    """
    training = [r for r in reports if r.doing == FOR_GRADIENTS]
    if not training or not all(r.waits for r in reports):
        return []
    first = min(r.step for r in training)
    return [r for r in reports if r.doing == FOR_RECORDS and r.step <= first]


def _ids(reports: Sequence[Report]) -> tuple[int, ...]:
    return tuple(r.worker for r in reports)


def _names(reports: Sequence[Report]) -> str:
    return " and ".join(r.name for r in reports)


def _list(reports: Sequence[Report]) -> str:
    text = ", ".join(r.describe() for r in reports[:SPOKEN_OF])
    return text if len(reports) <= SPOKEN_OF else f"{text} and {len(reports) - SPOKEN_OF} more"
