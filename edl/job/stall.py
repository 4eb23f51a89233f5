"""Decide whether a job stands still (completes no step), and which workers the others wait for.

A worker that answers is alive, however long its step takes: it is named, with what it is doing, and
evicted only past a limit of the user's. One that left its loop in the midst of a step is evicted,
as its gradients never come; so is one that does not answer for long, even with a ZooKeeper session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edl.record import Record

IN_USER_CODE = "in user code"
FOR_COLLECTIVE = "waiting for the others in a collective of the script"
RETURNED = "waiting for the others to end, for it has returned from training"
SAVING = "writing the last checkpoint"
FOR_RECORDS = "waiting for the step records of the others"
FOR_GRADIENTS = "waiting for the gradients of the others"
FOR_NUMBERS = "waiting for the numbers of the others"
AFTER_FIT = "after a fit"  # the work of a script between two fits, or after the last one
SPOKEN_OF = 3  # workers that a message names one by one


@dataclass(frozen=True)
class StallLimits:
    stall_s: float  # without a complete step, and `usual_steps` times the usual step time
    frozen_s: float  # without an answer; a worker whose session lives has `in_zookeeper` times that
    give_up_s: float | None = None  # when to evict a worker in user code; None: never
    usual_steps: int = 20
    # The factor of `stall_s` for the first step, in which libraries are loaded and kernels
    # compiled, and for the code after a fit (a call of Keras' `fit`).
    first_step: float = 6.0
    after_fit_s: float = 600.0  # the least `give_up_s` after a fit, for the script may evaluate
    in_zookeeper: float = 3.0


@dataclass(frozen=True)
class Activity(Record):
    """The activity of a worker's training thread at one moment: in edl, or in the user's code."""

    doing: str  # `IN_USER_CODE`, or what the thread waits for, such as `FOR_GRADIENTS`
    where: str  # the innermost line of the user's code, as "train.py:33"; empty outside that code
    point: str  # the last call into edl that the thread began or ended
    since_s: float  # since that call began or ended
    work: str = ""  # what is known to take long in the user's code, as "torch.compile"
    records: int = 0  # how many step records this worker has sent in its ring

    @property
    def waits(self) -> bool:
        return self.doing != IN_USER_CODE  # it waits inside edl, and delays no other worker


@dataclass(frozen=True)
class Report:
    """The leader's findings about one worker of a ring that completes no step."""

    worker: int
    rank: int
    host: str
    activity: Activity | None  # None: the worker did not answer
    step: int = 0  # the last step that it has completed
    silent_s: float = 0.0  # since its last answer; 0.0: it answers

    @property
    def name(self) -> str:
        return f"w{self.worker} (rank {self.rank}, host {self.host})"

    @property
    def doing(self) -> str:
        return "" if self.activity is None else self.activity.doing

    @property
    def doing_s(self) -> float:
        return 0.0 if self.activity is None else self.activity.since_s

    @property
    def records(self) -> int:
        return 0 if self.activity is None else self.activity.records

    @property
    def waits(self) -> bool:
        return self.activity is not None and self.activity.waits

    @property
    def is_after_fit(self) -> bool:
        return self.activity is not None and self.activity.work == AFTER_FIT

    def describe(self) -> str:
        """Return "w3 (rank 2, host a) has been in its own code, train.py:33, for 12 s", say."""
        if self.activity is None:
            return f"{self.name} does not answer"
        here, seconds = self.activity, f"for {self.activity.since_s:.0f} s"
        if here.doing == RETURNED:
            return f"{self.name} has returned from training after step {self.step}"
        if here.waits:
            at = f" ({here.where})" if here.where and here.doing != SAVING else ""
            return f"{self.name} has been {here.doing}{at} {seconds}"
        work = f" ({here.work})" if here.work else ""
        where = f", {here.where}," if here.where else ""
        return f"{self.name} has been in its own code{work}{where} {seconds}"


@dataclass(frozen=True)
class Stall:
    """The diagnosis of a job that completes no step, as `judge_stall` returns it."""

    reason: str  # which workers hold up the job, and how
    culprits: tuple[int, ...]  # worker ids; empty: no worker is to blame
    evict: Mapping[int, str]  # the reason, by worker id; mostly empty


def stands_still(quiet_s: float, median_step_s: float, limits: StallLimits) -> bool:
    if median_step_s == 0.0:
        return quiet_s >= limits.first_step * limits.stall_s
    return quiet_s >= max(limits.stall_s, limits.usual_steps * median_step_s)


