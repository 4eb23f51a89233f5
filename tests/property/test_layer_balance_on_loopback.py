"""Elasticity does not change how layers grow: equal curves with churn and without.

A step accumulates gradients over a whole epoch, so each step has the same global batch, however
many workers share it: full-batch gradient descent. Workers, leases, weights and switches are edl's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scenarios import SEEDS, Change

from edl.binding.loop import BatchSteps
from edl.contrib.layer_balance import LayerBalance
from edl.job.state_share import WHOLE_STATE, StateShare
from edl.records import JobState
from edl.step.engine import Batch
from edl.step.state_check import WHOLE, StateGroup
from edl.testing.counting import (
    CountingBatchSource,
    CountingModel,
    Vector,
    accumulated,
    source_of,
    train_step,
)
from edl.testing.loopback import LoopbackJob, LoopbackWorker

SAMPLES, BATCH = 12, 1
BATCHES = SAMPLES // BATCH  # of a step, on each worker: most of them are padding
SIZES = (4, 5, 3)
SPLIT = SIZES[0] * SIZES[1]


class Net(CountingModel):
    """Two layers without biases, in one vector as the harness sends it, and their balance."""

    def __init__(self, relu: bool, lr: float) -> None:
        super().__init__(0)
        draw = np.random.default_rng(5)
        self.relu, self.lr = relu, lr
        self.w = 0.4 * draw.normal(size=SPLIT + SIZES[1] * SIZES[2])
        self.x = draw.normal(size=(SAMPLES, SIZES[0]))
        self.y = self.x @ draw.normal(size=(SIZES[0], SIZES[2]))
        self.balance = LayerBalance({"1": lambda: self.layers[0], "2": lambda: self.layers[1]})

    @property
    def layers(self) -> tuple[Vector, Vector]:
        first, second = self.w[:SPLIT], self.w[SPLIT:]
        return first.reshape(SIZES[1], SIZES[0]), second.reshape(SIZES[2], SIZES[1])

    def gradient(self, batch: Batch) -> Vector:
        """Of half of the squared error, the mean over the batch."""
        first, second = self.layers
        x, y = self.x[batch.items], self.y[batch.items]
        out = x @ first.T
        hidden = np.maximum(out, 0.0) if self.relu else out
        error = (hidden @ second.T - y) / len(x)
        back = error @ second
        if self.relu:
            back = back * (out > 0.0)
        return np.concatenate([(back.T @ x).ravel(), (error.T @ hidden).ravel()])

    def update(self, gradient: Vector) -> None:
        self.w = self.w - self.lr * gradient

    def capture(self, _share: StateShare = WHOLE_STATE) -> dict[str, Vector]:
        return {"w": self.w.copy(), "rows": self.balance.state_dict()["rows"]}

    def restore(self, state: object) -> None:
        assert isinstance(state, dict)
        self.w = state["w"]
        self.balance.load_state_dict({**self.balance.state_dict(), "rows": state["rows"]})

    def learning_rates(self) -> dict[str, float]:
        return {}

    def digests(self, group: StateGroup = WHOLE) -> dict[str, int]:
        return {}


@dataclass
class Script:
    """Trains a net; the first epoch changes nothing: in it workers learn how long a step is."""

    relu: bool
    steps: int = 12
    lr: float = 0.1
    samples: int = SAMPLES
    batch_size: int = BATCH
    shards: tuple[int, ...] = ()
    shared: bool = False
    sizes: set[int] = field(default_factory=set)  # of the rings that made updates

    def __call__(self, one: LoopbackWorker) -> None:
        worker = one.worker
        worker.attach_source(*source_of(self, 0))
        net = Net(self.relu, 0.0)
        worker.attach_replica(net)
        one.model = net
        feed = CountingBatchSource(worker, 0)
        steps = BatchSteps(worker, feed, lambda: "the batch was not trained")
        for epoch in steps.epochs(1 + self.steps):
            net.lr, batches = self.lr if epoch else 0.0, 0
            while steps.begin():
                assert feed.batch is not None
                one.compute(0.01)
                gradient, batches = net.gradient(feed.batch) / BATCHES, batches + 1
                if batches < BATCHES:
                    net.sum = accumulated(worker, net, gradient)
                    worker.loader.accumulate()
                    continue
                train_step(worker, one.member, net, gradient)
                batches = 0
                if not worker.warming_up:
                    net.balance.record(worker.loader.update.after)
                    self.sizes |= {worker.size} if epoch else set()
        one.result = net


def curves(relu: bool, np_: int, seed: int = 0, changes: Sequence[Change] = ()) -> Any:
    """Return the layer sizes, and what each worker has recorded from the first whole epoch on."""
    script = Script(relu)
    job = LoopbackJob(script, np=np_, min_np=1, max_np=5, seed=seed)
    for change in changes:
        job.after_step(change.step, change)
    job.run()
    assert job.memory.job.state is JobState.FINISHED, job.describe()
    found = []
    for net in job.results.values():
        rows = [row for row in net.balance.rows if row.samples >= SAMPLES]
        every = [SAMPLES * epoch for epoch in range(1, script.steps + 2)]
        assert [row.samples for row in rows] == every, job.describe()
        found.append(np.array([row.squared_norms for row in rows]))
    return script.sizes, found


@cache
def alone(relu: bool) -> Any:
    _, (curve,) = curves(relu, 1)
    return curve


def check(relu: bool, np_: int, seed: int, changes: Sequence[Change]) -> set[int]:
    sizes, found = curves(relu, np_, seed, changes)
    for curve in found:
        assert np.array_equal(curve, found[0]), "workers have recorded otherwise"
        assert np.abs(curve - alone(relu)).max() < 1e-6
    return sizes


CHURN = (Change(4, a=4), Change(7, a=1), Change(9, a=2, b=2), Change(11, drain=0))


@pytest.mark.parametrize("relu", [False, True], ids=["linear", "relu"])
def test_churn_changes_no_curve(relu: bool) -> None:
    assert np.ptp(alone(relu), axis=0).min() > 1.0  # there is something to change
    sizes = check(relu, 2, 3, CHURN)
    assert len(sizes) > 2, sizes


@settings(max_examples=max(3, settings().max_examples // 16))
@given(
    seed=SEEDS,
    np_=st.integers(1, 4),
    relu=st.booleans(),
    changes=st.lists(
        st.builds(Change, step=st.integers(1, 14), a=st.integers(0, 4), b=st.integers(0, 3)),
        min_size=1,
        max_size=4,
    ),
)
def test_no_order_of_joins_and_leaves_changes_one(
    seed: int, np_: int, relu: bool, changes: list[Change]
) -> None:
    check(relu, np_, seed, changes)
