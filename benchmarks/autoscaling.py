"""AutoScaling's published runs, played again by edl's rule: ``python -m benchmarks.autoscaling``.

Or, Zhang and Freedman (MLSys 2020) measured two trainings with a fixed number of workers, and with
their engine from several starts. The static runs give the throughput of each size; fed with them,
at the authors' pace (what they lose at a change), the rule must walk as theirs did and end
when theirs did. Beside it, the same at edl's pace. Time is virtual: nothing is trained.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.page import Section, markdown
from edl.policy.hill_climbing import Throughput
from edl.policy.observation import Observation, Rule, SizeMeasurement, State
from edl.policy.stragglers import Stragglers, Times
from edl.spec import Sizes

TITLE = "AutoScaling's published runs, played again"
OUT = Path(__file__).parent / "results" / "autoscaling.md"


@dataclass(frozen=True)
class Pace:
    """The times that a change of the number of workers takes.

    Attributes:
        prepare_s: until new workers are there, while the others train on.
        stop_s: while no worker trains.
    """

    prepare_s: float
    stop_s: float

    def __str__(self) -> str:
        return (
            f"{self.prepare_s:g} s until new workers are there, {self.stop_s:g} s without a step "
            "at a change"
        )


@dataclass(frozen=True)
class Training:
    """A published training.

    Attributes:
        static_s: how long it took without a change of workers, by their number.
        scaled_s: how long it took with autoscaling, by the number of workers at the start.
        batch: the samples in a step of k workers.
    """

    name: str
    samples: float
    static_s: Mapping[int, float]
    scaled_s: Mapping[int, float]
    batch: Callable[[int], int]
    sizes: Sizes
    rule: Rule
    theirs: Pace
    explained: Mapping[int, str] = field(default_factory=dict)  # of starts that differ

    def rate(self, np: int) -> float:
        """Return the samples a second that ``np`` workers train."""
        return self.samples / self.static_s[np]


@dataclass(frozen=True)
class Played:
    """One training, played: (seconds, workers) of each change, its end, and what was paid."""

    walk: tuple[tuple[float, int], ...]
    end_s: float
    worker_s: float


CIFAR = Training(
    "ResNet-56 on CIFAR-10, 200 epochs",
    200 * 50_000.0,
    {4: 1171.5, 8: 1216.2, 12: 1304.7, 16: 1302.8, 20: 1410.1, 24: 1407.6},
    {4: 1169.5, 8: 1141.2, 12: 1291.4, 16: 1160.1, 20: 1312.9, 24: 1182.9},
    lambda np: 1024,
    Sizes(min_np=4, max_np=24, size_step=4),
    Throughput(threshold=0.1, every_steps=10, add=4, settled_s=math.inf),
    Pace(prepare_s=0.0, stop_s=3.0),  # removed workers stay, detached, and come back at once
    {
        12: "their run paid 5,656 worker-seconds, so it had 4.4 workers on average, as played; but "
        "it trained 8 % fewer samples a second with 4 than their static run of 4 did.",
        20: "the same: 4.7 workers on average, and 10 % fewer samples a second.",
    },
)
IMAGENET = Training(
    "ResNet-50 on ImageNet, 5 epochs",
    5 * 1_281_167.0,
    {32: 4550.0, 40: 3638.0, 48: 3070.0, 56: 2742.0, 64: 2357.0},
    {32: 2502.0, 40: 2551.0, 48: 2672.0, 56: 2411.0, 64: 2421.0},
    lambda np: min(128 * np, 8192),
    Sizes(min_np=32, max_np=64, size_step=8),
    Throughput(threshold=0.1, every_steps=10, add=8, settled_s=math.inf),
    Pace(prepare_s=110.0, stop_s=3.0),  # read off their first changes: 124, 282, 440 and 584 s
    {
        48: "their run paid 169,093 worker-seconds, 63 workers on average, and took 13 % longer "
        "than their static run of 64.",
    },
)
OURS = Pace(prepare_s=12.0, stop_s=0.3)  # a worker starts and warms up; then one switch


def play(training: Training, start: int, pace: Pace, rule: Rule | None = None) -> Played:
    """Simulate the training step by step, from ``start`` workers on.

    ``pace`` is what a change of workers costs; ``rule`` decides about them (None: the rule of the
    training).
    """
    rule = rule or training.rule
    np, now_s, worker_s, done, steps = start, 0.0, 0.0, 0.0, 0
    seen: dict[int, SizeMeasurement] = {}
    state: State = {}
    walk = [(0.0, start)]
    wanted, due_s = start, 0.0
    dropped = False  # the first step after a change is not measured
    while done < training.samples:
        step_s = training.batch(np) / training.rate(np)
        now_s, worker_s, done = now_s + step_s, worker_s + np * step_s, done + training.batch(np)
        if not dropped:
            dropped = True
        else:
            steps += 1
            one = SizeMeasurement(training.rate(np), 1)
            seen[np] = seen[np].and_then(one) if np in seen else one
        if wanted != np and now_s >= due_s:
            now_s, worker_s = now_s + pace.stop_s, worker_s + wanted * pace.stop_s
            np, steps, dropped = wanted, 0, False
            walk.append((now_s, np))
        observation = Observation(
            np=np,
            sizes=training.sizes,
            steps=steps,
            seen=seen,
            awaits=wanted != np,
            elapsed_s=now_s,
            worker_s=worker_s,
            left=training.samples - done,
        )
        suggestion = rule(observation, state, now_s)
        state = suggestion.state
        if suggestion.np != np and wanted == np:
            wanted = suggestion.np
            due_s = now_s + (pace.prepare_s if wanted > np else 0.0)
    return Played(tuple(walk), now_s, worker_s)


# --- stragglers

RATES = {1: 115, 2: 213, 4: 401, 8: 735, 16: 1393, 32: 2466, 40: 2891, 50: 3270}  # samples/s
STRAGGLERS = {  # speed of 10 of 50 ranks: seconds as they are, replaced, and samples/s of all 50
    0.75: (3082.0, 2469.0, 2834.0),
    0.5: (3895.0, 2566.0, 2045.0),
    0.25: (6346.0, 3085.0, 1088.0),
}
NONE_S, NONE_RATE = 2744.0, 3246.0
EVERY = 5  # one rank of so many is slow
ADDED_S = 58.6  # between two workers: then the training without stragglers takes NONE_S
STRAGGLER_BATCH, STRAGGLER_SAMPLES, RANKS = 1024, 100 * 50_000, 50
AS_THEIRS = Stragglers(least_share=1.0, patience_steps=1)  # it replaces at once
REPLACED = Pace(prepare_s=40.0, stop_s=3.0)  # their first new worker came after 37 to 44 s


def play_stragglers(speed: float, replaces: bool, pace: Pace = REPLACED) -> float:
    """Seconds of the training in which one rank of EVERY has that ``speed``, 1 of the others."""
    slowed = STRAGGLERS[speed][2] / NONE_RATE if speed < 1 else 1.0
    now_s, done, state = 0.0, 0, {}
    next_s, slow, leaves = ADDED_S, set[int](), dict[int, float]()
    ranks = 1
    while done < STRAGGLER_SAMPLES:
        rate = float(np.interp(ranks, list(RATES), list(RATES.values())))
        rate *= NONE_RATE / RATES[RANKS]
        now_s, done = now_s + STRAGGLER_BATCH / rate / (slowed if slow else 1.0), done + 1024
        if now_s >= next_s and ranks < RANKS:
            ranks, next_s = ranks + 1, next_s + ADDED_S
            if speed < 1 and ranks % EVERY == 0:
                slow.add(ranks)
        if replaces and slow:
            times = [
                Times(rank, "", 1.0, 1.0 / speed if rank in slow else 1.0)
                for rank in range(1, ranks + 1)
            ]
            care = AS_THEIRS(times, state)
            state = dict(care.state)
            for rank in care.replace:
                leaves.setdefault(rank, now_s + pace.prepare_s)
            for rank in [rank for rank in slow if now_s >= leaves.get(rank, np.inf)]:
                slow.discard(rank)
                now_s += pace.stop_s
    return now_s


def straggler_section() -> Section:
    """Its table."""
    how = (
        f"100 epochs of CIFAR-10 in steps of {STRAGGLER_BATCH} on CPUs; a worker more each "
        f"{ADDED_S:g} s until there are {RANKS}, of which 10 are slow. Rule `stragglers` with "
        "their numbers: an average that forgets a tenth a step, below 0.8 of the median, replaced "
        f"at once. {REPLACED}. Published: {NONE_S:.0f} s without stragglers."
    )
    head = ["speed of the slow", "published, s", "played, s", "replaced: published, s", "played, s"]
    rows = [
        [
            f"{speed:g}",
            f"{published:.0f}",
            f"{play_stragglers(speed, False):.0f}",
            f"{replaced:.0f}",
            f"{play_stragglers(speed, True):.0f}",
        ]
        for speed, (published, replaced, _) in STRAGGLERS.items()
    ]
    notes = [
        (
            "Not published: how fast workers were added, and which were slow. Here one in five is, "
            "and the pace is what makes the run without stragglers as long as theirs."
        ),
        (
            "Two of their runs with replaced stragglers ended before the one without any (2469 and "
            "2566 s; 2744), which no replacing explains; they may have had their 50 workers "
            "earlier. Played, they end after it, by what the slow ones cost until they are found "
            "and their successors are there."
        ),
    ]
    return Section("Stragglers", how, head, rows, notes)


# --- the page


def section(training: Training) -> Section:
    """Its table."""
    rule = training.rule
    assert isinstance(rule, Throughput)
    how = (
        f"Rule `throughput` with `threshold = {rule.threshold:g}`, `every_steps = "
        f"{rule.every_steps}`, `add = {rule.add}`, and no second search, as theirs; "
        f"{training.sizes}. Theirs: {training.theirs}. Ours: {OURS}. `static`: published seconds "
        "with that number of workers from the first step to the last; `beside` it and beside the "
        f"best of them, {min(training.static_s.values()):.0f} s, is the published run."
    )
    head = [
        "start",
        "static, s",
        "published, s",
        "beside static",
        "beside the best",
        "played, s",
        "differs by",
        "at edl's pace, s",
        "not lost, s",
        "walk: workers@s",
        "worker-seconds: theirs, ours",
    ]
    rows = []
    for start, published in training.scaled_s.items():
        theirs, ours = (play(training, start, pace) for pace in (training.theirs, OURS))
        rows.append(
            [
                f"{start}",
                f"{training.static_s[start]:.0f}",
                f"{published:.0f}",
                f"{published / training.static_s[start] - 1:+.0%}",
                f"{published / min(training.static_s.values()) - 1:+.0%}",
                f"{theirs.end_s:.0f}",
                f"{theirs.end_s / published - 1:+.1%}",
                f"{ours.end_s:.0f}",
                f"{theirs.end_s - ours.end_s:.0f}",
                " ".join(f"{np}@{at_s:.0f}" for at_s, np in theirs.walk),
                f"{theirs.worker_s:.0f}, {ours.worker_s:.0f}",
            ]
        )
    notes = [f"From {start}: {why}" for start, why in training.explained.items()]
    return Section(training.name, how, head, rows, notes)


def main() -> None:
    how = " ".join((__doc__ or "").partition("\n\n")[2].split())
    sections = [*map(section, (CIFAR, IMAGENET)), straggler_section()]
    OUT.write_text(markdown(TITLE, "python -m benchmarks.autoscaling", how, sections))
    print(f"{OUT} is written")


if __name__ == "__main__":
    main()
