"""Share what the callbacks of a ``fit`` remember, by :class:`CallbackStates`.

Newcomers and checkpoints get the states. A callback with ``state_dict()`` and ``load_state_dict()``
says itself what it remembers. Any other callback remembers the attributes that have changed since
its first ``fit`` began, if they are data (:mod:`values`). An attribute that a constructor has set
and training has not changed keeps the value of the script, also in a job that is resumed with other
settings. The model, functions and open files are not data. For other objects each worker keeps its
own value, and a log message says so.
"""

from __future__ import annotations

import io
import logging
import weakref
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.callbacks.monitor_callback import MonitorCallback

from edl.binding.replica import Trackable
from edl.checkpoint.tensors import can_hold
from edl.errors import UsageError
from edl.tensorflow.variables import bytes_of, plain, tensor_array_of, variables_of
from edl.worker.worker import Worker

logger = logging.getLogger(__name__)


# ------------------------------------------------------------
# Convert the values of attributes to data that can be sent, and back, and compare them.
#
# `taken` and `restored_value` convert, `value_fingerprint` compares. Data are None, booleans,
# numbers, text, bytes, numpy arrays and scalars, TensorFlow's tensors, and lists, tuples, dicts,
# sets and deques of these. Of an object that has variables (a `tf.Variable`, a metric, a model),
# the values of the variables are sent, and are assigned to the variables of the object that the
# receiver has in its place.


PLAIN = (type(None), bool, int, float, str, bytes)

_CONTAINERS: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "deque": deque}

SMALL_BYTES = 2**20

NUMBERS = "biufc"  # kinds of arrays; of others those that TensorFlow has, as bfloat16


class NoData(Exception):
    """The error for a value that cannot be sent; its text is the type of the value."""


def taken(value: Any) -> Any:
    """Return a copy as plain data: values of `PLAIN`, arrays, or a dict of one item by its kind."""
    value = plain(value)
    if type(value) in PLAIN:
        return value
    if isinstance(value, (np.generic, np.ndarray)):
        if value.dtype.kind not in NUMBERS and not hasattr(tf, value.dtype.name):
            raise NoData(f"an array of {value.dtype}")
        array = np.asanyarray(value)
        if tensor_array_of(array) is None and not can_hold(array):
            raise NoData(f"a {type(value).__name__} of {value.dtype}")
        return value.copy() if isinstance(value, np.ndarray) else {"scalar": np.asarray(value)}
    if isinstance(value, tf.Tensor) and hasattr(value, "numpy") and value.dtype != tf.string:
        return {"tensor": value.numpy()}
    if isinstance(value, dict):
        return {"dict": [[taken(key), taken(item)] for key, item in value.items()]}
    for kind, container in _CONTAINERS.items():
        if isinstance(value, container) and not hasattr(value, "_fields"):
            items = sorted(value, key=repr) if kind == "set" else value
            return {kind: [taken(item) for item in items]}
    variables = variables_of(value) if not isinstance(value, type) else None
    if variables is None:
        raise NoData(type(value).__name__)
    return {"variables": [np.asarray(plain(each).numpy()) for each in variables]}


def restored_value(stored: Any, mine: Any) -> Any:
    """Return the value of `stored` to replace `mine`, which stays the same object if it can."""
    if not isinstance(stored, dict):
        return stored.copy() if isinstance(stored, np.ndarray) else stored
    ((kind, items),) = stored.items()
    if kind == "scalar":
        return np.asarray(items)[()]
    if kind == "tensor":
        return tf.constant(items)
    if kind == "variables":
        for variable, value in zip(variables_of(plain(mine)) or [], items, strict=False):
            plain(variable).assign(value)
        return mine
    if kind == "dict":
        return _put_dict(items, mine)
    old = list(mine) if isinstance(mine, (list, tuple)) and len(mine) == len(items) else None
    new = [restored_value(item, old[i] if old else None) for i, item in enumerate(items)]
    if kind == "tuple" or not isinstance(mine, _CONTAINERS[kind]):
        return _CONTAINERS[kind](new)
    mine.clear()
    if kind == "set":
        mine.update(new)
    else:
        mine.extend(new)
    return mine


