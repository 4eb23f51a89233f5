"""A script that trains by :mod:`edl.tensorflow.logical` on a loopback ring.

It is apart from its tests, which import it when they run: the import of TensorFlow takes seconds.
"""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import tensorflow as tf
from test_logical_bits import LogicalNet

from edl.binding.loop import BatchSteps, RandomNumbers
from edl.job.state_share import WHOLE_STATE, StateShare
from edl.step.batching import Batching, logical_batching
from edl.step.source import AlignedSource
from edl.tensorflow import logical
from edl.tensorflow.reduction import GradientReduction
from edl.testing.counting import CountingBatchSource, CountingModel, Vector
from edl.testing.loopback import LoopbackWorker

MEMBERS: dict[int, Any] = {}  # by thread: all workers are in this process
FEED: Any = SimpleNamespace(is_trial=False)
ONE_SEED: Any = SimpleNamespace(read=lambda: 5, seed=lambda _: None)


def allreduce_of(array: Vector, kind: str) -> Any:
    member = MEMBERS[threading.get_ident()]
    found = member.average_finish(member.average_start(array.copy(), f"test.{kind}", kind))
    return found.copy()  # the members get one array, and edl writes to it


logical.allreduce_of = allreduce_of


class VariablesModel(CountingModel):
    def __init__(self, variables: list[Any]) -> None:
        self.variables = variables
        super().__init__(1)

    @property
    def w(self) -> Vector:
        return np.concatenate([each.numpy().astype(np.float64).ravel() for each in self.variables])

    @w.setter
    def w(self, values: Vector) -> None:
        if len(values) > 1:  # not that of the constructor
            at = 0
            for each in self.variables:
                size = int(np.prod(each.shape))
                each.assign(values[at : at + size].reshape(each.shape).astype(np.float32))
                at += size

    def capture(self, _share: StateShare = WHOLE_STATE) -> dict[str, Vector]:
        return {"w": self.w.copy()}

    def restore(self, state: object) -> None:
        assert isinstance(state, dict)
        self.w = state["w"]

    def digest(self) -> str:
        return hashlib.sha256(self.w.tobytes()).hexdigest()


@dataclass(frozen=True)
class TensorFlowNet(LogicalNet):
    """A script with averages of its inputs, noise, and momentum; one variable has no gradient."""

    def __call__(self, one: LoopbackWorker) -> None:
        worker = one.worker
        MEMBERS[threading.get_ident()] = one.member
        batching = logical_batching("the test", Batching(self.batch_size), self.logical)
        worker.attach_source(AlignedSource(self.samples, batching, True, 7, self.prefetch_batches))
        worker.loader.sampler.rereads = True
        drawn = np.random.default_rng(2)
        weights = tf.Variable(drawn.normal(size=5).astype(np.float32), name="weights")
        bare = tf.Variable(tf.ones(2), name="bare")
        momentum, average = tf.Variable(tf.zeros(5)), tf.Variable(tf.ones(5))
        frozen = tf.Variable(tf.ones(3))
        model = one.model = VariablesModel([weights, momentum, average, frozen])
        worker.attach_replica(model)
        reduction = GradientReduction(worker, FEED)
        numbers = RandomNumbers(worker, ONE_SEED)
        reduction.keep_apart(lambda: {"average": average, "frozen": frozen}, numbers, lambda: None)
        assert reduction.logical is not None
        feed = CountingBatchSource(worker, self.prefetch_batches)
        steps = BatchSteps(worker, feed, lambda: "not trained", reduction.end_step, numbers)
        data = np.random.default_rng(1).normal(size=(self.samples, 5)).astype(np.float32)
        digests: dict[int, str] = {}
        for _ in steps.epochs(self.epochs):
            while steps.begin():
                assert feed.batch is not None
                one.compute(0.1)
                reduction.logical.begin_piece()  # the generators are those of all threads
                inputs = data[feed.batch.indices]
                average.assign(0.9 * average + 0.1 * inputs.mean(0))
                noisy = inputs * (np.random.random(inputs.shape) > 0.3) - average.numpy()
                errors = np.tanh(noisy @ weights.numpy())
                gradient = tf.constant((errors[:, None] * noisy).mean(0), tf.float32)
                means, applies = reduction.reduce([gradient, None], [weights, bare])
                assert means[1] is None
                if applies:
                    momentum.assign(0.9 * momentum + means[0])
                    weights.assign_sub(0.1 * momentum)
                reduction.end_step()
                if worker.warming_up or worker.loader.open:  # between two logical workers
                    continue
                digests[worker.step] = model.digest()
                if self.exchange_every and worker.step % self.exchange_every == 0:
                    worker.exchange([worker.id])
        one.result = digests
