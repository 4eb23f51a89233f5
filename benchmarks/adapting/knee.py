"""Knee beside other schedules, with the whole budget and with a part of it; and how flat it ends.

The comparison of Iyer and others (JMLR 24, 2023, tables 5 and 6), small. Sharpness is that of
Keskar and others (arXiv 1609.04836), by projected gradient ascent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.adapting.drawing import COLOURS, panels, save
from benchmarks.adapting.problems import Array, Momentum, Net, Problem, Task, indices
from benchmarks.adapting.spread import Mean, difference, listed
from benchmarks.page import Section
from edl.schedules import Cosine, Knee, Linear, OneCycle, Schedule, Step

TITLE = "Knee beside other schedules"
BATCH = 32
EPSILON, ASCENT = 1e-4, 20  # the box of the sharpness, and steps in it
SHARPNESS_OF = 4_000  # trained samples, at most
PARTS = (1.0, 0.6)  # of the budget

SCHEDULES: dict[str, Callable[[float, float], Schedule]] = {
    "Knee": lambda peak, total: Knee(peak_lr=peak, total=total),
    "cosine": lambda peak, total: Cosine(peak_lr=peak, total=total),
    "linear": lambda peak, total: Linear(peak_lr=peak, total=total),
    "one-cycle": lambda peak, total: OneCycle(peak_lr=peak, total=total),
    "step": lambda peak, total: Step(peak_lr=peak, milestones=[total / 2, total * 3 / 4]),
}


@dataclass(frozen=True)
class Ended:
    """The end of one training.

    Attributes:
        accuracy: on held-out samples.
        loss: on samples that were trained.
        sharpness: at the last weights, on the same samples as the loss.
    """

    accuracy: float
    loss: float
    sharpness: float


def train(
    problem: Problem, net: Net, schedule: Schedule, total: int, seed: int, sharp: bool = True
) -> Ended:
    """Train a net once with a learning-rate schedule, and return how it ended.

    Args:
        problem: the training and held-out samples.
        net: the net to train.
        schedule: the learning rate by samples.
        total: the number of samples to train.
        seed: determines the first weights and the order of the samples.
        sharp: find loss and sharpness of what was trained; else they are nan.
    """
    chance = np.random.default_rng([seed, 4])
    weights, momentum = net.begin(chance), Momentum()
    picked = indices(len(problem), total, chance)
    with np.errstate(all="ignore"):
        for begin in range(0, total, BATCH):
            now = picked[begin : begin + BATCH]
            gradient = net.gradient(weights, problem.x[now], problem.y[now])
            momentum.update(weights, gradient, schedule.at(begin + len(now)))

    accuracy = net.accuracy(weights, problem.test_x, problem.test_y)
    if not sharp:
        return Ended(accuracy, math.nan, math.nan)
    x, y = problem.x[:SHARPNESS_OF], problem.y[:SHARPNESS_OF]

    def loss(at: Array) -> float:
        return net.loss(at, x, y)

    found = sharpness(loss, lambda at: net.gradient(at, x, y), weights)
    return Ended(accuracy, loss(weights), found)


def sharpness(
    loss: Callable[[Array], float],
    gradient: Callable[[Array], Array],
    weights: Array,
    epsilon: float = EPSILON,
    steps: int = ASCENT,
) -> float:
    """100 (L_max - L_0) / (1 + L_0), L_max being the largest loss in a box around ``weights``.

    The box is |dw_i| <= ``epsilon`` (|w_i| + 1). Each step of the ascent goes along the signs of
    the gradient, a tenth of the way from the middle to the border, and back into the box; the
    largest loss on the way counts. Where the gradient is 0 from the beginning, so is the sharpness.
    """
    bound = epsilon * (np.abs(weights) + 1.0)
    first = largest = loss(weights)
    moved = np.zeros_like(weights)
    for _ in range(steps):
        ascent = np.sign(gradient(weights + moved))
        moved = np.clip(moved + 0.1 * bound * ascent, -bound, bound)
        largest = max(largest, loss(weights + moved))
    return 100.0 * (largest - first) / (1.0 + first)


# --- the figure

Results = Mapping[str, Mapping[tuple[str, float], "Ends"]]  # by task, by schedule and budget


@dataclass(frozen=True)
class Ends:
    """Of one schedule and budget: its peak, and the ends by seed."""

    peak: float
    by_seed: Sequence[Ended]

    @property
    def accuracy(self) -> list[float]:
        """In percent."""
        return [100.0 * end.accuracy for end in self.by_seed]

    @property
    def sharpness(self) -> list[float]:
        return [end.sharpness for end in self.by_seed]


def best_peak(task: Task, name: str, total: int) -> float:
    """Return the peak learning rate that gives the best accuracy for a schedule and a budget.

    ``name`` is the schedule, ``total`` the budget in samples.
    """

    def accuracy(problem: Problem, rate: float, seed: int) -> float:
        return train(problem, task.net, SCHEDULES[name](rate, total), total, seed, False).accuracy

    return task.best(accuracy)


def measure(tasks: Sequence[Task], seeds: Sequence[int]) -> Results:
    results: dict[str, dict[tuple[str, float], Ends]] = {}
    for task in tasks:
        results[task.name] = {}
        for name, part in product(SCHEDULES, PARTS):
            total = int(part * task.total)
            peak = best_peak(task, name, total)
            schedule = SCHEDULES[name](peak, total)
            ends = [train(task.problem(s), task.net, schedule, total, s) for s in seeds]
            results[task.name][name, part] = Ends(peak, ends)
    return results


def draw(results: Results, folder: Path) -> None:
    for task, ends in results.items():
        figure, (accuracy, sharp) = panels(2, f"schedules on {task}")
        for part, colour, aside in zip(PARTS, COLOURS, (-0.1, 0.1), strict=False):
            of = [ends[name, part] for name in SCHEDULES]
            for panel, values in (
                (accuracy, [Mean.of(each.accuracy) for each in of]),
                (sharp, [Mean.of(each.sharpness) for each in of]),
            ):
                panel.errorbar(
                    np.arange(len(of)) + aside,
                    [mean.value for mean in values],
                    [mean.error for mean in values],
                    fmt="o",
                    color=colour,
                    capsize=3,
                    label=f"{part:.0%} of the budget",
                )
                panel.set_xticks(range(len(of)), list(SCHEDULES))
        accuracy.set(ylabel="held-out accuracy, %")
        sharp.set(ylabel="sharpness", yscale="log")
        accuracy.legend(fontsize="small")
        save(figure, folder / f"adapting-knee-{task}.svg", f"Accuracy and sharpness on {task}")


def section(results: Results, seeds: Sequence[int]) -> Section:
    how = (
        "Knee beside cosine, linear, one-cycle and step (a tenth at half and at three quarters) "
        f"schedules, all edl's own, with the whole budget and with {PARTS[1]:.0%} of it, as Iyer "
        "and others (JMLR 24, 2023) compare them. Batch "
        f"{BATCH}, SGD with momentum 0.9. Each schedule and budget has its own best peak. "
        "Sharpness is that of Keskar and others: 100 "
        f"(L_max - L_0) / (1 + L_0), the loss of {SHARPNESS_OF:,} trained samples at most in "
        f"|dw| <= {EPSILON:g} (|w| + 1), by {ASCENT} steps of sign-gradient ascent "
        f"(the paper's authors take 1,000 steps of gradient ascent). {len(seeds)} seeds; bars and "
        "± are standard errors of the mean."
    )
    how += "".join(f"\n\n![schedules on {t}](adapting-knee-{t}.svg)" for t in results)
    head = ["schedule", "budget", "peak", "accuracy, %", "Knee's minus it", "loss", "sharpness"]
    rows, notes = [], []
    for task, ends in results.items():
        for part, name in product(PARTS, SCHEDULES):
            one, knee = ends[name, part], ends["Knee", part]
            rows.append(
                [
                    f"{name}, {task}",
                    f"{part:.0%}",
                    f"{one.peak:g}",
                    Mean.of(one.accuracy).text(),
                    "" if one is knee else difference(knee.accuracy, one.accuracy).text(sign=True),
                    f"{np.mean([end.loss for end in one.by_seed]):.4f}",
                    f"{Mean.of(one.sharpness).value:.2g} ± {Mean.of(one.sharpness).error:.1g}",
                ]
            )
        notes += _found(task, ends)
    return Section(TITLE, how, head, rows, notes)


def _found(task: str, ends: Mapping[tuple[str, float], Ends]) -> list[str]:
    """Return sentences that say what follows from the trainings of one task."""
    whole, part = PARTS
    others = [name for name in SCHEDULES if name != "Knee"]
    notes = []
    for budget in PARTS:
        told = [
            (n, difference(ends["Knee", budget].accuracy, ends[n, budget].accuracy)) for n in others
        ]
        notes.append(f"Knee's accuracy on {task}, {budget:.0%} of the budget: {listed(told)}.")
    told = [(n, difference(ends["Knee", part].accuracy, ends[n, whole].accuracy)) for n in others]
    notes.append(
        f"Knee's accuracy on {task} with {part:.0%} of the budget, beside the others with all of "
        f"it: {listed(told)}."
    )
    told = [
        (
            n,
            difference(
                np.log10(ends["Knee", whole].sharpness).tolist(),
                np.log10(ends[n, whole].sharpness).tolist(),
            ),
        )
        for n in others
    ]
    flatter = [f"{n} ({10**-d.value:.2g} times)" for n, d in told if d.is_sure and d.value < 0]
    sharper = [f"{n} ({10**d.value:.2g} times)" for n, d in told if d.is_sure and d.value > 0]
    alike = [n for n, d in told if not d.is_sure]
    words = [
        f"{what} {', '.join(names)}"
        for what, names in (
            ("flatter than", flatter),
            ("sharper than", sharper),
            ("no different beyond the spread from", alike),
        )
        if names
    ]
    notes.append(f"Where Knee ends on {task}, with the whole budget, it is {'; '.join(words)}.")
    return notes
