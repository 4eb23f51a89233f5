"""The functions of ``edl.tensorflow`` that know TensorFlow.

The others are :mod:`edl.framework.process`.
"""

from __future__ import annotations

from typing import Any

from edl.errors import EdlError
from edl.framework import metrics, process
from edl.tensorflow import tape, training
from edl.tensorflow.batch_norm import synchronise_batch_norm
from edl.tensorflow.collectives import TensorFlowCollectives
from edl.tensorflow.loss import watch_losses
from edl.tensorflow.replica import TensorFlowReplica
from edl.tensorflow.variables import CREATED

# AutoGraph lets such an error pass as it is, and writes nothing around its sentence.
EdlError.ag_pass_through = True  # type: ignore[attr-defined]
EdlError._keras_call_info_injected = True  # type: ignore[attr-defined]  # nor does Keras


def init(**settings: Any) -> None:
    """Take part in the job that the launcher started this process for.

    Without a launcher the script is a job of one worker. In a job that is already training the
    call returns at once and the script *warms up*: its first batch counts for nothing.
    A second call does nothing. ``settings``: fields of :class:`edl.config.Config`.

    Raises:
        ConfigError: a setting has no usable value.
        CoordinationError: ZooKeeper or the job is not there.
        JobFailed: the job did not start in time.
    """
    process.start(TensorFlowCollectives, settings)
    CREATED.watch()
    tape.watch()
    synchronise_batch_norm()
    watch_losses()


def track(**objects: Any) -> None:
    """Let objects follow the job: their state reaches every newcomer.

    Each has variables (``tf.Variable``, ``tf.Module``, a Keras layer, a list of variables), or
    ``state_dict()`` and ``load_state_dict()``.

    Raises:
        UsageError: an object has neither.
    """
    process.track(TensorFlowReplica.check, objects)


def step() -> int:
    """How many optimizer updates the job has made, the one that was applied last included."""
    return process.step() + int(training.current().has_made_update)


def mean(value: Any, weight: float | None = None) -> Any:
    """See :func:`edl.framework.metrics.mean`. The update that was applied last is complete."""
    if process.current_worker().loader.open:
        training.current().finish_step()
    return metrics.mean(value, weight)
