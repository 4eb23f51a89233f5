"""A job of one at a prompt: cells of a notebook are run again, after errors and Ctrl-C, too."""

from __future__ import annotations

import os
import sys

import forked
import pytest

pytestmark = [pytest.mark.integration, pytest.mark.slow]

TORCH = """
import torch, edl.torch as edl
model = torch.nn.Linear(2, 1)
def cell(breaks_at):
    global loader
    edl.init()
    loader = edl.DataLoader([torch.ones(2)] * 32, batch_size=8)
    optimizer = edl.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)
    for epoch in loader.epochs(2):
        for number, x in enumerate(loader):
            optimizer.zero_grad()
            model(x).sum().backward()
            if number == breaks_at:
                raise KeyboardInterrupt
            optimizer.step()
    print("trained", edl.step())

cell(-1)
cell(2)
cell(-1)
edl.DataLoader([1])
next(loader.epochs(3))
edl.init()
next(loader.epochs(3))
"""
TENSORFLOW = """
import numpy as np, tensorflow as tf, edl.tensorflow as edl
keras = tf.keras
def cell(fits):
    global dataset
    edl.init()
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    dataset = edl.Dataset((np.ones((32, 2)), np.ones((32, 1))), 8)
    if fits:
        model.compile(edl.Optimizer(keras.optimizers.SGD(0.1)), "mse")
        model.fit(dataset, epochs=2, verbose=0, callbacks=[edl.KerasCallback()])
    else:
        optimizer = edl.Optimizer(keras.optimizers.SGD(0.1), model)
        for epoch in dataset.epochs(2):
            for x, y in dataset:
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(model(x))
                gradients = tape.gradient(loss, model.trainable_variables)
                optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    print("trained", edl.step())

cell(True)
cell(False)
cell(True)
edl.Dataset([1])
next(dataset.epochs(3))
"""


@pytest.mark.parametrize(
    "cells",
    [
        pytest.param(TORCH, id="torch"),
        pytest.param(TENSORFLOW, id="tensorflow", marks=pytest.mark.long),
    ],
)
def test_edl_init_begins_a_new_job(cells: str) -> None:
    ended = forked.by_exec(
        [sys.executable, "-i"],
        240.0,
        input=cells,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"},
        check=True,
    )
    trained = ended.stdout.count("trained 8\n")
    assert trained == (3 if cells == TENSORFLOW else 2), ended.stderr
    assert ended.stderr.count("at a prompt, edl.init() begins a new job") == 2, ended.stderr
    assert ended.stderr.count("of the job before the last edl.init()") == (cells == TORCH)
    assert ended.stderr.count("Traceback") == (cells == TORCH), ended.stderr  # of its own Ctrl-C
