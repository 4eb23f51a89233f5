"""Let ``model.fit`` of an unchanged Horovod script take part in the job: :func:`replace_fit`.

The data set that it is given is replaced by edl's (:mod:`edl.transparent.input_pipeline`), and
``edl.KerasCallback`` is added. In the script the process of rank 0 often has further callbacks and
another ``verbose``; the others get these here, so that the next rank 0 goes on with the files of
the one before. Only rank 0 writes (:mod:`edl.tensorflow.keras_callbacks.writers`), and only rank 0
calls a callback of the script's own that other processes get here.
"""

from __future__ import annotations

import functools
import inspect
import logging
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle
import keras
import tensorflow as tf

import edl.tensorflow
from edl.binding import process
from edl.errors import UsageError
from edl.tensorflow.keras_callbacks.writers import has_writer, mark_as_sent
from edl.tensorflow.optimizer import is_elastic
from edl.transparent.input_pipeline import InputPipelines, undivided
from edl.transparent.script import ScriptExchange

logger = logging.getLogger(__name__)

MOST = 2**13  # bytes of a callback that is sent to the other processes
ARRAYS = (
    "model.fit was given arrays, and a process that comes later could not tell which of their "
    "samples are whose; with --transparent give it a data set: "
    "tf.data.Dataset.from_tensor_slices((x, y)).shard(hvd.size(), hvd.rank()).shuffle(len(x))"
    ".batch(n), made of the whole arrays on all ranks"
)
NO_NUMBERS = (
    "model.fit was given {what}, whose samples have no numbers, so edl cannot divide them among "
    "processes that come and go; with --transparent give it a tf.data.Dataset that begins with "
    "from_tensor_slices(arrays); or change the script to edl.tensorflow, whose edl.Dataset also "
    "reads single samples by their numbers (docs/get-started/from-horovod.md)"
)
OWN_CALLBACKS = (
    "this process gives model.fit the callback {name}, and rank 0 does not; callbacks may be of "
    "all ranks, or of rank 0"
)
NOT_SENT = (
    "the callback {name} is on rank 0 only, and cannot be sent to the other processes ({why}); "
    "make it on all ranks: {then}"
)
ONE_WRITES = "edl lets one of them write"
ALL_ARE_CALLED = "edl calls it on each of them, so let it ask hvd.rank() == 0 before it writes"


