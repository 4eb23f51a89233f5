"""What is trained: a data set, and a small network of matrices in numpy.

Training many of them takes minutes this way; nothing in a figure depends on the framework, as the
rules of edl that are measured know none either.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from examples.digits_data import load

Array = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]

HELD_OUT = 0.2  # of the digits
TEACHER_SEED = 18
TEACHER_INPUTS, TEACHER_WIDTH, TEACHER_CLASSES = 32, 32, 10
WRONG_LABELS = 0.1


@dataclass(frozen=True)
class Problem:
    """Samples to train, with labels, and others to test."""

    name: str
    x: Array
    y: Labels
    test_x: Array
    test_y: Labels

    def __len__(self) -> int:
        return len(self.y)

    @property
    def classes(self) -> int:
        return int(max(self.y.max(), self.test_y.max())) + 1


def digits(seed: int) -> Problem:
    """Return the 1,797 handwritten digits; ``seed`` determines which are held out."""
    images, labels = _digits()
    order = np.random.default_rng([seed, 1]).permutation(len(labels))
    test, train = np.split(order, [int(HELD_OUT * len(labels))])
    return Problem("digits", images[train], labels[train], images[test], labels[test])


@cache
def _digits() -> tuple[Array, Labels]:
    images, labels = load()
    return images.reshape(len(images), -1).astype(np.float64) - 0.5, labels


@cache
def teacher(samples: int = 20_000, held_out: int = 4_000) -> Problem:
    """Labels of a network with random weights; of those to train WRONG_LABELS are drawn anew."""
    chance = np.random.default_rng(TEACHER_SEED)
    net = Net((TEACHER_INPUTS, TEACHER_WIDTH, TEACHER_WIDTH, TEACHER_CLASSES))
    weights = net.begin(chance)
    x = chance.standard_normal((samples + held_out, TEACHER_INPUTS))
    outputs = net.outputs(weights, x)
    y = (outputs - outputs.mean(axis=0)).argmax(axis=1)
    wrong = chance.random(samples) < WRONG_LABELS
    train_y = np.where(wrong, chance.integers(TEACHER_CLASSES, size=samples), y[:samples])
    return Problem("teacher", x[:samples], train_y, x[samples:], y[samples:])


@dataclass(frozen=True)
class Net:
    """Fully connected layers and a softmax.

    Args:
        widths: of the inputs, each layer, and the outputs.
        linear: without ReLUs between the layers.
        biases: each layer has them.
    """

    widths: Sequence[int]
    linear: bool = False
    biases: bool = True

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Of each layer's matrix, with a row for each output, and of its biases, if it has some."""
        found: list[tuple[int, ...]] = []
        for inputs, outputs in pairwise(self.widths):
            found += [(outputs, inputs), (outputs,)] if self.biases else [(outputs, inputs)]
        return found

    def parts(self, weights: Array) -> list[Array]:
        """Return views of ``weights``, one for each weight matrix and bias, in its shape."""
        found, begin = [], 0
        for shape in self.shapes:
            end = begin + math.prod(shape)
            found.append(weights[begin:end].reshape(shape))
            begin = end
        return found

    def begin(self, chance: np.random.Generator, scale: float = 1.0) -> Array:
        """Draw the first weights of the net.

        They are normal with variance 2 / inputs (1 / inputs without ReLUs) times ``scale``^2; the
        biases are 0.
        """
        weights = np.zeros(sum(map(math.prod, self.shapes)))
        for part in self.parts(weights):
            if part.ndim == 2:
                deviation = scale * math.sqrt((1.0 if self.linear else 2.0) / part.shape[1])
                part[:] = deviation * chance.standard_normal(part.shape)
        return weights

    def outputs(self, weights: Array, x: Array) -> Array:
        return self._layers(weights, x)[-1]

    def loss(self, weights: Array, x: Array, y: Labels) -> float:
        """Return the mean cross-entropy of the net for ``x`` and ``y``, or inf if it is nan."""
        with np.errstate(all="ignore"):
            log = _log_softmax(self.outputs(weights, x))
            found = -float(log[np.arange(len(y)), y].mean())
        return found if np.isfinite(found) else np.inf

    def accuracy(self, weights: Array, x: Array, y: Labels) -> float:
        with np.errstate(all="ignore"):
            return float((self.outputs(weights, x).argmax(axis=1) == y).mean())

    def gradient(self, weights: Array, x: Array, y: Labels) -> Array:
        """Of the mean loss of a batch."""
        each, parts = 2 if self.biases else 1, self.parts(weights)
        layers = self._layers(weights, x)
        error = np.exp(_log_softmax(layers[-1]))
        error[np.arange(len(y)), y] -= 1.0
        error /= len(y)
        gradient = np.empty_like(weights)
        found = self.parts(gradient)
        for i in reversed(range(len(layers) - 1)):
            np.matmul(error.T, layers[i], out=found[each * i])
            if self.biases:
                error.sum(axis=0, out=found[each * i + 1])
            if i:
                error = error @ parts[each * i]
                if not self.linear:
                    error *= layers[i] > 0
        return gradient

    def _layers(self, weights: Array, x: Array) -> list[Array]:
        each, parts = 2 if self.biases else 1, self.parts(weights)
        found = [x]
        for i in range(0, len(parts), each):
            x = x @ parts[i].T
            if self.biases:
                x += parts[i + 1]
            if not self.linear and i + each < len(parts):
                np.maximum(x, 0.0, out=x)
            found.append(x)
        return found


