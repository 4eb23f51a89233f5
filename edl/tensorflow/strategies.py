"""Refuse ``tf.distribute`` strategies, which would distribute a worker's training a second time.

A strategy splits each batch over its replicas, and reads its data sets ahead of the step into
buffers on devices. Both break the order in which batches leave an ``edl.Dataset``, and a step would
wait for a batch that was never handed out. The default strategy, that of a script which names none,
does neither and is allowed.
"""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import distribute_lib

from edl.errors import UsageError


def refuse_strategy(strategy: Any = None) -> None:
    """Refuse any strategy but TensorFlow's default one; None: that of the present scope."""
    strategy = tf.distribute.get_strategy() if strategy is None else strategy
    if not _is_default(strategy):
        raise UsageError(
            f"tf.distribute.{type(strategy).__name__} distributes the training over its own "
            "replicas, and edl distributes it over the workers of the job; leave out "
            "`with strategy.scope():`, strategy.run and experimental_distribute_dataset: each "
            "worker trains on one device, which edl.local_rank() numbers"
        )


@functools.cache
def watch_strategies(kind: type) -> None:
    # Keras' `fit` distributes its data set in the scope of a strategy.
    plain = distribute_lib.StrategyBase.experimental_distribute_dataset

    @functools.wraps(plain)
    def method(self: Any, dataset: Any, options: Any = None) -> Any:
        if isinstance(dataset, kind):
            refuse_strategy(self)
        return plain(self, dataset, options)

    distribute_lib.StrategyBase.experimental_distribute_dataset = method


def _is_default(strategy: Any) -> bool:
    kinds = (
        distribute_lib._DefaultDistributionStrategy,
        distribute_lib._DefaultDistributionStrategyV1,
    )
    return isinstance(strategy, kinds)
