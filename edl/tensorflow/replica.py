"""The state that all workers share: variables and tracked objects, sent to newcomers and saved.

How it travels: :mod:`edl.tensorflow.transfer`. Here all of it is numpy arrays by variable path.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from edl.daemon.checkpoint_file import Blob
from edl.daemon.position import Receive
from edl.errors import CheckpointError, UsageError
from edl.framework.process import Stateful
from edl.framework.state import few, map_leaves
from edl.ring.ring import Ring
from edl.tensorflow.transfer import array_of, bytes_of, dtype_of, exchange
from edl.tensorflow.variables import (
    Access,
    Array,
    EagerAccess,
    differences,
    named,
    variables_of,
)

KIND = "tensorflow"


class TensorFlowReplica:
    """Variables and tracked objects of this process.

    Args:
        kind: the optimizer's, for checkpoints.
        model: the model's variables, asked for each time: they may be created late.
        optimizer: the same for the optimizer's; the learning rate is among them.
    """

    framework = "tensorflow"

    def __init__(
        self, kind: str, model: Callable[[], list[Any]], optimizer: Callable[[], list[Any]]
    ) -> None:
        self._kind = kind
        self._model = model
        self._optimizer = optimizer
        self._tracked: dict[str, Any] = {}
        self.access: Access = EagerAccess()

    def track(self, objects: dict[str, Any]) -> None:
        """Let more objects follow the job.

        Raises:
            UsageError: an object cannot give and take its state, or the name is taken.
        """
        self.check(objects)
        for name, thing in objects.items():
            if self._tracked.get(name, thing) is not thing:
                raise UsageError(f"edl.track({name}=...): another object is tracked as {name}")
            self._tracked[name] = thing

    @staticmethod
    def check(objects: dict[str, Any]) -> None:
        """Raise UsageError for an object that cannot give and take its state."""
        for name, thing in objects.items():
            if not isinstance(thing, Stateful) and variables_of(thing) is None:
                raise UsageError(
                    f"edl.track({name}=...): a {type(thing).__name__} has neither variables nor "
                    "state_dict() and load_state_dict()"
                )

    def synchronise(self, ring: Ring, root: int, receive: Receive) -> None:
        """See :class:`edl.daemon.switching.Replica`.

        Raises:
            RingBroken: a worker is gone; a receiver's state is then undefined.
            UsageError: the receiver's variables or tracked objects are others than the job's.
        """
        if ring.alone:
            return
        sending = ring.place.rank == root
        keep = receive is not Receive.NOTHING and not sending
        state = exchange(ring, root, self._state() if sending else None, keep)
        if keep:
            self._load(state, receive)

    def capture(self) -> Any:
        """See :class:`edl.daemon.checkpoint.Durable`."""
        return map_leaves({**self._state(), "optimizer_kind": self._kind}, _to_blob)

    def restore(self, state: Any) -> None:
        """See :class:`edl.daemon.checkpoint.Durable`."""
        if state["optimizer_kind"] != self._kind:
            raise CheckpointError(
                f"the checkpoint is of a job with {state['optimizer_kind']}, and this script "
                f"trains with {self._kind}"
            )
        loaded = map_leaves(state, _from_blob)
        if odd := sorted(self._things().keys() ^ loaded["tracked"].keys()):
            raise CheckpointError(
                f"edl.track: only one of checkpoint and script tracks {', '.join(odd)}"
            )
        try:
            self._load(loaded, Receive.ALL)
        except (UsageError, ValueError, KeyError, tf.errors.OpError) as error:
            raise CheckpointError(f"the checkpoint does not fit this script: {error}") from error

    def _things(self) -> dict[str, Stateful]:
        return {name: x for name, x in self._tracked.items() if variables_of(x) is None}

    def variables(self) -> dict[str, dict[str, Any]]:
        """What is shared: the variables of the model and those of the optimizer, by name.

        Raises:
            UsageError: the model has none (yet).
        """
        optimizer = self._optimizer()
        model = named(self._model())
        for name, thing in self._tracked.items():
            model |= named(variables_of(thing) or [], f"{name}/")
        if not model:
            raise UsageError(
                "edl knows no variables of the model: build it before training begins, and name "
                "it: edl.Optimizer(optimizer, model)"
            )
        return {"model": model, "optimizer": named(optimizer)}

    def _state(self) -> dict[str, Any]:
        groups = self.variables()
        flat = [variable for group in groups.values() for variable in group.values()]
        values = iter(self.access.read(flat))
        state: dict[str, Any] = {
            group: {name: next(values) for name in variables} for group, variables in groups.items()
        }
        state["tracked"] = {name: thing.state_dict() for name, thing in self._things().items()}
        return state

    def _load(self, state: dict[str, Any], receive: Receive) -> None:
        values: list[tuple[Any, Array]] = []
        for group, mine in self.variables().items():
            if odd := differences(mine, state[group]):
                raise UsageError(f"this worker's {group} differs from the job's: {few(odd)}")
            for name, variable in mine.items():
                # The learning rate belongs to the script's place in its loop, and what this
                # script does with it at the end of the step is yet to come.
                if receive is Receive.STEP and group == "optimizer" and name.endswith(
                    "/learning_rate"
                ):  # fmt: skip
                    continue
                values.append((variable, state[group][name]))
        self.access.write(values)
        if receive is Receive.STEP:
            return
        things = self._things()
        if odd := sorted(things.keys() ^ state["tracked"].keys()):
            raise UsageError(f"edl.track: only some workers track {', '.join(odd)}")
        for name, thing_state in state["tracked"].items():
            things[name].load_state_dict(thing_state)


def _to_blob(value: Any, where: str) -> Any:
    array = array_of(value)
    if array is None:
        return value
    if array.dtype.hasobject:
        raise CheckpointError(f"{where} is an array of {array.dtype}, which is not supported")
    return Blob(KIND, array.dtype.name, array.shape, bytes_of(array.copy()).data)


def _from_blob(value: Any, where: str) -> Any:
    if not isinstance(value, Blob):
        return value
    try:
        return np.frombuffer(value.data, dtype=dtype_of(value.dtype)).reshape(value.shape)
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"{where} is a {value.kind} array of {value.dtype}, which this TensorFlow does not know"
        ) from error
