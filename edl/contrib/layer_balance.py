"""Record how the layers of a network grow in training, and which differences between them persist.

W_1 ... W_N are the weight matrices in the order in which a net applies them, with one row for each
output, and n_i = ||W_i||_F^2. Under gradient flow, the limit of small learning rates,

    dn_i/dt = -2 <W_i, dL/dW_i>

is the same for all layers of a net without biases that is linear, or is positively homogeneous like
a net of ReLUs: to multiply W_i by 1 + e changes its output as to multiply W_j does. So all n_j -
n_i are conserved. In a linear net the whole matrix

    D_i = W_{i+1}^T W_{i+1} - W_i W_i^T

is conserved; in a net of ReLUs only its diagonal is, whose sum is n_{i+1} - n_i (Du, Hu and Lee,
NeurIPS 2018; Basu, Mukherjee and Vasudevan, arXiv 1904.10689). A step of plain SGD adds lr^2
(||dL/dW_j||^2 - ||dL/dW_i||^2) to n_j - n_i. The law does not cover biases, weight decay, momentum,
normalisation and frozen layers; the drift (how far a conserved quantity has moved) says how much
they matter.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from edl.binding.process import current_worker, is_initialized
from edl.binding.replica import few
from edl.errors import UsageError
from edl.figures import check_figure

Array = npt.NDArray[np.float64]
Read = Callable[[], npt.NDArray[Any]]
RISE, SATURATION = 0.1, 0.9  # of the whole change: between them is what is called the rise time
SLOWER = 0.5  # a plateau and a saturation have less than so much of the growth in the rise
UNCHANGED = 1e-12  # of a squared norm: less than this is rounding
MAX_NAMED = 12  # layers in the legend of a figure


@dataclass(frozen=True)
class LayerRow:
    """The measurements of all layers at one number of trained samples.

    Attributes:
        samples: the number of trained samples.
        squared_norms: the squared Frobenius norm of each layer's weights, in the order of the net.
        residuals: for each pair of neighbouring layers, the distance (Frobenius norm) that D_i (see
            the module) has moved since the first record; nan where the sizes of the two matrices do
            not fit. Empty unless matrices are recorded.
        moves: for each pair, the larger of the two distances that the terms of D_i have moved; nan
            and empty as ``residuals``.
    """

    samples: float
    squared_norms: tuple[float, ...]
    residuals: tuple[float, ...] = ()
    moves: tuple[float, ...] = ()


@dataclass(frozen=True)
class Phases:
    """The phases of one layer's growth (plateau, rise, saturation), by trained samples.

    Attributes:
        rise: the number of samples at which the rise begins and the plateau ends; that of the first
            record, if there was no plateau; None: the layer has not changed.
        saturation: the number of samples at which the rise ends; None: it has not, or the layer has
            not changed.
    """

    rise: float | None = None
    saturation: float | None = None


class LayerBalance:
    """A record of the norms of a model's layers over the training, and measures computed from it.

    ::

        balance = LayerBalance({"first": lambda: w1, "second": lambda: w2})
        balance.record(0)
        ...
        balance.record(64)

    After ``edl.track(balance=balance)`` newcomers and checkpoints get the record with the rest of
    the job's state. Measures of the record raise UsageError if it has fewer than two rows.

    Args:
        layers: by name, in the order of the net, a function without arguments that returns the
            layer's present weights as an array with one row for each output. It is called in each
            :meth:`record`.
        matrices: also record how far D_i (see the module) moves, for neighbouring layers whose
            sizes fit. This costs two matrix products for each pair, and memory for two square
            matrices as large as the width between the two layers.

    Raises:
        UsageError: there are fewer than two layers.
    """

    edl_compared = False  # processors of other kinds may round the last bit of a norm otherwise

    def __init__(self, layers: Mapping[str, Read], matrices: bool = False) -> None:
        if len(layers) < 2:
            found = f"only {next(iter(layers))}" if layers else "none"
            raise UsageError(
                f"a layer balance compares the weight matrices of two layers or more, and there is "
                f"{found}"
            )
        self.names = tuple(layers)
        self.matrices = matrices
        self._layers = dict(layers)
        self._rows: list[LayerRow] = []
        self._first: dict[int, tuple[Array, Array]] = {}  # of a pair, in the first record

    # --- what is recorded

    def record(self, samples: float) -> None:
        """Measure all layers now and append the result to the record.

        Rows at the same number of samples, or at a higher one, are dropped first: a job that goes
        back to an earlier state trains these samples again. A record that is empty then begins
        anew.

        Args:
            samples: the number of samples trained so far.

        Raises:
            UsageError: ``samples`` is negative or not finite.
        """
        if not (math.isfinite(samples) and samples >= 0):
            raise UsageError(f"balance.record: {samples:g} samples cannot be trained")
        while self._rows and self._rows[-1].samples >= samples:
            self._rows.pop()
        norms, grams = self._measure()
        if not self._rows:
            self._first = grams
        residuals, moves = list[float](), list[float]()
        for pair in range(len(self.names) - 1 if self.matrices else 0):
            residual, move = self._moved(pair, grams)
            residuals.append(residual)
            moves.append(move)
        self._rows.append(LayerRow(float(samples), tuple(norms), tuple(residuals), tuple(moves)))

    def _measure(self) -> tuple[list[float], dict[int, tuple[Array, Array]]]:
        norms, grams = list[float](), dict[int, tuple[Array, Array]]()
        before: Array | None = None
        for number, read in enumerate(self._layers.values()):
            weights: Array = np.asarray(read(), dtype=np.float64)
            norms.append(float(np.vdot(weights, weights)))
            if self.matrices and before is not None and _follows(before, weights):
                grams[number - 1] = weights.T @ weights, before @ before.T
            before = weights
        return norms, grams

    def _moved(self, pair: int, grams: Mapping[int, tuple[Array, Array]]) -> tuple[float, float]:
        """How far the matrices of two neighbouring layers have moved since the first record"""
        if pair not in grams or pair not in self._first:
            return math.nan, math.nan
        after, before = (
            now - first for now, first in zip(grams[pair], self._first[pair], strict=True)
        )
        farther = max(float(np.linalg.norm(after)), float(np.linalg.norm(before)))
        return float(np.linalg.norm(after - before)), farther

    @property
    def rows(self) -> tuple[LayerRow, ...]:
        """All rows of the record, by ascending number of samples; () before :meth:`record`."""
        return tuple(self._rows)

    @property
    def samples(self) -> Array:
        """The number of trained samples of each row, ascending, as an array of shape (rows,)."""
        return np.array([row.samples for row in self._rows])

    @property
    def squared_norms(self) -> Array:
        """The squared Frobenius norm of each layer in each row, in shape (rows, layers)."""
        return np.array([row.squared_norms for row in self._rows]).reshape(-1, len(self.names))

    # --- what follows from it

    def growth(self) -> Array:
        """Return the change of each layer's squared norm per sample, from each row to the next.

        The result is an array of shape (rows - 1, layers); it is negative where a norm falls. Where
        the conservation law (see the module) holds, the values of all layers are equal.
        """
        self._need_two("growth")
        rates: Array = np.diff(self.squared_norms, axis=0) / np.diff(self.samples)[:, None]
        return rates

    def drift(self) -> Array:
        """Return how far the difference of two neighbours' squared norms has moved since the start.

        The result is an array of shape (rows, layers - 1): the change of the later layer's squared
        norm minus that of the earlier one, divided by the largest change of any layer's in the
        whole record. It is 0 where the law of the module holds, and 1 (or -1) where only the later
        (the earlier) of the two layers has grown, as much as any layer.
        """
        self._need_two("drift")
        changes = self.squared_norms - self.squared_norms[0]
        return _parts(np.diff(changes, axis=1), np.abs(changes).max())

    def matrix_drift(self) -> Array:
        """Return how far D_i (see the module), conserved in a linear net, has moved so far.

        The result is an array of shape (rows, layers - 1), one column for each pair of neighbouring
        layers: the distance (Frobenius norm), divided by the farthest that one of the pair's two
            terms
        has moved in the whole record. It is nan for pairs whose sizes do not fit.

        Raises:
            UsageError: the record was made without matrices.
        """
        self._need_two("matrix_drift")
        if not self.matrices:
            raise UsageError(
                "balance.matrix_drift needs the matrices; write layer_balance(..., matrices=True)"
            )
        residuals = np.array([row.residuals for row in self._rows])
        return _parts(residuals, np.array([row.moves for row in self._rows]).max(axis=0))

    def phases(self) -> dict[str, Phases]:
        """Return, by layer, at how many samples its plateau ended and it was saturated."""
        self._need_two("phases")
        samples, norms = self.samples, self.squared_norms
        return {name: phases_of(samples, norms[:, i]) for i, name in enumerate(self.names)}

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw norms, growth and drift over the samples with matplotlib into the file ``path``.

        A file that exists is replaced. The form is PNG or SVG, by the end of the name.

        Raises:
            UsageError: matplotlib is not installed, the folder of ``path`` does not exist, or the
                name ends neither with .png nor with .svg.
        """
        check_figure(Path(path), "balance.plot")
        self._need_two("plot")
        _draw(self, Path(path))

    def _need_two(self, what: str) -> None:
        if len(self._rows) < 2:
            there = f"one, at {self._rows[0].samples:g} samples" if self._rows else "none"
            raise UsageError(
                f"balance.{what} needs two records with different numbers of samples, and there is "
                f"{there}; call balance.record() after some of the updates"
            )

    # --- as a tracked object

    def state_dict(self) -> dict[str, Any]:
        """Return the whole record as numbers, texts and arrays, for :meth:`load_state_dict`."""
        rows = [[r.samples, *r.squared_norms, *r.residuals, *r.moves] for r in self._rows]
        return {
            "names": list(self.names),
            "matrices": self.matrices,
            "rows": np.array(rows, dtype=np.float64).reshape(len(rows), self._width),
            "first": {str(pair): list(matrices) for pair, matrices in self._first.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace the record by ``state``, the :meth:`state_dict` of a worker or a checkpoint.

        Raises:
            UsageError: the state is of layers with other names, or was made with another
                ``matrices``.
        """
        if tuple(state["names"]) != self.names or bool(state["matrices"]) != self.matrices:
            raise UsageError(
                f"the layer balance of the job is of {', '.join(state['names'])}, and this "
                f"script's of {', '.join(self.names)}; matrices there {bool(state['matrices'])}, "
                f"here {self.matrices}"
            )
        layers, pairs = len(self.names), len(self.names) - 1 if self.matrices else 0
        ends = np.cumsum([1, layers, pairs])
        rows = np.asarray(state["rows"], dtype=np.float64).reshape(-1, self._width)
        self._rows = []
        for row in rows:
            (at,), norms, residuals, moves = (tuple(part.tolist()) for part in np.split(row, ends))
            self._rows.append(LayerRow(at, norms, residuals, moves))
        self._first = {
            int(pair): (np.asarray(after), np.asarray(before))
            for pair, (after, before) in state["first"].items()
        }

    @property
    def _width(self) -> int:
        layers = len(self.names)
        return 1 + layers + (2 * (layers - 1) if self.matrices else 0)


def phases_of(samples: Array, norms: Array) -> Phases:
    """Return the numbers of samples at which a layer's squared norm begins and ends its rise."""
    total = norms[-1] - norms[0]
    if not abs(total) > UNCHANGED * np.abs(norms).max():
        return Phases()
    done = (norms - norms[0]) / total
    begin = _crossing(samples, done, RISE, int(np.argmax(done >= RISE)))
    end = _crossing(samples, done, SATURATION, int(np.flatnonzero(done < SATURATION)[-1]) + 1)
    slow = SLOWER * (SATURATION - RISE) / (end - begin)
    plateau = RISE / (begin - samples[0]) < slow
    saturated = (1.0 - SATURATION) / (samples[-1] - end) < slow
    return Phases(begin if plateau else float(samples[0]), end if saturated else None)


def _crossing(samples: Array, done: Array, level: float, after: int) -> float:
    """Return the number of samples at which a layer's change passes the fraction `level`."""
    low, high = done[after - 1], done[after]
    part = (level - low) / (high - low)
    return float(samples[after - 1] + part * (samples[after] - samples[after - 1]))


def _follows(before: Array, after: Array) -> bool:
    return before.ndim == after.ndim == 2 and after.shape[1] == before.shape[0]


def _parts(values: Array, whole: Any) -> Array:
    found: Array = values / np.where(np.asarray(whole) == 0.0, 1.0, whole)
    return found


def _draw(balance: LayerBalance, path: Path) -> None:
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 8.0), layout="constrained")
    norms, growth, drift = figure.subplots(3, 1, sharex=True)
    samples, count = balance.samples, len(balance.names)
    colours = [colormaps["viridis"](i / count) for i in range(count)]
    phases, middles = balance.phases(), (samples[1:] + samples[:-1]) / 2.0
    for i, name in enumerate(balance.names):
        squared, named = balance.squared_norms[:, i], count <= MAX_NAMED or i in (0, count - 1)
        norms.plot(samples, squared, color=colours[i], label=name if named else None)
        marks = [at for at in (phases[name].rise, phases[name].saturation) if at is not None]
        norms.plot(marks, np.interp(marks, samples, squared), "o", color=colours[i])
        growth.plot(middles, balance.growth()[:, i], color=colours[i])
    for i, pair in enumerate(balance.drift().T):
        drift.plot(samples, pair, color=colours[i], label=None if i else "norms")
    if balance.matrices:
        for i, pair in enumerate(balance.matrix_drift().T):
            drift.plot(samples, pair, "--", color=colours[i], label=None if i else "matrices")
    norms.set(title="layer balance", ylabel="squared norm")
    growth.set(ylabel="growth by sample")
    drift.set(xlabel="samples", ylabel="drift, in parts of the change")
    norms.legend(fontsize="small")
    drift.legend(fontsize="small")
    figure.savefig(path)


Weights = TypeVar("Weights")


class JobBalance(LayerBalance):
    """A layer balance that counts the samples of the whole job."""

    def record(self, samples: float | None = None) -> None:
        """Record the norms after an update; `samples` None: as many as edl's loader has counted."""
        if is_initialized() and current_worker().warming_up:
            return  # the result of a warm-up is discarded
        super().record(_trained() if samples is None else samples)


def _trained() -> int:
    if not is_initialized() or not current_worker().loader.progress.attached:
        raise UsageError(
            "balance.record() takes the samples from edl's loader, and there is none here; give "
            "those that are trained so far: balance.record(samples)"
        )
    return current_worker().loader.update.after  # those of the present update are counted


def chosen(found: Mapping[str, Weights], layers: Iterable[str] | None) -> dict[str, Weights]:
    """Return the weight matrices of `layers` by name; None: all."""
    if layers is None:
        return dict(found)
    names = [layers] if isinstance(layers, str) else [*layers]
    if odd := [name for name in names if name not in found]:
        raise UsageError(
            f"layer_balance: the model has no weight matrix {few(odd)}; it has "
            f"{few(list(found)) or 'none'}"
        )
    return {name: found[name] for name in names}
