"""Define ``hvd.elastic`` for TensorFlow scripts that ``import edl.tensorflow as hvd``.

:mod:`edl.binding.elastic` has the methods that both states share (``commit``, ``restore``,
``sync``), and the work of ``run``.
"""

from __future__ import annotations

import copy
import re
from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import cloudpickle
import tensorflow as tf

from edl.binding import elastic
from edl.binding.api import absent
from edl.binding.elastic import HorovodInternalError, Plain, State
from edl.binding.replica import ByteRange, Trackable, few, map_leaves
from edl.errors import UsageError
from edl.ring.ring import Ring
from edl.tensorflow.collectives import exchange, turn_off_xla
from edl.tensorflow.lr_schedules import present_rates
from edl.tensorflow.replica import digests, size_of
from edl.tensorflow.variables import (
    SESSION_GROUPS,
    EagerAccess,
    SessionAccess,
    VariableAccess,
    array_of,
    differences,
    plain,
    variables_by_name,
)

__all__ = ["TensorFlowKerasState", "TensorFlowState", "run"]

# An operation of Horovod's in a graph fails as any other does; its name is in the message, and
# what Horovod says is one line among many. The lines of the script that made the operation are
# there, too: files and functions of any name.
_FRAME = re.compile(r'^  File ".*\n(    .*\n)?', re.MULTILINE)
_OF_HOROVOD = re.compile(r"Horovod[A-Z]|Horovod has|/gloo/")
_REASON = re.compile(r"^(Horovod has been shut down.*|.*/gloo/.*)$", re.MULTILINE)


class _VariablesState(State):
    """The base class of elastic states of variables, in groups, and of further attributes.

    A derived class sets ``_access`` before it calls this constructor. When the state is restored or
    received, variables are assigned, and a further attribute that has ``state_dict()`` and
    ``load_state_dict()`` loads its part and stays the same object; any other becomes a copy.
    """

    _access: VariableAccess

    @abstractmethod
    def _variables(self) -> dict[str, list[Any]]:
        """Return the list of the variables of each group, by group name, such as "model"."""

    _size_of = staticmethod(size_of)

    def _digested(self, parts: Iterable[ByteRange]) -> dict[str, int]:
        return digests(self._access, parts)

    def _values(self) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for group, variables in self._variables().items():
            mine = variables_by_name(variables)
            arrays = self._access.read(list(mine.values()))
            values[group] = dict(zip(mine, arrays, strict=True))
        for name in self._names:
            thing = getattr(self, name)
            values[name] = thing.state_dict() if isinstance(thing, Trackable) else Plain(thing)
        return values

    def _put(self, values: dict[str, Any]) -> None:
        written = []  # nothing, if any of the names or shapes differs
        for group, variables in self._variables().items():
            mine = variables_by_name(variables)
            if odd := differences(mine, values[group]):
                raise UsageError(f"this worker's {group} differs from the job's: {few(odd)}")
            written += [(variable, values[group][name]) for name, variable in mine.items()]
        self._access.write(written)
        for name in self._names:
            value = copy.deepcopy(values[name])
            if isinstance(value, Plain):
                setattr(self, name, value.value)
            else:
                getattr(self, name).load_state_dict(value)

    def _parts(self) -> set[str]:
        return {*self._names, *self._variables()}

    def _copied(self, values: dict[str, Any]) -> dict[str, Any]:

        def leaf(value: Any, _where: str) -> Any:
            array = array_of(value)
            return copy.deepcopy(value) if array is None else array.copy()

        copied: dict[str, Any] = map_leaves(values, leaf)
        return copied

    def _exchanged(self, ring: Ring, root: int, values: dict[str, Any] | None, keep: bool) -> Any:
        return exchange(ring, root, values, keep, cloudpickle.dumps)


