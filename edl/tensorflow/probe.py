"""Evaluate the loss at other learning rates than the one with which an update was made.

An update with another learning rate would have moved the variables along the same line, from where
they were before the update through where they are after it, in proportion to that rate. So their
values before and after are enough, whatever the optimizer is, as long as its update is a multiple
of its learning rate. A value that is kept is no copy yet: TensorFlow makes one when the variable is
written to.

An evaluation leaves no trace: what is trained, and whatever else its graph may change (BatchNorm's
averages, the state of Keras' random generators, metrics), is bit for bit what it was. All
evaluations of an update begin with the same values of these, so dropout removes the same units at
each point.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import op_def_registry

from edl.binding.lr_tuner import mean_loss, refuse
from edl.tensorflow.variables import plain

NOT_DENSE = (tf.RaggedTensor, tf.SparseTensor)


@dataclass(frozen=True)
class Evaluation:
    """The loss of one batch as a function without arguments, at other values of the weights."""

    graph: Any  # the concrete function of the loss
    batch: Any  # tensors in the structure that `graph` takes

    @property
    def variables(self) -> list[Any]:
        """All variables that the graph of the loss reads, or may change."""
        return list(self.graph.variables)

    def __call__(self) -> float:
        loss = self.graph(self.batch)
        return mean_loss(loss.numpy() if hasattr(loss, "numpy") else loss)


class TracedLoss:
    """A loss function as a graph, traced once for batches of one structure and any size."""

    def __init__(self, loss_of: Callable[[Any], Any]) -> None:
        def loss(batch: Any) -> Any:
            return loss_of(batch)

        # As Keras traces a step. A `tf.function` inside of it has AutoGraph all the same.
        self._traced = tf.function(loss, autograph=False, reduce_retracing=True)
        self._known: set[int] = set()  # ids of graphs that are kept

    def trace(self, spec: Any) -> Any:
        """Return the graph (a concrete function) of the loss for batches of the specs `spec`."""
        graph = self._traced.get_concrete_function(spec)
        if id(graph) not in self._known:
            _refuse_operations(graph)
            self._known.add(id(graph))
        return graph

    def of(self, batch: Any) -> Evaluation:
        batch = tf.nest.map_structure(_tensor, batch)
        return Evaluation(self.trace(tf.nest.map_structure(_spec, batch)), batch)


class Probe:
    """The trained variables before and after one update, to compute losses between them."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._made = 0  # updates before this one
        self._before: list[Any] = []
        self._after: list[Any] = []
        self._move: Any = None

    @property
    def holds(self) -> bool:
        """Whether the variables' values both before and after an update are kept."""
        return bool(self._after)

    def begin(self) -> None:
        """Keep the variables' values right before an update, in its thread."""
        with context.eager_mode():
            self._made = self._updates()
            self._before, self._after = _values(self._parameters()), []

    def end(self) -> None:
        """Keep the variables' values after the update, which a LossScaleOptimizer may skip."""
        if self._before and self._updates() != self._made:
            self._after = _values(self._parameters())

    def forget(self) -> None:
        self._before, self._after = [], []

    def prepare(self, evaluation: Evaluation) -> None:
        """Evaluate the loss once, so that all graphs that `losses` needs are built."""
        now = _values(self._parameters())
        self._along(now, now, (0.0,), evaluation)

    def losses(self, at: Sequence[float], evaluation: Evaluation) -> list[float]:
        """Return the losses for each e in `at`, at a rate of (1 + e) times that of the update."""
        assert self.holds
        return self._along(self._before, self._after, at, evaluation)

    def _along(
        self, before: list[Any], after: list[Any], at: Sequence[float], evaluation: Evaluation
    ) -> list[float]:
        """Return the losses at points on a line: -1 is at `before`, 0 at `after`."""
        parameters = self._parameters()
        trained = {id(variable) for variable in parameters}
        others = [v for v in evaluation.variables if id(v) not in trained]
        now, kept, found = _values(parameters), _values(others), []
        if self._move is None:
            self._move = _moving(parameters)
        try:
            for e in at:
                part = 1.0 + e
                # From the nearer end, where the sum is exact.
                ends = (before, after, part) if part < 0.5 else (after, before, 1.0 - part)
                self._move(*ends[:2], tf.constant(ends[2], tf.float64))
                found.append(evaluation())
                _put(others, kept)
        finally:
            _put(parameters, now)
            _put(others, kept)
        return found

    def _parameters(self) -> list[Any]:
        return [plain(variable) for variable in self._optimizer._trainable_variables]

    def _updates(self) -> int:
        return int(plain(self._optimizer.iterations).numpy())


def example_of(spec: Any) -> Any:

    def zeros(leaf: Any) -> Any:
        return tf.zeros([1 if size is None else size for size in leaf.shape], leaf.dtype)

    return tf.nest.map_structure(zeros, spec)


def _moving(variables: Sequence[Any]) -> Any:

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def move(begin: list[Any], end: list[Any], part: Any) -> None:
        for variable, one, other in zip(variables, begin, end, strict=True):
            variable.assign(one + tf.cast(part, one.dtype) * (other - one))

    return move


def _values(variables: Sequence[Any]) -> list[Any]:
    return [variable.read_value() for variable in variables]


def _put(variables: Sequence[Any], values: Sequence[Any]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def _tensor(value: Any) -> Any:
    return value if isinstance(value, NOT_DENSE) else tf.convert_to_tensor(value)


def _spec(tensor: Any) -> Any:
    """Return the `tf.TensorSpec` of `tensor` with None for the first dimension, the samples."""
    if isinstance(tensor, NOT_DENSE):
        return tf.type_spec_from_value(tensor)
    shape = tensor.shape
    return tf.TensorSpec([None, *shape[1:]] if shape.rank else shape, tensor.dtype)


def _refuse_operations(graph: Any) -> None:
    """Refuse the `graph` of a loss if it has operations that cannot be repeated."""
    # A worker that has not made the update evaluates no loss, so others would wait for it in a
    # collective. The variable of a tf.random.Generator is not among the graph's.
    definition = graph.graph.as_graph_def()
    for kind in kinds_of(definition):
        if kind.startswith("Horovod"):
            refuse(f"the loss has {kind} in it, which waits for workers that do not evaluate it")
    for kind in drawing_kinds(definition):
        refuse(
            f"the loss draws random numbers by {kind}, which cannot draw the same ones at each "
            "learning rate; use keras.random, or a layer of Keras"
        )


def kinds_of(definition: Any) -> list[str]:
    """Return the kinds of all operations in a graph, a `GraphDef`, and in its functions."""
    functions = definition.library.function
    nodes = [*definition.node, *(node for each in functions for node in each.node_def)]
    return sorted({node.op for node in nodes})


def drawing_kinds(definition: Any) -> list[str]:
    """Return the kinds of random operations in a graph whose state cannot be set from outside."""
    found = []
    for kind in kinds_of(definition):
        known = op_def_registry.get(kind)
        if (known is not None and known.is_stateful and _has_seed(known)) or kind.startswith("Rng"):
            found.append(kind)
    return found


def _has_seed(definition: Any) -> bool:
    return any(each.name == "seed2" for each in definition.attr)
