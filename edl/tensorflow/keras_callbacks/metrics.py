"""Keras' metrics of an epoch, over the samples of all workers.

The state of a Keras metric is a sum over the batches, or several sums (a total and a count, a
matrix of confusions, true positives by threshold), and its result is computed from them. So at the
end of an epoch the workers add up their states, and Keras computes the job's result of that, the
same on all: History, callbacks and logs have the numbers that one process would have. Batches for
padding are taken back out of a state.

A metric of the user's own may keep something else, a maximum for example. It counts as a sum if its
``update_state`` only adds: by ``assign_add``, by ``v.assign(v + ...)``, or by metrics inside of it
(:mod:`edl.tensorflow.keras_callbacks.additive`).
Of any other the job's result is the mean of the workers' results, weighted with their samples,
which is said once; the attribute ``edl_additive`` of its class overrules that.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from edl.core.step.mean import weighted_means
from edl.daemon.worker import Worker
from edl.errors import UsageError
from edl.tensorflow.keras_callbacks.additive import is_additive

logger = logging.getLogger(__name__)

UNKNOWN = (
    "the state of the metric %s may be no sum over the batches, so the job's result of an epoch is "
    "the mean of the workers' results; if it is one, set edl_additive = True in its class"
)

State = list[Any]


class EpochMetrics:
    """The metrics of a model that is fitted."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._before: State | None = None  # a batch for padding
        self._told: set[str] = set()  # metrics that are no sums
        self._replaced: list[Any] = []  # metrics whose result is the job's mean for now

    def begin_padding(self) -> None:
        """Remember the states: the batch that comes counts for nothing."""
        self._before = _read(self._variables())

    def end_batch(self) -> None:
        """Take a batch for padding out of the states."""
        before, self._before = self._before, None
        variables = self._variables()
        for variable, value in zip(variables, before or (), strict=False):
            variable.assign(value)
        for variable in variables[len(before or ()) :] if before is not None else ():
            variable.assign(np.zeros(variable.shape, variable.dtype))  # this batch has built it

    def combine(self, worker: Worker, samples: int) -> frozenset[str]:
        """Let the metrics have the states of all workers together, until they are reset.

        All workers call it between two steps, after the last one of the epoch.

        Args:
            samples: of this worker in the epoch.

        Returns:
            The names of the numbers that Keras makes of them.

        Raises:
            UsageError: the metrics of another worker are others.
        """
        self.restore()
        metrics = _leaves(self._model.metrics)
        sums = [metric for metric in metrics if is_additive(metric)]
        variables = [variable for metric in sums for variable in metric.variables]
        state = [value.astype(_wide(value.dtype)) for value in _read(variables)]
        added = _added(worker.exchange_bytes(b"".join(value.tobytes() for value in state)), state)
        for variable, value in zip(variables, added, strict=True):
            variable.assign(value.astype(_numpy_type(variable)))
        for metric in metrics:
            if not any(metric is one for one in sums):
                self._take_mean(metric, worker, samples)
        return frozenset(self._model.get_metrics_result())

    def hand_over(self, worker: Worker, leaving: frozenset[int]) -> None:
        """Let the first worker that stays have what the workers that leave have added up.

        All workers of the ring call it between two steps.
        """
        sums = [metric for metric in _leaves(self._model.metrics) if is_additive(metric)]
        variables = [variable for metric in sums for variable in metric.variables]
        state = [value.astype(_wide(value.dtype)) for value in _read(variables)]
        mine = b"".join(value.tobytes() for value in state)
        members = worker.loader.progress.members
        payloads = worker.exchange_bytes(mine if worker.id in leaving else b"")
        heir = next(member for member in members if member not in leaving)
        if worker.id == heir:
            handed = [payload for payload in payloads if payload]
            for variable, value in zip(variables, _added([mine, *handed], state), strict=True):
                variable.assign(value.astype(_numpy_type(variable)))

    def restore(self) -> None:
        """Let each metric compute its own result again."""
        for metric in self._replaced:
            del metric.result
        self._replaced.clear()

    def _take_mean(self, metric: Any, worker: Worker, samples: int) -> None:
        """Let the result of a metric that is no sum be the mean over the workers."""
        if metric.name not in self._told:
            self._told.add(metric.name)
            if worker.rank == 0 and worker.is_shared:
                logger.warning(UNKNOWN, metric.name)
        own = metric.result()
        parts = own if isinstance(own, dict) else {"": own}
        arrays = {name: np.asarray(value, np.float64) for name, value in parts.items()}
        row = np.concatenate([each.ravel() for each in arrays.values()]).tolist()
        means = iter(weighted_means(worker.exchange([samples, *row])))
        found: dict[str, Any] = {}
        for name, array in arrays.items():
            values = [next(means) for _ in range(array.size)]
            found[name] = np.array(values, np.float32).reshape(array.shape)
        metric.result = lambda: found if isinstance(own, dict) else found[""]
        self._replaced.append(metric)

    def _variables(self) -> list[Any]:
        return [v for metric in _leaves(self._model.metrics) for v in metric.variables]


def _leaves(metrics: Iterable[Any]) -> list[Any]:
    """Return the metrics themselves, in the place of what holds several (compile's)."""
    found: list[Any] = []
    for metric in metrics:
        inner = getattr(metric, "metrics", None)
        found += _leaves(inner) if inner is not None else [metric]
    return found


def _read(variables: Sequence[Any]) -> State:
    return [np.asarray(variable) for variable in variables]


def _wide(kind: Any) -> Any:
    """Return the type in which states of this type are added: exact for integers."""
    return np.int64 if np.issubdtype(kind, np.integer) or kind == np.bool_ else np.float64


def _numpy_type(variable: Any) -> Any:
    return np.asarray(variable).dtype


def _added(payloads: Sequence[bytes], like: State) -> State:
    """Return the sums of states over the workers.

    Raises:
        UsageError: they are of different sizes.
    """
    if len({len(payload) for payload in payloads}) > 1:
        raise UsageError(
            "the metrics of the workers have states of different sizes; compile the model with the "
            "same metrics on all of them"
        )
    total = [np.zeros_like(value) for value in like]
    for payload in payloads:
        at = 0
        for value in total:
            part = np.frombuffer(payload, value.dtype, value.size, at)
            value += part.reshape(value.shape)
            at += value.nbytes
    return total