def are_after_fit(reports: Sequence[Report], quiet_s: float, limits: StallLimits) -> bool:
    return any(r.is_after_fit for r in reports) and quiet_s < limits.first_step * limits.stall_s


def judge_stall(reports: Sequence[Report], quiet_s: float, step: int, limits: StallLimits) -> Stall:
    """Return the diagnosis of a stalled job: which workers hold it up, and which to evict."""
    head = f"stalled in step {step + 1}"
    # A worker that does not answer may be frozen; what the other workers do says nothing then.
    unresponsive = [r for r in reports if r.activity is None]
    if unresponsive:
        # Unless most are silent: then the leader may be the one that is cut off. A frozen worker
        # without a session is noticed sooner, in `liveness`.
        longest_s = limits.in_zookeeper * limits.frozen_s
        frozen = {
            r.worker: f"it is frozen: {r.name} does not answer for {r.silent_s:.0f} s and no step "
            f"completes for {quiet_s:.0f} s, though it is in ZooKeeper"
            for r in unresponsive
            if r.silent_s >= longest_s and 2 * len(unresponsive) <= len(reports)
        }
        return Stall(f"{head}: {_list(unresponsive)}", _ids(unresponsive), frozen)
    # A worker that left its loop in a step never sends its gradients: waiting does not help.
    # Such a worker began the step, sent no gradients for it, and waits for the next step's records,
    # perhaps as it has returned: it has sent one record more than those in the step. One that has
    # sent as many as they is in the step, too; a slow network keeps it waiting.
    training = [r for r in reports if r.doing == FOR_GRADIENTS]
    left: list[Report] = []
    if training and all(r.waits for r in reports):
        first, sent = min(r.step for r in training), min(r.records for r in training)
        through = [r for r in reports if r.doing in (FOR_RECORDS, RETURNED)]
        left = [r for r in through if r.step <= first and r.records > sent]
    if left:
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
    # Whoever has returned takes part in no collective that the others wait in.
    returned = [r for r in reports if r.doing == RETURNED]
    if returned and all(r.waits for r in reports) and len(returned) < len(reports):
        others = [r for r in reports if r not in returned]
        why = f"{_list(returned)}, and {_list(others)}; all workers must make as many steps"
        return Stall(f"{head}: {why}", _ids(returned), {})
    # Every worker waits for another one: messages get lost, or the script makes other calls on
    # one worker than on another. No worker is to blame.
    working = [r for r in reports if not r.waits]
    if not working:
        why = f"no step for {quiet_s:.0f} s and everybody waits: {_list(reports)}"
        # The probable cause, where one is known.
        lines = {r.activity.where for r in reports if r.activity is not None}
        if len(lines) > 1:
            why += "; they wait in different lines, and all workers must make the same calls"
        elif len({r.host for r in reports}) > 1:
            why += "; check the network between the hosts"
        return Stall(f"{head}: {why}", (), {})
    # No worker waits for another one (all evaluate, say): no worker is to blame.
    if len(working) == len(reports):
        nobody = "" if len(working) == 1 else "; nobody waits for another one"
        return Stall(f"{head}: {_list(working)}{nobody}", (), {})
    # Some workers wait for those in user code, which are evicted if the user has set a limit.
    them = "it" if len(working) == 1 else "them"
    why = f"{head}: {_list(working)}; the others wait for {them}"
    evict: dict[int, str] = {}
    if (limit_s := limits.give_up_s) is not None:
        after_fit_s = max(limit_s, limits.after_fit_s)
        evict = {
            r.worker: f"{r.describe()} in step {step + 1}; the stall limit is {limit_s:g} s"
            for r in working
            if r.doing_s >= (after_fit_s if r.is_after_fit else limit_s)
        }
    return Stall(why, _ids(working), evict)


def _ids(reports: Sequence[Report]) -> tuple[int, ...]:
    return tuple(r.worker for r in reports)


def _names(reports: Sequence[Report]) -> str:
    return " and ".join(r.name for r in reports)


def _list(reports: Sequence[Report]) -> str:
    text = ", ".join(r.describe() for r in reports[:SPOKEN_OF])
    return text if len(reports) <= SPOKEN_OF else f"{text} and {len(reports) - SPOKEN_OF} more"
