"""Workers redrawn at random: what a learning rate that follows the global batch does to accuracy.

The set-up of Dynamic Mini-batch SGD (Lin and others, arXiv 1904.12043, section 4), small: the
number of workers is drawn anew after so many samples, each worker has its batch, and an update has
the mean of all gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.adapting.drawing import curves, panels, save
from benchmarks.adapting.problems import Array, Momentum, Net, Problem, Task, digits, indices
from benchmarks.adapting.spread import Mean, difference, named, verdict
from benchmarks.page import Section
from edl.schedules import Constant, Knee, Scaling, Schedule
from edl.step.noise import UNKNOWN, NoiseSample, Squares, noise_sample

TITLE = "Workers that come and go"
BATCH = 16  # of a worker; the learning rate is chosen for one
LARGEST = 16  # workers
REDRAWN = 4_096  # samples with one number of workers

FIXED, IMMEDIATE, RAMP, ADASCALE = "fixed global batch", "immediate", "ramp of 8", "AdaScale"
METHODS: dict[str, Scaling | None] = {
    FIXED: None,
    IMMEDIATE: Scaling(batch=BATCH, ramp=0),
    RAMP: Scaling(batch=BATCH, ramp=8),
    ADASCALE: Scaling(batch=BATCH, rule="adascale", ramp=8),
}


@dataclass(frozen=True)
class Setting:
    """A training. ``rate``: for one worker; ``total``: samples; ``marks``: where it is tested."""

    net: Net
    rate: float
    total: int
    marks: int = 24

    @property
    def tested_at(self) -> list[float]:
        return [self.total * (i + 1) / self.marks for i in range(self.marks)]


@dataclass(frozen=True)
class Trained:
    """A training.

    ``accuracy``: of held-out samples, in parts, at the marks. ``noise_scale``: what the learning
    rate has followed at the end.
    """

    accuracy: tuple[float, ...]
    updates: int
    noise_scale: float | None
    weights: Array


def sizes(seed: int, total: int) -> list[int]:
    """Numbers of workers, one for each REDRAWN samples; they begin with one."""
    chance = np.random.default_rng([seed, 2])
    drawn = chance.integers(1, LARGEST + 1, size=-(-total // REDRAWN))
    return [1, *(int(each) for each in drawn[1:])]


def train(
    problem: Problem,
    setting: Setting,
    scaling: Scaling | None,
    seed: int,
    schedule: Schedule | None = None,
    holds_rate: bool = False,
) -> Trained:
    """Train a net once, with one worker or a changing number of workers, and return its history.

    Args:
        problem: the training and held-out samples.
        setting: the net, the peak rate, the samples to train, and when accuracy is tested.
        scaling: how the rate follows the workers; None: their global batch is that of one worker.
        seed: determines the first weights, the order of the samples, and the number of workers.
        schedule: the learning-rate schedule; None: Knee.
        holds_rate: momentum is in Keras' form.
    """
    chance = np.random.default_rng([seed, 3])
    net, weights = setting.net, setting.net.begin(chance)
    picked = indices(len(problem), setting.total, chance)
    schedule = schedule or Knee(peak_lr=setting.rate, total=setting.total)
    workers, momentum = sizes(seed, setting.total), Momentum(holds_rate=holds_rate)
    batches: list[tuple[int, int]] = []
    noise, accuracy, marks = UNKNOWN, list[float](), setting.tested_at
    trained, update, last_factor, alone = 0, 0, 1.0, None
    with np.errstate(all="ignore"):  # a rate that is too high
        while trained < setting.total:
            count = workers[trained // REDRAWN] if scaling else 1
            now = picked[trained : trained + count * BATCH]
            if not batches or batches[-1][1] != count * BATCH:
                batches.append((update, count * BATCH))
            x, y = problem.x[now], problem.y[now]
            trained += len(now)
            parts = [(x, y)]
            measures = scaling and scaling.needs_noise
            if measures and len(now) == count * BATCH:  # the last update has what is left
                parts = [(x[a : a + BATCH], y[a : a + BATCH]) for a in range(0, len(now), BATCH)]
            each = [net.gradient(weights, *part) for part in parts]
            gradient = np.mean(each, axis=0) if len(each) > 1 else each[0]
            if measures and len(now) == len(each) * BATCH:
                found = _measured(each, gradient, alone)
                noise = noise.after(found, len(now), update) if found else noise
            alone = gradient if len(now) == BATCH else None
            factor = scaling.at(update, batches, noise.changes) if scaling else 1.0
            rate = factor * schedule.at(trained)
            momentum.update(weights, gradient, rate, factor / last_factor)
            last_factor, update = factor, update + 1
            while len(accuracy) < len(marks) and marks[len(accuracy)] <= trained:
                accuracy.append(net.accuracy(weights, problem.test_x, problem.test_y))
    scale = noise.changes[-1][1] if noise.changes else None
    return Trained(tuple(accuracy), update, scale, weights)


def _measured(each: Sequence[Array], mean: Array, before: Array | None) -> NoiseSample | None:
    """Return what one update says about the gradient noise; None if it says nothing.

    Args:
        each: the workers' own gradients.
        mean: their mean.
        before: the gradient of the update before, if one worker made both updates; the two are
            compared with each other.
    """
    if len(each) > 1:
        norms = {i: Squares(float(g @ g), float(mean @ mean)) for i, g in enumerate(each)}
        return noise_sample(dict.fromkeys(norms, BATCH), norms)
    if before is None:
        return None
    both = (mean + before) / 2.0
    own = float(mean @ mean + before @ before) / 2.0
    return noise_sample({0: BATCH}, {0: Squares(own, float(both @ both))})


# --- the figure

LOST = 10.0  # points: a training that has not only noise
BEGINNING = 4  # so many marks need not fit into the figure
SLOWER = 1 / 3  # the other rate that is measured, of the best one


@dataclass(frozen=True)
class Compared:
    """A task with one learning rate: its trainings, by method and seed."""

    task: str
    setting: Setting
    is_best: bool
    trained: Mapping[str, Sequence[Trained]]

    def last(self, method: str) -> list[float]:
        """Accuracy at the end, in percent."""
        return [100.0 * one.accuracy[-1] for one in self.trained[method]]

    def lost(self, method: str) -> int:
        """Seeds that end LOST points below the fixed global batch, or more."""
        apart = np.array(self.last(FIXED)) - np.array(self.last(method))
        return int((apart >= LOST).sum())

    def early(self, method: str) -> list[float]:
        """Return the mean accuracy in the first half of each training, in percent.

        In that half the learning rate is at its peak.
        """
        half = self.setting.marks // 2
        return [100.0 * float(np.mean(one.accuracy[:half])) for one in self.trained[method]]


@dataclass(frozen=True)
class Results:
    """``form_gap``: the largest difference of a weight between the two forms of momentum."""

    compared: Sequence[Compared]
    form_gap: float


def form_gap(problem: Problem, setting: Setting, seed: int) -> float:
    """Between the ramp in PyTorch's and in Keras' form: the largest difference of a weight.

    Of a constant schedule: one that falls stays in a buffer that holds the rate, as in Keras.
    """
    constant = Constant(peak_lr=setting.rate)
    one, other = (
        train(problem, setting, METHODS[RAMP], seed, constant, holds) for holds in (False, True)
    )
    return float(np.abs(one.weights - other.weights).max())


def measure(tasks: Sequence[Task], seeds: Sequence[int]) -> Results:
    compared = []
    for task in tasks:
        setting = Setting(task.net, 1.0, task.total)

        def accuracy(problem: Problem, rate: float, seed: int, to: Setting = setting) -> float:
            return train(problem, replace(to, rate=rate), None, seed).accuracy[-1]

        best = task.best(accuracy)
        for rate in (best, best * SLOWER):
            at = replace(setting, rate=rate)
            trained = {
                method: [train(task.problem(seed), at, scaling, seed) for seed in seeds]
                for method, scaling in METHODS.items()
            }
            compared.append(Compared(task.name, at, rate == best, trained))
    first = compared[0].setting
    return Results(compared, form_gap(digits(0), replace(first, total=first.total // 8), 0))


def draw(results: Results, folder: Path) -> None:
    for task in dict.fromkeys(one.task for one in results.compared):
        those = [one for one in results.compared if one.task == task]
        figure, axes = panels(len(those), f"workers redrawn from 1 to {LARGEST}, {task}")
        for panel, one in zip(axes, those, strict=True):
            by_name = {
                method: [[100.0 * a for a in each.accuracy] for each in trained]
                for method, trained in one.trained.items()
            }
            curves(panel, one.setting.tested_at, by_name)
            later = np.array(list(by_name.values()))[:, :, BEGINNING:]
            low, high = later.mean(axis=1).min(), later.max()
            panel.set(title=f"learning rate {one.setting.rate:.3g} for {BATCH} samples")
            panel.set(xlabel="samples", ylabel="held-out accuracy, %")
            panel.set_ylim(low - 0.3 * (high - low), high + 0.1 * (high - low))
        axes[0].legend(fontsize="small", loc="lower right")
        save(figure, folder / f"adapting-elastic-{task}.svg", f"Accuracy by samples on {task}")


def section(results: Results, seeds: Sequence[int]) -> Section:
    tasks = list(dict.fromkeys(one.task for one in results.compared))
    how = (
        f"The workers, {BATCH} samples each, are drawn anew from 1 to {LARGEST} after {REDRAWN:,} "
        "samples, as Lin and others (arXiv 1904.12043) do it. SGD with momentum 0.9; the schedule "
        f"is Knee's. *{FIXED}* is {BATCH} samples whoever is there; *{IMMEDIATE}* multiplies the "
        f"learning rate by the workers at once, *{RAMP}* in 8 updates (the momentum-corrected "
        f"ramp, `Scaling(ramp=8)`), *{ADASCALE}* by the gain of the noise scale that is measured "
        'from the workers\' own gradients in each update (`rule="adascale"`, '
        "`--noise-scale-steps 1`). The "
        "learning rate is the best one for the fixed global batch; and once more a third of it. "
        "AdaScale's authors let a training go on for more samples where the gain is "
        "below the workers; edl counts samples, so it ends where the others do. "
        f"{len(seeds)} seeds; each seed has the same start, order of samples and workers in "
        "all methods but the first, which has the workers' samples in smaller batches. *Lost* are "
        f"those that end {LOST:g} points below it, or more; one of them makes a mean and its error "
        "useless. Bands are a "
        "standard deviation over the seeds, ± is the standard error of the mean."
    )
    how += "".join(f"\n\n![accuracy on {t}](adapting-elastic-{t}.svg)" for t in tasks)
    head = ["method", "learning rate", "updates", "lost", "accuracy, %", "minus the fixed one's"]
    head += ["in the first half, %", "minus the fixed one's"]
    rows, notes = [], []
    for one in results.compared:
        for method, trained in one.trained.items():
            rows.append([f"{method}, {one.task}", f"{one.setting.rate:.3g}"])
            rows[-1].append(f"{np.mean([each.updates for each in trained]):.0f}")
            rows[-1].append(f"{one.lost(method)} of {len(trained)}")
            for values in (one.last, one.early):
                apart = difference(values(method), values(FIXED))
                rows[-1] += [
                    Mean.of(values(method)).text(),
                    "" if method == FIXED else apart.text(sign=True),
                ]
        notes += _found(one)
    notes.append(
        "The ramp in PyTorch's form of momentum and in Keras', whose buffer holds the learning "
        f"rate and is corrected: the weights differ by {results.form_gap:.0e} at most after "
        "an eighth of the samples of digits with a constant schedule."
    )
    return Section(TITLE, how, head, rows, notes)


def _found(one: Compared) -> list[str]:
    """Return sentences that say what follows from the trainings of one task."""
    at = f"{one.task}, learning rate {one.setting.rate:.3g}"
    notes = []
    for when, values in (("at the end", one.last), ("in the first half", one.early)):
        told = [(m, difference(values(m), values(FIXED))) for m in METHODS if m != FIXED]
        ramp = difference(values(RAMP), values(IMMEDIATE))
        notes.append(
            f"{at}, {when}. Beside the fixed global batch: {named(told)}. The ramp beside "
            f"immediate scaling: {verdict(ramp)}."
        )
    lost = [f"{one.lost(m)} of {m}" for m in METHODS if one.lost(m)]
    if lost:
        notes.append(f"{at}: of {len(one.last(FIXED))} trainings each, lost are {', '.join(lost)}.")
    scales = [each.noise_scale for each in one.trained[ADASCALE] if each.noise_scale]
    if scales:
        notes.append(
            f"{at}, the noise scale that AdaScale's trainings have followed at the end: "
            f"{min(scales):,.0f} to {max(scales):,.0f} samples."
        )
    return notes