class KerasScript:
    """The fits of this process's script."""

    def __init__(self) -> None:
        self.exchanges = ScriptExchange()
        self.pipelines = InputPipelines(self.exchanges)
        # of the last fit: the callbacks and what was sent of each; what this process gave to it
        self._found: list[Any] = []
        self._sent: list[tuple[str, bytes | None, str]] = []
        self._given: Any = None
        self._message = self._answer = b""  # of this process, and of rank 0
        self._had_all = True  # the callbacks of rank 0 were this process's own

    def arguments(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments with which Keras' `fit` trains as a worker of the job."""
        if given.get("y") is not None or not isinstance(given.get("x"), tf.data.Dataset):
            raise UsageError(_refusal(given.get("x")))
        data = self.pipelines.elastic(given["x"], given.pop("steps_per_epoch", None))
        validation, steps = undivided(given.get("validation_data"), given.get("validation_steps"))
        callbacks, verbose = self._agreed(given.get("callbacks"), given.get("verbose", "auto"))
        own = {"x": data, "callbacks": callbacks, "verbose": verbose}
        return {**given, **own, "validation_data": validation, "validation_steps": steps}

    def _agreed(self, callbacks: Any, verbose: Any) -> tuple[list[Any], Any]:
        """Return the callbacks of rank 0 of this `fit`, and its `verbose`."""
        own = _flat(callbacks)
        given = verbose, [type(one).__name__ for one in own]
        # As in the last fit, the script gives not all of rank 0: this may be a new rank 0, which it
        # takes for another rank. Then the callbacks of the last fit stay.
        goes_on = not self._had_all and given == self._given
        sent = [self._packed_again(one) or _packed(one) for one in own]
        message = pickle.dumps((verbose, sent))
        # Only what has changed is sent: all messages of a job have little room.
        is_known = goes_on or message in (self._message, self._answer)
        answer = self.exchanges.known(b"" if is_known else message)[0]
        self._message = message
        self.exchanges.has_trained = True
        self._answer = answer or self._answer
        verbose, self._sent = pickle.loads(self._answer)
        self._given = given
        self._had_all = given == (verbose, [name for name, _, _ in self._sent])
        self._found = [_taken(own, name, data, why) for name, data, why in self._sent]
        if own:
            raise UsageError(OWN_CALLBACKS.format(name=type(own[0]).__name__))
        return [*self._found, edl.tensorflow.KerasCallback()], verbose

    def _packed_again(self, callback: Any) -> tuple[str, bytes | None, str] | None:
        # The callback of the last fit cannot be sent again: `fit` has put the model into it.
        pairs = zip(self._found, self._sent, strict=True)
        return next((sent for found, sent in pairs if found is callback), None)


script = KerasScript()


def _refusal(data: Any) -> str:
    if isinstance(data, (list, tuple, dict, tf.data.Dataset)) or hasattr(data, "__array__"):
        return ARRAYS
    kind = type(data).__name__
    return NO_NUMBERS.format(what=f"{'an' if kind[0] in 'AEIOU' else 'a'} {kind}")


def _flat(callbacks: Any) -> list[Any]:
    """Return the callbacks of a `fit` as a new list, which may be changed."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks = callbacks.callbacks
    return (
        [*callbacks]
        if isinstance(callbacks, Sequence)
        else []
        if callbacks is None
        else [callbacks]
    )


def _packed(callback: Any) -> tuple[str, bytes | None, str]:
    """Return the class of `callback`, its pickle, and the error of a process that lacks one."""
    name = type(callback).__name__
    try:
        data = cloudpickle.dumps(callback)
        why = f"{len(data)} bytes"
    except Exception as error:  # noqa: BLE001 - the script's own classes raise what they like
        data, why = None, str(error)
    if data is not None and len(data) <= MOST:
        return name, data, ""
    then = ONE_WRITES if has_writer(callback) else ALL_ARE_CALLED
    return name, None, NOT_SENT.format(name=name, why=why, then=then)


def _taken(own: list[Any], name: str, data: bytes | None, why: str) -> Any:
    """Take this process's callback of the class `name` out of `own`, or the one of rank 0."""
    for index, callback in enumerate(own):
        if type(callback).__name__ == name:
            return own.pop(index)
    if data is None:
        raise UsageError(why)
    return mark_as_sent(pickle.loads(data))  # rank 0 alone calls it


def replace_fit() -> None:
    """Replace `fit` and `evaluate` of `keras.Model`, in this process, from now on."""
    kind: Any = keras.Model
    kind.fit, kind.evaluate = _training(kind.fit), _evaluating(kind.evaluate)


def _training(plain: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(plain)

    @functools.wraps(plain)
    def train(self: Any, *arguments: Any, **named: Any) -> Any:
        asked = signature.bind(self, *arguments, **named).arguments
        if not process.is_initialized() or not is_elastic(getattr(self, "optimizer", None)):
            return plain(self, *arguments, **named)
        given = {name: value for name, value in asked.items() if name != "self"}
        return plain(self, **script.arguments(given))

    return train


def _evaluating(plain: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(plain)

    @functools.wraps(plain)
    def evaluate(self: Any, *arguments: Any, **named: Any) -> Any:
        asked = signature.bind(self, *arguments, **named)
        given = asked.arguments
        given["x"], given["steps"] = undivided(given.get("x"), given.get("steps"))
        return plain(*asked.args, **asked.kwargs)

    return evaluate
