"""Train TensorFlow models elastically on Horovod: the public names of ``edl.tensorflow``.

A script with a training loop of its own::

    import edl.tensorflow as edl
    edl.init()
    dataset = edl.Dataset((images, labels), batch_size=32, shuffle=True)
    optimizer = edl.Optimizer(tf.keras.optimizers.SGD(0.1), model)
    for epoch in dataset.epochs(10):
        for x, y in dataset:
            train_step(x, y)      # a tf.function; it ends with optimizer.apply_gradients(...)

The batch size is that of one worker. Keras' ``fit`` (:class:`KerasCallback`) and graphs
(:class:`Session`) work too; docs/guides/tensorflow.md has all three. The loss must be a mean over
the batch. A process has one worker and one data source.

A script written for Horovod Elastic needs no more than ``import edl.tensorflow as hvd`` (or
``edl.tensorflow.keras``) in place of Horovod's import; see docs/guides/horovod-scripts.md and
:mod:`edl.tensorflow.horovod_names`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import edl.binding.needs_horovod  # noqa: F401 - before the others
from edl import data, schedules
from edl.binding.api import absent, batch_weight, log, on_interval, policy
from edl.binding.process import (
    checkpoint,
    current_worker,
    generation,
    is_initialized,
    is_leader,
    is_warming_up,
    leader,
    local_rank,
    num_processes,
    on_resize,
    rank,
    shutdown,
    size,
)
from edl.tensorflow import elastic, horovod_names
from edl.tensorflow.api import gather, init, mean, step, sum, track
from edl.tensorflow.dataset import Dataset
from edl.tensorflow.fit import KerasCallback
from edl.tensorflow.horovod_names import *  # noqa: F403 - for scripts written for Horovod
from edl.tensorflow.horovod_names import DistributedGradientTape
from edl.tensorflow.lr_schedules import LRSchedule
from edl.tensorflow.optimizer import Optimizer
from edl.tensorflow.replica import load_weights

__all__ = [
    "Dataset",
    "DistributedGradientTape",
    "KerasCallback",
    "LRSchedule",
    "LRTuner",
    "Optimizer",
    "Session",
    "SessionHook",
    "batch_weight",
    "checkpoint",
    "current_worker",
    "data",
    "diagnose",
    "elastic_shard_generator",
    "gather",
    "generation",
    "init",
    "is_initialized",
    "is_leader",
    "is_warming_up",
    "leader",
    "load_weights",
    "local_rank",
    "log",
    "mean",
    "next_batch",
    "notify_batch_end",
    "num_processes",
    "on_interval",
    "on_resize",
    "policy",
    "rank",
    "schedules",
    "shutdown",
    "size",
    "step",
    "sum",
    "track",
]
__all__ += ["elastic", *(name for name in horovod_names.__all__ if name not in __all__)]

if TYPE_CHECKING:
    from edl.contrib import tensorflow_balance as diagnose
    from edl.contrib.tensorflow_lr_tuner import LRTuner
    from edl.contrib.tensorflow_session import (
        Session,
        SessionHook,
        elastic_shard_generator,
        next_batch,
        notify_batch_end,
    )
else:  # for a type checker, every name would be one of this module's
    __getattr__ = absent(
        __name__,
        {
            "LRTuner": "edl.contrib.tensorflow_lr_tuner:LRTuner",
            "diagnose": "edl.contrib.tensorflow_balance",
            "Session": "edl.contrib.tensorflow_session:Session",
            "SessionHook": "edl.contrib.tensorflow_session:SessionHook",
            "elastic_shard_generator": "edl.contrib.tensorflow_session:elastic_shard_generator",
            "next_batch": "edl.contrib.tensorflow_session:next_batch",
            "notify_batch_end": "edl.contrib.tensorflow_session:notify_batch_end",
        },
    )
