"""The page about a cluster of a thousand jobs."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from benchmarks.cluster_api.load import percentile
from benchmarks.cluster_scale.measure import Day, Rest, Steady
from benchmarks.cluster_scale.workload import HOSTS, SLOTS
from benchmarks.page import Section

TITLE, COMMAND = "A cluster of a thousand jobs", "make cluster-scale"
HOW = (
    "ZooKeeper (one server) and two controllers are real. The hosts and the processes of jobs are "
    "stand-ins in one process, which share the machine with them: they write all records of `edl "
    "host`, of agents and of workers, a host decides as `edl host` does, and nobody trains. There "
    f"are {HOSTS} hosts of {SLOTS} slots. Each of the jobs has a speed of its own, and what it "
    "measures of it is off by 3 % (standard deviation); a third lets the policy choose the batch. "
    "A started run trains after 1.2 s, a changed one after 0.2 s."
)
TAKE_OVER_S, PLAN_S = 2.0, 1.0  # goals

Row = Sequence[str]


def steady_sections(found: Steady) -> list[Section]:
    """Return the sections about jobs that all train at once."""
    return [_start(found), _rest(found.rest), _take_over(found), _policies(found)]


def _start(found: Steady) -> Section:
    one = found.starts
    rows = [
        ("submissions a second, by one client, one after the other", f"{one.submitted_per_s:.0f}"),
        ("runs created a second", f"{one.created_per_s:.0f}"),
        ("until all jobs train, s", f"{one.took_s:.1f}"),
        ("the leader's longest turn, s", f"{one.turn_s:.2f}"),
    ]
    how = (
        f"{one.jobs} jobs are submitted while no controller runs, beside {found.rest[0].jobs} that "
        "train. Then the controllers start, policy `max_min`. The times run from the first turn of "
        "the leader on."
    )
    return Section("Start", how, ("", ""), rows)


def _rest(found: Sequence[Rest]) -> Section:
    rows = [
        (
            f"{one.jobs}, {'which' if one.statuses else 'none of which'} write their status",
            f"{one.turns}",
            f"{median(one.requests):g} ({max(one.requests)})",
            f"{1000 * one.turn_s:.0f}",
            f"{one.processor:.1%}",
        )
        for one in found
    ]
    head = ("jobs that train", "turns", "requests a turn: median (most)", "a turn, ms")
    how = (
        f"The leader is watched for {found[0].seconds:g} s while jobs train and nothing else "
        "happens. It looks every 5 s though nothing seems to change. Requests are all that the "
        "process sends to ZooKeeper meanwhile, without heartbeats. Runs write their status each 10 "
        "s if there are a thousand, and the leader reads it as often."
    )
    return Section("Rest", how, (*head, "of a processor"), rows)


def _take_over(found: Steady) -> Section:
    one = found.take_overs
    rows = [
        (what, *(f"{value:.2f}" for value in (median(times), min(times), max(times))), goal)
        for what, times, goal in (
            ("until the other one has planned a new job", one.planned_s, f"{TAKE_OVER_S:g}"),
            ("of that, its first turn", one.turn_s, ""),
        )
    ]
    how = (
        f"The leading controller is killed with -9 while {one.jobs} jobs train, "
        f"{len(one.planned_s)} times. A job is submitted at that moment. No run was disturbed."
    )
    return Section("Take-over", how, ("", "median, s", "least", "most", "goal, s"), rows)


def _policies(found: Steady) -> Section:
    rows = [
        (
            f"`{name}`",
            f"{one.turns}",
            f"{one.plan_s:.2f}",
            f"{one.most_plan_s:.2f}",
            f"{one.most_turn_s:.2f}",
            f"{one.training}",
        )
        for name, one in found.policies.items()
    ]
    how = (
        "Under each policy ten short jobs are submitted, one each 1.5 s, beside the thousand, and "
        "end after some seconds. A plan is the policy's decision and all that follows from it; its "
        f"goal is {PLAN_S:g} s. A turn also reads, writes, and carries orders out for at most 1 s."
    )
    head = ("policy", "turns", "a plan, s", "longest plan, s", "longest turn, s", "jobs that train")
    notes = ["Policies that give some jobs more slots let others wait, so fewer train."]
    return Section("Plans", how, head, rows, notes)


def day_section(one: Day) -> Section:
    """Return the section about a day of submissions."""
    turns = [turn.turn_s for turn in one.turns]
    plans = [turn.plan_s for turn in one.turns]
    rows = [
        ("jobs submitted", f"{one.jobs:,}"),
        ("trained to the end, once each", f"{one.finished:,}"),
        ("killed leaders", f"{one.kills}"),
        ("runs; changes of a run's size", f"{one.runs:,}; {one.resizes:,}"),
        ("jobs that trained at a time, at most", f"{one.most_training}"),
        (
            "from due to acknowledged, ms: median, 99 of 100, most",
            ", ".join(f"{value:.0f}" for value in _three(one.acknowledged_ms)),
        ),
        (
            "from submitted to training, s: median, 99 of 100, most",
            ", ".join(f"{value:.1f}" for value in _three(one.waited_s)),
        ),
        (
            "a plan, s: median, 99 of 100, most",
            ", ".join(f"{value:.2f}" for value in _three(plans)),
        ),
        (
            "a turn, s: median, 99 of 100, most",
            ", ".join(f"{value:.2f}" for value in _three(turns)),
        ),
        ("turns", f"{len(turns):,}"),
        ("processor time of the leaders, of one processor", f"{one.processor:.0%}"),
    ]
    how = (
        f"A day of {one.jobs:,} submissions is played in {one.length_s / 60:.0f} minutes, so "
        f"{one.speed:g} times as fast, with durations as much shorter, under policy `edl`. Most "
        "jobs come around noon, three times as many an hour as at night. They ask for 1, 2, 4 or 8 "
        "workers and take half to double of that; their durations are log-normal, and all together "
        "would keep 80 % of the slots busy. After the last submission the jobs that are left train "
        "50 times as fast. No device was used by two runs at a time."
    )
    return Section("A day", how, ("", ""), rows)


def published_section(steady: Steady, day: Day | None) -> Section:
    """Return the table of published figures, with those measured here."""
    plans = [one.most_plan_s for one in steady.policies.values()]
    pace = "" if day is None else f"; {day.jobs / day.length_s:.1f} a second for hours in the day"
    started = (
        f"{steady.starts.created_per_s:.0f} runs created a second, "
        f"{steady.starts.jobs / steady.starts.took_s:.0f} jobs a second until they train"
    )
    rows = [
        (
            "Kueue, 15,000 workloads in 30 queues (its scheduler's own test)",
            "43 admissions a second",
            started,
        ),
        (
            "Slurm, batch jobs (its guide to high throughput)",
            "500 a second",
            f"{steady.starts.submitted_per_s:.0f} submissions a second by one client{pace}",
        ),
        (
            "Pollux (OSDI 2021)",
            "a decision each 60 s",
            f"a plan for all jobs takes at most {max(plans):.2f} s, and follows each change",
        ),
    ]
    how = (
        "Published figures, of other machines and other work: Kueue admits workloads and Slurm "
        "starts processes; here a run is created in ZooKeeper, and hosts start its agents."
    )
    return Section("Beside published figures", how, ("system", "published", "here"), rows)


def _three(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the median, the value that 99 of 100 do not exceed, and the largest."""
    return median(values), percentile(values, 0.99), max(values)
