"""What is measured with the stand-ins: starts, rest, take-overs, policies, and a day."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.cluster.live import until
from benchmarks.cluster_api.load import percentile
from benchmarks.cluster_scale.lab import LIMIT_S, ScaleLab, running_lab
from benchmarks.cluster_scale.observed import Turn
from benchmarks.cluster_scale.workload import StandInJob, Submission, day, small, thousand

Say = Callable[[str], None]

SETTLE_S = 15.0  # until the leader has read all progress, after runs write no status any more
KNOWN_S = 1.0  # for a controller to ask the port of the one before it
PROBES = 10  # jobs that are submitted under each policy
PROBE_S = 2.0  # for which each trains
BETWEEN_S = 1.5  # their submissions
AFTER_S = 30.0  # the longest time until the jobs have their slots under a policy
DRAIN_SPEED = 50.0  # of all jobs, after the last submission of a day
DRAIN_S = 900.0


@dataclass(frozen=True)
class Starts:
    """How all jobs were submitted and started, from a queue that was full.

    Attributes:
        jobs: how many.
        submitted_per_s: acknowledged submissions a second, one after the other.
        created_per_s: runs created a second, from the leader's first turn on.
        took_s: until all of them trained, from then on.
        turn_s: the longest turn meanwhile.
    """

    jobs: int
    submitted_per_s: float
    created_per_s: float
    took_s: float
    turn_s: float


@dataclass(frozen=True)
class Rest:
    """What a leader does while jobs train and nothing else happens.

    Attributes:
        jobs: how many train.
        statuses: whether their runs write their status.
        turns: how many turns it made.
        seconds: in so long.
        requests: the requests to ZooKeeper of each turn.
        turn_s: the median time of a turn.
        processor: its processor time, as a part of the time.
    """

    jobs: int
    statuses: bool
    turns: int
    seconds: float
    requests: Sequence[int]
    turn_s: float
    processor: float


@dataclass(frozen=True)
class TakeOvers:
    """Kills of the leading controller while all jobs train.

    Attributes:
        planned_s: for each kill, until the other one had planned a job that was submitted then.
        turn_s: for each kill, how long the first turn of the other one took.
        jobs: how many trained.
    """

    planned_s: Sequence[float]
    turn_s: Sequence[float]
    jobs: int


@dataclass(frozen=True)
class PolicyTurns:
    """The turns of a leader under one policy, while jobs come and end.

    Attributes:
        turns: how many.
        plan_s: the median time of a plan.
        most_plan_s: the longest.
        most_turn_s: the longest turn.
        training: how many jobs trained in the end.
    """

    turns: int
    plan_s: float
    most_plan_s: float
    most_turn_s: float
    training: int


@dataclass(frozen=True)
class Day:
    """A day of submissions.

    Attributes:
        jobs: how many were submitted.
        length_s: in so long.
        speed: by how much that was faster than a day.
        acknowledged_ms: the time from when each was due to its acknowledgement.
        waited_s: from its submission to its first step.
        finished: how many jobs have trained to the end, once each.
        runs: how many runs have trained.
        resizes: how often a ring has changed.
        most_training: the most jobs that trained at a time.
        kills: how often the leading controller was killed.
        turns: the turns of all leaders.
        processor: processor time of the leaders, as a part of the time.
    """

    jobs: int
    length_s: float
    speed: float
    acknowledged_ms: Sequence[float]
    waited_s: Sequence[float]
    finished: int
    runs: int
    resizes: int
    most_training: int
    kills: int
    turns: Sequence[Turn]
    processor: float


@dataclass(frozen=True)
class Steady:
    """All that was measured while the same jobs trained; see the fields' classes."""

    starts: Starts
    rest: Sequence[Rest]
    take_overs: TakeOvers
    policies: dict[str, PolicyTurns]


