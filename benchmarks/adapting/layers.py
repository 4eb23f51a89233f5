"""How layers grow, linear and ReLU, in a static job and in one whose workers come and go.

With a fixed global batch the slices of all workers make the same update, so the curves are equal.
Beside them a job whose global batch grows with the workers. The balance itself is edl's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.adapting.drawing import COLOURS, panels, save
from benchmarks.adapting.problems import Array, Net, Problem, digits, indices
from benchmarks.adapting.spread import Mean
from benchmarks.page import Section
from edl.contrib.layer_balance import LayerBalance
from edl.step.batching import Batching
from edl.step.source import AlignedSource

TITLE = "Layers with and without churn"
BATCH, LARGEST, REDRAWN = 32, 16, 2_048
WIDTHS, SCALE, RATE = (64, 32, 32, 10), 0.5, 0.02
STATIC, FIXED, GROWING = "static", "churn, fixed global batch", "churn, growing global batch"
MARKS = 30


def train(
    problem: Problem, linear: bool, kind: str, total: int, seed: int, rate: float = RATE
) -> LayerBalance:
    """Train with plain SGD, and return the layer balance, recorded MARKS times.

    ``kind`` says whether and how the number of workers changes: see STATIC and GROWING.
    """
    chance, draw = (np.random.default_rng([seed, number]) for number in (6, 7))
    net = Net(WIDTHS, linear=linear, biases=False)
    weights = net.begin(chance, SCALE)
    picked = indices(len(problem), total, chance)
    layers = {f"layer {i + 1}": _reader(part) for i, part in enumerate(net.parts(weights))}
    balance = LayerBalance(layers, matrices=True)
    balance.record(0)
    trained, workers, drawn_at = 0, 1, 0
    while trained < total:
        if kind != STATIC and trained >= drawn_at:
            workers, drawn_at = int(draw.integers(1, LARGEST + 1)), drawn_at + REDRAWN
        now = picked[trained : trained + BATCH * (workers if kind == GROWING else 1)]
        weights -= rate * mean_gradient(net, weights, problem, now, workers)
        before, trained = trained, trained + len(now)
        if trained * MARKS // total > before * MARKS // total:
            balance.record(trained)
    return balance


def mean_gradient(net: Net, weights: Array, problem: Problem, now: Array, workers: int) -> Array:
    """Return the mean gradient over the samples ``now``, computed slice by slice.

    The slices are those that edl deals to so many ``workers``.
    """
    source = AlignedSource(len(now), Batching(global_batch=len(now)), False, 0, 0)
    gradient, begin = np.zeros_like(weights), 0
    for rank in range(workers):
        mine = now[begin : begin + source.batching.of_one(rank, workers)]
        begin += len(mine)
        if len(mine):
            part = net.gradient(weights, problem.x[mine], problem.y[mine])
            gradient += len(mine) / len(now) * part
    return gradient


def _reader(part: Array) -> Callable[[], Array]:
    return lambda: part


# --- the figure

NETS = {"linear": True, "ReLU": False}
KINDS = (STATIC, FIXED, GROWING)
TOTAL = 57_600
DOTS = {"markersize": 3, "markevery": 2}
Results = Mapping[tuple[str, str], Sequence[LayerBalance]]  # by net and kind; by seed


def measure(seeds: Sequence[int], total: int = TOTAL) -> Results:
    return {
        (net, kind): [train(digits(s), NETS[net], kind, total, s) for s in seeds]
        for net, kind in product(NETS, KINDS)
    }


def gap(ones: Sequence[LayerBalance], others: Sequence[LayerBalance]) -> float:
    """Return the largest relative difference of a squared norm between two sets of trainings.

    The largest is taken over all layers, records and seeds.
    """
    return max(
        float(np.abs(a.squared_norms / b.squared_norms - 1.0).max())
        for a, b in zip(ones, others, strict=True)
    )


def draw(results: Results, folder: Path) -> None:
    figure, axes = panels(3, "squared norms of the layers, and what is conserved, on digits")
    styles = dict(zip(KINDS, ("-", "o", ":"), strict=True))
    for panel, net in zip(axes, NETS, strict=False):
        for kind, style in styles.items():
            samples = results[net, kind][0].samples
            grown = np.array([_at(samples, one, one.squared_norms) for one in results[net, kind]])
            for i, colour in zip(range(grown.shape[2]), COLOURS, strict=False):
                mean, spread = grown[:, :, i].mean(axis=0), grown[:, :, i].std(axis=0)
                label = f"layer {i + 1}" if kind == STATIC else (None if i else kind)
                dots = DOTS if kind == FIXED else {}
                panel.plot(samples, mean, style, color=colour, label=label, **dots)
                if kind == STATIC:
                    low, high = mean - spread, mean + spread
                    panel.fill_between(samples, low, high, color=colour, alpha=0.15, linewidth=0)
        panel.set(title=net, xlabel="samples", ylabel="squared norm")
        panel.legend(fontsize="x-small")
    for (net, kind), colour in zip(product(NETS, (STATIC, FIXED)), COLOURS, strict=False):
        samples = results[net, kind][0].samples
        drift = np.mean([one.matrix_drift().max(axis=1) for one in results[net, kind]], axis=0)
        style, dots = styles[kind], DOTS if kind == FIXED else {}
        axes[2].plot(samples, drift, style, color=colour, label=f"{net}, {kind}", **dots)
    axes[2].set(title="matrices", xlabel="samples", ylabel="drift, in parts of the change")
    axes[2].legend(fontsize="x-small")
    save(figure, folder / "adapting-layers.svg", "Squared norms of layers by samples")


def _at(samples: Array, one: LayerBalance, values: Array) -> Array:
    """Values at other numbers of samples."""
    columns = [np.interp(samples, one.samples, column) for column in values.T]
    return np.stack(columns, axis=1)


def section(results: Results, seeds: Sequence[int]) -> Section:
    how = (
        f"Three layers without biases ({', '.join(map(str, WIDTHS))}), linear and with ReLUs, "
        f"plain SGD with learning rate {RATE:g}, on digits; recorded with "
        "`edl.diagnose.LayerBalance`. *Static* is one worker with "
        f"{BATCH} samples; with *{FIXED}* the same {BATCH} samples are dealt to 1 to {LARGEST} "
        f"workers, drawn anew after {REDRAWN:,} samples, as `global_batch={BATCH}` deals them; "
        f"with *{GROWING}* each worker has {BATCH}, at the same learning rate. Squared norms of "
        "neighbours grow by the same in both nets; the matrices of a linear one keep their "
        f"balance, those of a ReLU net need not. {len(seeds)} seeds; the bands are a standard "
        "deviation, ± is the standard error of the mean.\n\n![the layers](adapting-layers.svg)"
    )
    head = ["net and job", "growth of the layers", "drift of the norms", "drift of the matrices"]
    head.append("differs from static by")
    rows, notes = [], []
    for (net, kind), ones in results.items():
        grown = [float((o.squared_norms[-1] - o.squared_norms[0]).mean()) for o in ones]
        norms = [float(np.abs(o.drift()).max()) for o in ones]
        matrices = [float(o.matrix_drift().max()) for o in ones]
        apart = gap(ones, results[net, STATIC]) if kind == FIXED else None
        rows.append(
            [
                f"{net}, {kind}",
                Mean.of(grown).text(1),
                Mean.of(norms).text(4),
                Mean.of(matrices).text(4),
                "" if apart is None else f"{apart:.0e}",
            ]
        )
        if apart is not None:
            words = "equal but for rounding" if apart < 1e-9 else "not equal"
            notes.append(
                f"{net}: with a fixed global batch the curves of churn and of the static job are "
                f"{words}: of any record of any seed no squared norm differs by more than "
                f"{apart:.0e} of it."
            )
    linear, relu = (
        max(float(np.abs(o.drift()).max()) for o in results[net, STATIC]) for net in NETS
    )
    notes.append(
        "The largest drift of the norms of a static job, in parts of their change, is "
        f"{linear:.4f} (linear) and {relu:.4f} (ReLU); it comes from steps that are not "
        "infinitely small."
    )
    return Section(TITLE, how, head, rows, notes)
