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
    """Name those that the others wait for; give them up after ``limits.give_up_s``, if it is set.

    Whoever does not answer may be frozen: mostly the end of its session decides that, not this.
    It does when that session lives on for several times ``limits.frozen_s``, as long as no more are
    silent than answer: else it may be the leader that cannot hear them. When
    nobody waits for anybody (all evaluate, say), nobody is to blame and nobody is evicted.
    """
    answered = [r for r in reports if r.activity is not None]
    culprits = [r for r in answered if r.activity and not r.activity.waits]
    silent = [r for r in reports if r.activity is None]
    head = f"stalled in step {step + 1}"
    if silent:
        longest_s = limits.in_zookeeper * limits.frozen_s
        frozen = {
            r.worker: f"it is frozen: {r.name} does not answer for {r.silent_s:.0f} s and no step "
            f"completes for {quiet_s:.0f} s, though it is in ZooKeeper"
            for r in silent
            if r.silent_s >= longest_s and len(silent) <= len(answered)
        }
        return Stall(f"{head}: {_list(silent)}", tuple(r.worker for r in silent), frozen)
    if left := _left_in_a_step(answered):
        why = (
            f"{_names(left)} left a loop in the midst of step {step + 1}, with a batch in hand, "
            "and others wait for its gradients; leave a loop after an update, on all workers or on "
            "none: a `break` must not depend on what one worker sees"
        )
        return Stall(f"{head}: {why}", tuple(r.worker for r in left), {r.worker: why for r in left})
    saving = [r for r in answered if r.activity is not None and r.activity.doing == SAVING]
    if saving:  # it has a time limit of its own
        return Stall(f"{head}: {_list(saving)}", tuple(r.worker for r in saving), {})
    if not culprits:
        what = f"no step for {quiet_s:.0f} s and everybody waits: {_list(answered)}"
        return Stall(f"{head}: {what}; check the network between the hosts", (), {})
    if len(culprits) == len(answered):
        nobody = "" if len(culprits) == 1 else "; nobody waits for another one"
        return Stall(f"{head}: {_list(culprits)}{nobody}", (), {})
    limit_s = limits.give_up_s
    give_up = {
        r.worker: f"{r.describe()} in step {step + 1}; the stall limit is {limit_s:g} s"
        for r in culprits
        if limit_s is not None and r.activity
        if r.activity.since_s >= (max(limit_s, limits.after_fit_s) if r.is_after_fit else limit_s)
    }
    them = "it" if len(culprits) == 1 else "them"
    why = f"{head}: {_list(culprits)}; the others wait for {them}"
    return Stall(why, tuple(r.worker for r in culprits), give_up)


def _left_in_a_step(reports: Sequence[Report]) -> list[Report]:
    """Who waits for the records of a step while others wait for its gradients in that very step.

    Those have its record of that step, so it has begun the step, and another one since.
    """

    def waiting(what: str) -> list[Report]:
        return [r for r in reports if r.activity is not None and r.activity.doing == what]

    training = waiting(FOR_GRADIENTS)
    if not training or any(r.activity is None or not r.activity.waits for r in reports):
        return []
    return [r for r in waiting(FOR_RECORDS) if r.step <= min(other.step for other in training)]


def _names(reports: Sequence[Report]) -> str:
    return " and ".join(r.name for r in reports)


def _list(reports: Sequence[Report]) -> str:
    text = ", ".join(r.describe() for r in reports[:SPOKEN_OF])
    return text if len(reports) <= SPOKEN_OF else f"{text} and {len(reports) - SPOKEN_OF} more"