def steady(
    directory: Path, jobs: int, kills: int, policies: Sequence[str], rest_s: float, say: Say
) -> Steady:
    """Let many jobs train at once, and measure all but the day.

    Args:
        directory: an existing directory for logs and state.
        jobs: how many.
        kills: of the leading controller.
        policies: the names of the policies.
        rest_s: how long the leader is watched while nothing happens.
        say: shows a sentence to the user.
    """
    with running_lab(directory, "max_min", say) as lab:
        every = list(thousand(jobs, seed=1))
        few = every[: jobs // 10]
        for job in few:
            lab.submit(job)
        lab.standins.until_training(len(few), LIMIT_S)
        rest = [_rest(lab, False, rest_s, say)]
        starts = _starts(lab, every[len(few) :], len(few), say)
        rest += [_rest(lab, False, rest_s, say), _rest(lab, True, rest_s, say)]
        take_overs = _take_overs(lab, kills, say)
        found = {}
        for policy in policies:
            found[policy] = one = _under(lab, policy)
            say(
                f"{policy}: a plan takes {one.plan_s:.2f} s, at most {one.most_plan_s:.2f}; a turn "
                f"at most {one.most_turn_s:.2f} s; {one.training} jobs train"
            )
        lab.standins.check()
        return Steady(starts, rest, take_overs, found)


def _starts(lab: ScaleLab, jobs: Sequence[StandInJob], before: int, say: Say) -> Starts:
    """Submit jobs while no controller runs; then let the controllers start them all."""
    lab.pause_controllers()
    began_s = time.monotonic()
    for job in jobs:
        lab.submit(job)
    rate = len(jobs) / (time.monotonic() - began_s)
    since_s = time.time()
    lab.resume_controllers()
    lab.standins.until_training(before + len(jobs), LIMIT_S)
    trained_s = time.time()
    turns = lab.turns(since_s)
    began_at_s = turns[0].at_s - turns[0].turn_s
    creating = [one for one in turns if one.runs]
    created_s = creating[-1].at_s - began_at_s
    created = sum(one.runs for one in creating)
    lab.until_quiet()
    found = Starts(
        len(jobs),
        rate,
        created / created_s,
        trained_s - began_at_s,
        max(one.turn_s for one in turns),
    )
    say(f"{found.jobs} jobs train after {found.took_s:.1f} s")
    return found


def _rest(lab: ScaleLab, statuses: bool, seconds: float, say: Say) -> Rest:
    """Watch the leader while nothing happens but, if it is asked for, the writing of statuses."""
    lab.standins.quiet(not statuses)
    lab.until_quiet()
    time.sleep(SETTLE_S)
    began_s = time.time()
    before = lab.turns(began_s - SETTLE_S)
    time.sleep(seconds)
    turns = lab.turns(began_s)
    lab.standins.quiet(False)
    processor_s = turns[-1].processor_s - (before[-1] if before else turns[0]).processor_s
    found = Rest(
        lab.standins.runs.training(),
        statuses,
        len(turns),
        seconds,
        [one.requests for one in turns],
        percentile([one.turn_s for one in turns], 0.5),
        processor_s / seconds,
    )
    say(f"at rest: {found}")
    return found


def _take_overs(lab: ScaleLab, kills: int, say: Say) -> TakeOvers:
    """Kill the leading controller again and again."""
    book = lab.standins.book
    runs, resizes = book.runs.total(), book.resizes.total()
    planned_s, turn_s = [], []
    for number in range(kills):
        until(lambda: lab.candidates() == 2, "two controllers", timeout_s=LIMIT_S)
        leader = lab.leader()
        time.sleep(KNOWN_S)
        probe = f"probe-{number}"
        since_s, began_s = time.time(), time.monotonic()
        leader.kill()
        lab.submit_probe(probe)
        until(partial(lab.is_planned, probe), "plan", timeout_s=LIMIT_S)
        planned_s.append(time.monotonic() - began_s)
        until(partial(lab.turns, since_s), "turn", timeout_s=LIMIT_S)
        turn_s.append(lab.turns(since_s)[0].turn_s)
        lab.delete([probe])
        say(f"take-over: planned after {planned_s[-1]:.2f} s, first turn {turn_s[-1]:.2f} s")
    assert (runs, resizes) == (book.runs.total(), book.resizes.total()), "jobs were disturbed"
    return TakeOvers(planned_s, turn_s, lab.standins.runs.training())


def _under(lab: ScaleLab, policy: str) -> PolicyTurns:
    """Let jobs come and end under a policy, and return how long its turns took."""
    since_s = time.time()
    lab.use(policy)
    names = []
    for number in range(PROBES):
        time.sleep(BETWEEN_S)
        job = small(f"{policy.replace('_', '-')}-{number}", PROBE_S)
        names.append(job.name)
        lab.submit(job)
    lab.until_quiet(within_s=AFTER_S)
    turns = [one for one in lab.turns(since_s) if one.policy == policy]
    found = PolicyTurns(
        len(turns),
        percentile([one.plan_s for one in turns], 0.5),
        max(one.plan_s for one in turns),
        max(one.turn_s for one in turns),
        lab.standins.runs.training(),
    )
    lab.delete(sorted(set(names) & set(lab.unended())))
    return found


def a_day(
    directory: Path, jobs: int, speed: float, kills: int, seed: int, policy: str, say: Say
) -> Day:
    """Play a day of submissions, faster than real time, with kills of the leading controller.

    After the last submission all jobs train much faster, so that they end soon.

    Args:
        directory: an existing directory for logs and state.
        jobs: how many are submitted.
        speed: by how much faster than real time.
        kills: of the leading controller, at equal intervals.
        seed: of the jobs.
        policy: the policy of the cluster.
        say: shows a sentence to the user.
    """
    length_s = 86_400.0 / speed
    submissions = day(jobs, seed, length_s)
    strikes_s = [length_s * (number + 1) / (kills + 1) for number in range(kills)]
    with running_lab(directory, policy, say) as lab:
        book, since_s, began_s = lab.standins.book, time.time(), time.monotonic()
        played = _play(lab, submissions, strikes_s, say)
        day_s = time.monotonic() - began_s
        turns = lab.turns(since_s)
        say(f"the longest turn: {max(turns, key=lambda one: one.turn_s)}")
        lab.standins.hasten(DRAIN_SPEED)
        until(
            lambda: len(book.ended_s) == jobs and not lab.unended(),
            "end of all jobs",
            lambda: _state(lab, jobs),
            DRAIN_S,
            1.0,
        )
        lab.standins.check()
        return Day(
            jobs,
            day_s,
            speed,
            played.acknowledged_ms,
            [book.begun_s[name] - at_s for name, at_s in played.submitted_s.items()],
            sum(count == 1 for count in book.ends.values()),
            book.runs.total(),
            book.resizes.total(),
            played.most_training,
            kills,
            turns,
            _processor_s(turns) / day_s,
        )


@dataclass
class _Played:
    """The submissions of a day: see :class:`Day`; ``submitted_s`` is by the monotonic clock."""

    acknowledged_ms: list[float] = field(default_factory=list)
    submitted_s: dict[str, float] = field(default_factory=dict)
    most_training: int = 0


def _play(
    lab: ScaleLab, submissions: Sequence[Submission], strikes_s: Sequence[float], say: Say
) -> _Played:
    """Submit jobs when they are due, and kill the leading controller now and then.

    Args:
        lab: the cluster.
        submissions: the jobs, with their times from now on.
        strikes_s: when the controller is killed, in seconds from now on.
        say: shows a sentence to the user, once a minute.
    """
    began_s, said_s, found, left = time.monotonic(), 0.0, _Played(), list(strikes_s)
    for one in submissions:
        while left and left[0] <= one.at_s:
            time.sleep(max(0.0, began_s + left.pop(0) - time.monotonic()))
            lab.leader().kill()
        due_s = began_s + one.at_s
        time.sleep(max(0.0, due_s - time.monotonic()))
        lab.submit(one.job)
        found.submitted_s[one.job.name] = time.monotonic()
        found.acknowledged_ms.append(1000 * (time.monotonic() - due_s))
        found.most_training = max(found.most_training, lab.standins.runs.training())
        if time.monotonic() - said_s > 60.0:
            said_s = time.monotonic()
            lab.standins.check()
            say(_state(lab, len(found.submitted_s)))
    return found


def _state(lab: ScaleLab, submitted: int) -> str:
    """Return how many jobs were submitted, train and have ended."""
    book = lab.standins.book
    return (
        f"{submitted} submitted, {lab.standins.runs.training()} train, {len(book.ended_s)} have "
        f"ended; {book.runs.total()} runs, {book.resizes.total()} changes of their size"
    )


def _processor_s(turns: Sequence[Turn]) -> float:
    """Return the processor time of the controllers that made ``turns``, one after another."""
    spent_s, last_s = 0.0, 0.0
    for one in turns:
        if one.processor_s < last_s:  # another process leads
            spent_s += last_s
        last_s = one.processor_s
    return spent_s + last_s
