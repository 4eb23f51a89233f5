"""edl's LRTuner from learning rates that are wrong, beside Knee with the same and the right one.

What decides is edl's own pure core; here are only the updates, and the losses along them. Time is
virtual, so that it is the same on all machines: an update takes as long as three forward passes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.adapting.drawing import COLOURS, curves, panels, save
from benchmarks.adapting.knee import best_peak
from benchmarks.adapting.problems import Momentum, Net, Problem, Task, indices
from benchmarks.adapting.spread import Mean, difference, named
from benchmarks.page import Section
from edl.contrib.lr_rules import MeasuredUpdate, Tuning, points
from edl.schedules import EXPLORE, Knee

TITLE = "LRTuner from a wrong learning rate"
BATCH = 32
SHARE = 0.03  # of the time may be measuring, as edl.LRTuner has it
RANGE = 1e3  # its limits of the rate, as a factor
PASS_S, UPDATE_S = 1.0, 3.0


@dataclass(frozen=True)
class Tuned:
    """A training, at the marks: held-out accuracy, and the learning rate; and its decisions."""

    accuracy: tuple[float, ...]
    rates: tuple[float, ...]
    changes: int
    measured: int


def marks(total: int, count: int = 24) -> list[float]:
    return [total * (i + 1) / count for i in range(count)]


def train(problem: Problem, net: Net, rate: float, total: int, seed: int, tunes: bool) -> Tuned:
    """Train a net once from the given learning rate, with LRTuner or with Knee.

    Args:
        problem: the training and held-out samples.
        net: the net to train.
        rate: the learning rate that the training begins with.
        total: the number of samples to train.
        seed: determines the first weights and the order of the samples.
        tunes: LRTuner searches the rate; else the schedule is Knee with the peak ``rate``.
    """
    chance = np.random.default_rng([seed, 5])
    weights, momentum = net.begin(chance), Momentum()
    picked = indices(len(problem), total, chance)
    knee = Knee(peak_lr=rate, total=total)
    tuning = Tuning(total, EXPLORE * total, SHARE, rate / RANGE, rate * RANGE)
    state = tuning.begin(rate)
    kept, at, accuracy, rates = None, marks(total), list[float](), list[float]()
    changes = measured = 0
    with np.errstate(all="ignore"):
        for begin in range(0, total, BATCH):
            now = picked[begin : begin + BATCH]
            x, y, trained = problem.x[now], problem.y[now], begin + len(now)
            used = tuning.rate_at(state, trained) if tunes else knee.at(trained)
            begins = tunes and tuning.is_due(state, trained, BATCH)
            before = weights.copy() if begins else None
            momentum.update(weights, net.gradient(weights, x, y), used)
            if state.measures and kept is not None:
                e, (start, end) = points(state.reach), kept
                losses = tuple(net.loss(start + (1.0 + p) * (end - start), x, y) for p in e)
                cost_s, was = len(e) * PASS_S, state.rate
                state = tuning.measured(
                    state, MeasuredUpdate(trained, BATCH, losses, cost_s, UPDATE_S)
                )
                changes, measured, kept = changes + (state.rate != was), measured + 1, None
            elif before is not None:
                kept, state = (before, weights.copy()), replace(state, measures=True)
            while len(accuracy) < len(at) and at[len(accuracy)] <= trained:
                accuracy.append(net.accuracy(weights, problem.test_x, problem.test_y))
                rates.append(used)
    return Tuned(tuple(accuracy), tuple(rates), changes, measured)


# --- the figure

FACTORS = {"10 times too low": 0.1, "right": 1.0, "10 times too high": 10.0}
HAND = ("Knee", "right")
BEGINNING = 4  # so many marks need not fit into the figure


@dataclass(frozen=True)
class Results:
    """One task. ``rate``: the hand-tuned one; the trainings by (rule, start) and seed."""

    task: str
    total: int
    rate: float
    trained: Mapping[tuple[str, str], Sequence[Tuned]]

    def last(self, key: tuple[str, str]) -> list[float]:
        """Accuracy at the end, in percent."""
        return [100.0 * one.accuracy[-1] for one in self.trained[key]]


def measure(tasks: Sequence[Task], seeds: Sequence[int]) -> list[Results]:
    found = []
    for task in tasks:
        rate = best_peak(task, "Knee", task.total)
        trained = {
            (rule, start): [
                train(task.problem(s), task.net, factor * rate, task.total, s, rule == "LRTuner")
                for s in seeds
            ]
            for rule in ("Knee", "LRTuner")
            for start, factor in FACTORS.items()
        }
        found.append(Results(task.name, task.total, rate, trained))
    return found


def draw(results: Sequence[Results], folder: Path) -> None:
    for one in results:
        figure, (accuracy, rates) = panels(2, f"LRTuner on {one.task}")
        names = {key: f"{key[0]}, {key[1]}" for key in one.trained}
        by_name = {
            names[key]: [[100.0 * a for a in each.accuracy] for each in trained]
            for key, trained in one.trained.items()
        }
        lines = [(c, style) for style in ("--", "-") for c in COLOURS[: len(FACTORS)]]
        curves(accuracy, marks(one.total), by_name, lines=lines)
        later = np.array(
            [v for (rule, _), v in zip(names, by_name.values(), strict=True) if rule == "LRTuner"]
        )[:, :, BEGINNING:]
        low, high = later.mean(axis=1).min(), later.max()
        accuracy.set_ylim(low - 0.3 * (high - low), high + 0.1 * (high - low))
        at = marks(one.total)[:-1]  # the last one is 0
        tuned = {n: [each.rates[:-1] for each in one.trained[k]] for k, n in names.items()}
        curves(rates, at, tuned, geometric=True, lines=lines)
        accuracy.set(xlabel="samples", ylabel="held-out accuracy, %")
        rates.set(xlabel="samples", ylabel="learning rate", yscale="log")
        rates.legend(fontsize="x-small", loc="lower left")
        save(figure, folder / f"adapting-tuner-{one.task}.svg", f"LRTuner on {one.task}")


def section(results: Sequence[Results], seeds: Sequence[int]) -> Section:
    how = (
        "LRTuner (edl's own decisions, `edl/contrib/lr_rules.py`) is given the hand-tuned "
        "learning rate, a tenth of it and ten times of it; beside it Knee with the same "
        "peak. Hand-tuned is the best one for Knee. "
        f"Batch {BATCH}, SGD with momentum 0.9. Measuring may take {SHARE:.0%} of the time, where "
        f"an update takes as long as {UPDATE_S:g} forward passes. {len(seeds)} seeds; bands are a "
        "standard deviation over the seeds, ± is the standard error of the mean."
    )
    how += "".join(
        f"\n\n![LRTuner on {one.task}](adapting-tuner-{one.task}.svg)" for one in results
    )
    head = ["rule and start", "given", "rate at half", "changes", "measured updates", "accuracy, %"]
    head.append("minus the hand-tuned one's")
    rows, notes = [], []
    for one in results:
        hand = one.last(HAND)
        for (rule, start), trained in one.trained.items():
            half = [each.rates[len(each.rates) // 2 - 1] for each in trained]
            key = (rule, start)
            rows.append(
                [
                    f"{rule}, {start}, {one.task}",
                    f"{FACTORS[start] * one.rate:.3g}",
                    f"{min(half):.3g} to {max(half):.3g}" if rule == "LRTuner" else "",
                    f"{np.mean([each.changes for each in trained]):.1f}",
                    f"{np.mean([each.measured for each in trained]):.0f}",
                    Mean.of(one.last(key)).text(),
                    "" if key == HAND else difference(one.last(key), hand).text(sign=True),
                ]
            )
        for rule in ("LRTuner", "Knee"):
            keys = [(rule, start) for start in FACTORS if (rule, start) != HAND]
            told = [(start, difference(one.last((r, start)), hand)) for r, start in keys]
            notes.append(
                f"{one.task}, {rule}, beside Knee with the hand-tuned rate, from a rate that is: "
                f"{named(told)}."
            )
    notes.append(
        "LRTuner begins at a tenth of what it is given, so from 10 times too high it begins with "
        "the hand-tuned rate: it has to leave that alone. From the others it has to climb, in "
        "the few decisions that its share of the time allows."
    )
    return Section(TITLE, how, head, rows, notes)