def _put_dict(items: list[Any], mine: Any) -> Any:
    old = dict(mine) if isinstance(mine, dict) else {}
    keys = [restored_value(key, None) for key, _ in items]
    new = {
        key: restored_value(item, old.get(key)) for key, (_, item) in zip(keys, items, strict=True)
    }
    if not isinstance(mine, dict):
        return new
    mine.clear()
    mine.update(new)
    return mine


def value_fingerprint(stored: Any) -> Any:
    """Return a small value that is equal for equal values of `stored`."""
    if isinstance(stored, np.ndarray):
        return ("array", stored.dtype.name, stored.shape, zlib.crc32(bytes_of(stored).data))
    if isinstance(stored, dict):
        return {kind: value_fingerprint(items) for kind, items in stored.items()}
    if isinstance(stored, list):
        return [value_fingerprint(item) for item in stored]
    return repr(stored)  # nan is equal to itself here


def is_small(stored: Any) -> bool:
    return sum(array.nbytes for array in _arrays(stored)) <= SMALL_BYTES


def _arrays(stored: Any) -> list[np.ndarray[Any, Any]]:
    if isinstance(stored, np.ndarray):
        return [stored]
    if isinstance(stored, dict):
        stored = list(stored.values())
    items = stored if isinstance(stored, list) else ()
    return [array for item in items for array in _arrays(item)]


NAME = "Keras callbacks"  # among the tracked objects; no keyword of edl.track can be that

_KEPT_OUT = {"_model", "model", "params"}

_MISSING: Any = object()


class _Memory:
    """A memory of one callback, over all its fits: it reads and restores the callback's state."""

    def __init__(self, callback: Any, model: Any) -> None:
        self._of = weakref.ref(callback)
        self.name = type(callback).__name__
        self.is_of(model)
        self._first: dict[str, Any] = {}  # but for large ones
        self._prints: dict[str, Any] = {}
        self._objects: dict[str, Any] = {}  # what is no data
        self._warned: set[str] = set()
        if not isinstance(callback, Trackable):
            for name, value in self._attributes():
                self._objects[name] = value
                if (stored := self._taken(name, value)) is _MISSING:
                    continue
                self._prints[name] = value_fingerprint(stored)
                if is_small(stored):
                    self._first[name] = stored

    @property
    def callback(self) -> Any:
        """The callback whose state this is; None if it is deleted."""
        return self._of()

    def is_of(self, model: Any) -> None:
        """Set the model of the callback's fit, whose variables are no part of its state."""
        self._models = {id(plain(each)) for each in variables_of(model) or []}

    def state(self) -> Any:
        """Return its `state_dict()`, or its attributes that changed since its first fit began."""
        if isinstance(self.callback, Trackable):
            return self.callback.state_dict()
        stored = {name: self._taken(name, value) for name, value in self._attributes()}
        return {
            name: value
            for name, value in stored.items()
            if value is not _MISSING
            and value_fingerprint(value) != self._prints.get(name, _MISSING)
        }

    def load(self, state: Any) -> None:
        if isinstance(self.callback, Trackable):
            self.callback.load_state_dict(state)
            return
        # What has not changed there gets its first value again, but for large ones.
        for name, stored in {**self._first, **state}.items():
            if (
                not isinstance(stored, dict)
                or "variables" not in stored
                or hasattr(self.callback, name)
            ):
                setattr(self.callback, name, self._put(name, stored))

    def _attributes(self) -> list[tuple[str, Any]]:
        return [pair for pair in vars(self.callback).items() if pair[0] not in _KEPT_OUT]

    def _taken(self, name: str, value: Any) -> Any:
        """Return an attribute as plain data; `_MISSING`: it is no part of the callback's state."""
        if isinstance(self.callback, MonitorCallback) and name == "min_delta":
            value = abs(value)  # it has the sign of the direction once this is known
        if self._is_of_the_model(value):
            return _MISSING
        try:
            return taken(value)
        except NoData as what:
            self._warn_once(name, value, what)
            return _MISSING

    def _put(self, name: str, stored: Any) -> Any:
        mine = restored_value(stored, getattr(self.callback, name, None))
        if isinstance(self.callback, MonitorCallback) and name == "min_delta":
            return -mine if self.callback.monitor_op is keras.ops.less else mine
        return mine

    def _is_of_the_model(self, value: Any) -> bool:
        """Return whether `value` is the model, or layers or weights of it, alone or in a list."""
        if isinstance(value, PLAIN):
            return False
        if isinstance(value, (list, tuple)) and value:
            return all(self._is_of_the_model(each) for each in value)
        found = variables_of(plain(value))
        return bool(found) and self._models.issuperset(id(plain(each)) for each in found or [])

    def _warn_once(self, name: str, value: Any, what: NoData) -> None:
        """Log once that each worker keeps its own value of an attribute, if training has set it."""
        # The text of `what` is the type that cannot be sent.
        expected = callable(value) or isinstance(value, (io.IOBase, logging.Logger))
        if expected or name in self._warned or self._objects.get(name, _MISSING) is value:
            return
        self._warned.add(name)
        logger.warning(
            "%s.%s is of type %s and does not follow the job: each worker has its own; if that is "
            "wrong, give the class state_dict() and load_state_dict()",
            self.name,
            name,
            what,
        )


