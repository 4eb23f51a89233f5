"""A small training in float64 that can be repeated to the last digits, in either framework.

A net with one hidden layer of tanh; the loss of a batch is the mean of its squared errors. SGD with
momentum. No framework is imported here, and nothing of edl.
"""

import numpy as np

SAMPLES, EPOCHS = 100, 7
BATCH = 4  # samples, of one worker
PEAK_LR, MOMENTUM = 0.05, 0.9
BASE = 2 * BATCH  # samples: the global batch for which PEAK_LR was chosen
RAMP = 12  # updates


def data():
    """Return inputs, shape (SAMPLES, 3), and what the net is to say of them, shape (SAMPLES, 1)."""
    x = np.random.default_rng(18).normal(size=(SAMPLES, 3))
    return x, np.sin(x.sum(axis=1, keepdims=True))


def first_weights():
    """Of the hidden layer, its bias, and of the output."""
    chance = np.random.default_rng(81)
    return [chance.normal(size=shape) / 2 for shape in ((3, 4), (4,), (4, 1))]


def flat(arrays):
    """All numbers of some arrays, as one list."""
    return np.concatenate([np.asarray(array).ravel() for array in arrays]).tolist()