def _log_softmax(outputs: Array) -> Array:
    shifted = outputs - outputs.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def indices(samples: int, total: int, chance: np.random.Generator) -> npt.NDArray[np.int64]:
    """Of ``total`` samples in a row, in epochs that are shuffled one by one."""
    epochs = [chance.permutation(samples) for _ in range(-(-total // samples))]
    return np.concatenate(epochs)[:total]


@dataclass
class Momentum:
    """SGD with momentum.

    Args:
        mu: how much of the momentum stays.
        holds_rate: the buffer holds the learning rate, as Keras' does; else it is PyTorch's form.
    """

    mu: float = 0.9
    holds_rate: bool = False

    def __post_init__(self) -> None:
        self._buffer: Array | None = None

    def update(self, weights: Array, gradient: Array, rate: float, correction: float = 1.0) -> None:
        """Make one update of ``weights``, in place.

        Args:
            weights: the weights to change.
            gradient: the mean gradient.
            rate: the learning rate.
            correction: what a buffer that holds the rate is multiplied by first: the scaling of
                this update over that of the one before. It has no effect on PyTorch's form.
        """
        if self._buffer is None:
            self._buffer = np.zeros_like(weights)
        self._buffer *= self.mu * correction if self.holds_rate else self.mu
        self._buffer += rate * gradient if self.holds_rate else gradient
        weights -= self._buffer if self.holds_rate else rate * self._buffer


RATES = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64)  # that are tried by hand, so to say


@dataclass(frozen=True)
class Task:
    """A data set, what is trained on it, and for how many samples.

    ``rates``: of which the one with the best accuracy is taken, in TUNING_SEEDS.
    """

    problem: Callable[[int], Problem]
    net: Net
    total: int
    rates: Sequence[float] = RATES

    @property
    def name(self) -> str:
        return self.problem(0).name

    def best(self, accuracy: Callable[[Problem, float, int], float]) -> float:
        """Return the learning rate with the highest mean ``accuracy(problem, rate, seed)``."""

        def mean(rate: float) -> float:
            return float(np.mean([accuracy(self.problem(s), rate, s) for s in TUNING_SEEDS]))

        return max(self.rates, key=mean)


TUNING_SEEDS = range(100, 103)  # none of them is in a figure
TASKS = (
    Task(digits, Net((64, 32, 10)), 57_600),
    Task(lambda seed: teacher(), Net((TEACHER_INPUTS, 64, TEACHER_CLASSES)), 80_000),
)
DATA = (
    f"Data: *digits*, 1,797 images of 8 x 8 in 10 classes, of which a fifth is held out, another "
    f"one with each seed; *teacher*, 20,000 samples to train and 4,000 held out of "
    f"{TEACHER_INPUTS} normal numbers, in {TEACHER_CLASSES} classes by a random network of three "
    f"layers, with {WRONG_LABELS:.0%} of the labels to train drawn anew, the same for all "
    f"seeds. Whatever is called the best learning rate is the one of "
    f"{', '.join(map(str, RATES))} with the highest held-out accuracy in "
    f"trainings of {len(TUNING_SEEDS)} other seeds."
)