class CallbackStates:
    """The states of all callbacks of a `fit`, for newcomers and checkpoints; one for all fits."""

    edl_compared = False  # a callback may remember times and other numbers of its worker's own

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._callbacks: list[Any] = []
        self._known: dict[int, _Memory] = {}  # by id of the callback, over all fits
        self._memories: list[_Memory | None] = []
        self._names: list[str] = []
        self.verbose: Any = 0  # of the job's `fit`: 0, 1 or 2
        self.begun = -1  # Keras' newest epoch in this fit whose `on_epoch_begin` was called
        self.received: dict[str, Any] = {}  # what `load_state_dict` was given last
        self.told_verbose: Callable[[Any], None] = lambda _verbose: None  # of the job

    def follow(self, callbacks: Sequence[Any], remembers: Sequence[bool], model: Any) -> None:
        """Hold the states of the callbacks of a new fit, in place of those of the last fit."""
        # Of one that does not remember only the class is compared between workers.
        self._callbacks = list(callbacks)
        self._names = [type(callback).__name__ for callback in callbacks]
        self._memories = [
            self._memory_of(callback, model) if kept else None
            for callback, kept in zip(callbacks, remembers, strict=True)
        ]
        self.begun = -1

    def _memory_of(self, callback: Any, model: Any) -> _Memory:
        memory = self._known.get(id(callback))
        if memory is None:
            self._known[id(callback)] = memory = _Memory(callback, model)
            weakref.finalize(callback, self._known.pop, id(callback), None)
        memory.is_of(model)
        return memory

    def state_dict(self) -> dict[str, Any]:
        return {
            "names": list(self._names),
            "states": [memory.state() if memory else None for memory in self._memories],
            "verbose": self.verbose,
            "begun": self.begun,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        # Of a checkpoint, whose script may have had other callbacks: nobody else has sent it.
        saved = self._worker.steps.state_source == self._worker.id
        if not saved and state["names"] != self._names:
            self._refuse(state["names"])
        if self._worker.warming_up or not saved:
            self.verbose = state["verbose"]
            self.told_verbose(self.verbose)
        self.begun, self.received = int(state["begun"]), state
        theirs = list(zip(state["names"], state["states"], strict=True))
        for name, memory in zip(self._names, self._memories, strict=True):
            found = next((pair for pair in theirs if pair[0] == name), None)
            if found is None:
                logger.info("the checkpoint has no state of %s, which starts afresh", name)
                continue
            theirs.remove(found)
            if memory is not None and found[1] is not None:
                memory.load(found[1])

    def _refuse(self, theirs: Sequence[str]) -> None:
        """Raise UsageError on a newcomer that has other callbacks; else the whole job fails."""
        mine, worker = self._names, self._worker
        here = _without(mine, theirs)
        there = _without(theirs, mine)
        if here:
            what = f"only w{worker.id} was given {here[0]}"
        elif there:
            what = f"w{worker.id} was not given {there[0]}"
        else:
            what = f"w{worker.id} has them in the order {', '.join(mine)}"
        sentence = (
            f"the Keras callbacks differ between workers: {what}, unlike the others; give it to "
            "all workers, in the same order; edl lets only rank 0 write"
        )
        if worker.warming_up:
            raise UsageError(sentence)
        worker.checkpointing.fail(sentence)


def _without(names: Sequence[str], others: Sequence[str]) -> list[str]:
    """Return a copy of `names` without `others`; each of these removes one equal name."""
    left = list(names)
    for name in others:
        if name in left:
            left.remove(name)
    return left