class TensorFlowKerasState(_VariablesState):
    """The elastic state of a Keras model, its optimizer, and further attributes: numbers, objects.

    The script makes one on each worker, and gives it to a function that :func:`run` has wrapped;
    newcomers receive its values. The constructor builds the optimizer if it is not built, and saves
    a first copy for ``restore()``. Each attribute is read and set as ``state.name``.

    Args:
        model: a model that is built, so that its variables exist.
        optimizer: the optimizer of the model; None: the one that the model is compiled with.
        backend: ignored; Horovod's class has it.
        attributes: the first values of the further attributes, by name.

    Raises:
        UsageError: the model is not built, or has no optimizer.
    """

    def __init__(
        self, model: Any, optimizer: Any = None, backend: Any = None, **attributes: Any
    ) -> None:
        del backend
        if not model.built:
            raise UsageError(
                "the model of an elastic state must be built first: model.build(input_shape)"
            )
        self.model = model
        self.optimizer: Any = optimizer or getattr(model, "optimizer", None)
        if self.optimizer is None:
            raise UsageError("an elastic state needs the optimizer, or a compiled model")
        if not self.optimizer.built:  # or it would have more variables after the first update
            self.optimizer.build(model.trainable_variables)
        if getattr(model, "optimizer", None) is not None:
            turn_off_xla(model)
        self._access = EagerAccess()
        super().__init__(**attributes)

    def _variables(self) -> dict[str, list[Any]]:
        return {"model": list(self.model.weights), "optimizer": list(self.optimizer.variables)}

    def _trained(self) -> dict[str, Any]:
        """Return the variables that stay equal on all workers because gradients are averaged."""
        # What Keras adds up of several batches is each worker's own until it is averaged.
        own = {id(plain(each)) for each in getattr(self.optimizer, "_accumulated_gradients", ())}
        shared = (each for each in self.optimizer.variables if id(plain(each)) not in own)
        return {
            "model": variables_by_name(self.model.trainable_variables),
            "optimizer": variables_by_name(shared),
        }

    def learning_rates(self) -> dict[str, float]:
        """Return the optimizer's present rates by name, but for those that edl cannot read.

        These are tensors, functions, and in a graph schedules of Keras'.
        """
        rates = present_rates([self.optimizer])
        variables = {name: rate for name, rate in rates.items() if isinstance(rate, tf.Variable)}
        read = zip(variables, self._access.read([*variables.values()]), strict=True)
        return {name: float(rate) for name, rate in {**rates, **dict(read)}.items()}


class TensorFlowState(_VariablesState):
    """The elastic state of TensorFlow variables, and further attributes.

    It is used as a :class:`TensorFlowKerasState` is.

    Args:
        variables: the variables that every worker that joins receives; None: all global variables
            of the default graph, of which there are none in eager execution.
        session: the session that holds the variables of a graph; None: the default session, or
            none in eager execution.
        attributes: the first values of the further attributes, by name.

    Raises:
        UsageError: no variables are named and there are no global ones, or there is a graph without
            a session.
    """

    def __init__(self, variables: Any = None, session: Any = None, **attributes: Any) -> None:
        if variables is None:
            variables = tf.compat.v1.global_variables()
        if not variables:
            raise UsageError("name the variables of the elastic state: TensorFlowState(variables)")
        self.variables = list(variables)
        self.session = session if session is not None else tf.compat.v1.get_default_session()
        if not tf.executing_eagerly() and self.session is None:
            raise UsageError("in a graph an elastic state needs a session: session=...")
        self._access = EagerAccess() if self.session is None else SessionAccess(self.session)
        super().__init__(**attributes)
        if self.session is not None:
            self._compared.most_groups = SESSION_GROUPS

    def _variables(self) -> dict[str, list[Any]]:
        return {"variables": self.variables}

    def _trained(self) -> dict[str, Any]:
        return {"variables": variables_by_name(each for each in self.variables if each.trainable)}

    def learning_rates(self) -> dict[str, float]:
        """Return an empty dict: this state does not know the optimizer of its variables."""
        return {}


def run(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function`` wrapped so that it trains while workers join and leave.

    The wrapper is called as ``wrapper(state, ...)``, and passes all its arguments to ``function``.
    When workers join or leave, ``state.commit()`` or ``state.check_host_updates()`` interrupts
    ``function``, which is called again with the state as it is; when a worker crashes, a collective
    does, and it is called again with the state of the last commit. Where others have returned when
    a crash interrupts a worker's last steps, it takes the state of one of them, and returns None.

    Returns:
        The wrapper, which returns what ``function`` returns, and raises the errors below.

    Raises:
        UsageError: the state is not one of edl's; another wrapped function has ended before; or
            Horovod refuses a collective, and would refuse it again.
        WorkerEvicted: the leader has evicted this worker from the job.
        JobFailed: the job cannot go on.
    """
    failures = (HorovodInternalError, tf.errors.OpError)
    return elastic.run(function, failures, _broken, "TensorFlowKerasState")


def _broken(error: Exception) -> str | None:
    """Return what Horovod says of a broken ring in `error`; None if the error is not Horovod's."""
    message = _FRAME.sub("", str(error))
    if not isinstance(error, HorovodInternalError) and not _OF_HOROVOD.search(message):
        return None
    reason = _REASON.search(message)
    return reason[0] if reason else message  # of which others tell whether the ring is broken


if not TYPE_CHECKING:  # else every name would be one of this module's
    __getattr__ = absent(__name__)
