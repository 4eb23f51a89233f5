"""Let the callbacks and metrics of a Keras ``fit`` be those of the job.

Four things: newcomers and checkpoints get what callbacks remember, an epoch's metrics are computed
over the samples of all workers, callbacks run in an order that edl needs, and those that write do
so on rank 0 only. The state of a Keras metric is a sum over the batches, or several sums (a total
and a count, true positives by threshold), and its result is computed from them. So at the end of an
epoch the workers add up their states, and History, callbacks and logs have the numbers that one
process would have. After a padding batch the states are set back. The job's result of a metric that
keeps something else, a maximum for example, is the mean of the workers' results, weighted with
their samples; a warning says so once.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import io
import logging
import os
import textwrap
import weakref
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.callbacks.monitor_callback import MonitorCallback
from keras.src.callbacks.progbar_logger import ProgbarLogger

from edl.binding.replica import Trackable
from edl.checkpoint.tensors import can_hold
from edl.errors import UsageError
from edl.step.record import stopping
from edl.step.weighting import weighted_means
from edl.tensorflow.variables import bytes_of, plain, tensor_array_of, variables_of
from edl.worker.worker import Worker

logger = logging.getLogger(__name__)


# ------------------------------------------------------------
# Share what the callbacks of a `fit` remember.
#
# A callback with `state_dict()` and `load_state_dict()` says itself what it remembers. Any other
# remembers the attributes that have changed since its first `fit` began, if they are data: None,
# booleans, numbers, text, bytes, numpy arrays and scalars, TensorFlow's tensors, and lists, tuples,
# dicts, sets and deques of these. Of an object that has variables (a `tf.Variable`, a metric, a
# model) their values are sent, and assigned to the variables of the object that the receiver has in
# its place. An attribute that a constructor has set and training has not changed keeps the value of
# the script, also in a job that is resumed with other settings. The model, functions and open files
# are not data. For other objects each worker keeps its own value, and a log message says so.

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
        before = dict(mine) if isinstance(mine, dict) else {}
        keys = [restored_value(key, None) for key, _ in items]
        made = {
            key: restored_value(item, before.get(key))
            for key, (_, item) in zip(keys, items, strict=True)
        }
        if not isinstance(mine, dict):
            return made
        mine.clear()
        mine.update(made)
        return mine
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


def value_fingerprint(stored: Any) -> Any:
    if isinstance(stored, np.ndarray):
        return ("array", stored.dtype.name, stored.shape, zlib.crc32(bytes_of(stored).data))
    if isinstance(stored, dict):
        return {kind: value_fingerprint(items) for kind, items in stored.items()}
    if isinstance(stored, list):
        return [value_fingerprint(item) for item in stored]
    return repr(stored)  # nan is equal to itself here


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
                if sum(array.nbytes for array in _arrays(stored)) <= SMALL_BYTES:
                    self._first[name] = stored

    @property
    def callback(self) -> Any:
        return self._of()

    def is_of(self, model: Any) -> None:
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
                value = restored_value(stored, getattr(self.callback, name, None))
                if isinstance(self.callback, MonitorCallback) and name == "min_delta":
                    value = -value if self.callback.monitor_op is keras.ops.less else value
                setattr(self.callback, name, value)

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
        except NoData as kind:  # log once that each worker keeps its own, if training has set it
            expected = callable(value) or isinstance(value, (io.IOBase, logging.Logger))
            is_first = self._objects.get(name, _MISSING) is value
            if not (expected or is_first or name in self._warned):
                self._warned.add(name)
                logger.warning(
                    "%s.%s is of type %s and does not follow the job: each worker has its own; if "
                    "that is wrong, give the class state_dict() and load_state_dict()",
                    self.name,
                    name,
                    kind,
                )
            return _MISSING

    def _is_of_the_model(self, value: Any) -> bool:
        if isinstance(value, PLAIN):
            return False
        if isinstance(value, (list, tuple)) and value:
            return all(self._is_of_the_model(each) for each in value)
        found = variables_of(plain(value))
        return bool(found) and self._models.issuperset(id(plain(each)) for each in found or [])


class CallbackStates:
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
        self.on_verbose: Callable[[Any], None] = lambda _verbose: None  # of the job

    def follow(self, callbacks: Sequence[Any], remembers: Sequence[bool], model: Any) -> None:
        # Of one that does not remember only the class is compared between workers.
        self._callbacks = list(callbacks)
        self._names = [type(callback).__name__ for callback in callbacks]
        self._memories, self.begun = [], -1
        for callback, kept in zip(callbacks, remembers, strict=True):
            memory = self._known.get(id(callback)) if kept else None
            if kept and memory is None:
                self._known[id(callback)] = memory = _Memory(callback, model)
                weakref.finalize(callback, self._known.pop, id(callback), None)
            if memory is not None:
                memory.is_of(model)
            self._memories.append(memory)

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
            self.on_verbose(self.verbose)
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
        if here := [*(Counter(mine) - Counter(theirs)).elements()]:
            difference = f"only w{worker.id} was given {here[0]}"
        elif there := [*(Counter(theirs) - Counter(mine)).elements()]:
            difference = f"w{worker.id} was not given {there[0]}"
        else:
            difference = f"w{worker.id} has them in the order {', '.join(mine)}"
        sentence = (
            f"the Keras callbacks differ between workers: {difference}, unlike the others; give it "
            "to all workers, in the same order; edl lets only rank 0 write"
        )
        if worker.warming_up:
            raise UsageError(sentence)
        worker.checkpointing.fail(sentence)


# ------------------------------------------------------------
# Decide whether the state of a Keras metric is a sum over the batches.
#
# The states of Keras' own metrics are taken for such sums. The source code of a user's metric is
# read: `update_state`, and the methods that it calls, may use a variable of the state only to add
# to it, by `v.assign_add(...)` or `v.assign(v + ...)`, or through other metrics that the metric
# holds. So a maximum is no sum, a running mean `v.assign_add((x - v) / n)` is none, and neither is
# code that is not understood. The attribute `edl_additive` (True or False) of a metric's class
# overrules this.

ADDITIONS = {"assign_add", "assign_sub", "update_state"}  # the last one: of a metric inside it
HARMLESS = {"shape", "dtype", "name", "ndim"}  # attributes of a variable that are not its value


def is_additive(metric: Any) -> bool:
    declared = getattr(type(metric), "edl_additive", None)
    if declared is not None:
        return bool(declared)
    inner = [each for each in getattr(metric, "_metrics", ()) if each is not metric]
    return _only_adds(metric) and all(map(is_additive, inner))


def _only_adds(metric: Any) -> bool:
    own = []  # classes that are not Keras', which are taken to add only
    for kind in type(metric).__mro__:
        if kind.__module__.partition(".")[0] == "keras":
            break
        own.append(kind)
    adds = not any("update_state" in vars(kind) for kind in own)
    ahead, seen = ["update_state"], {"update_state"}
    while ahead:
        for method in _definitions(own, ahead.pop()):
            if method is None or _uses_state(method, metric):  # None: no source to read
                return False
            adds = adds or any(
                isinstance(node, ast.Attribute) and node.attr in {*ADDITIONS, "assign"}
                for node in ast.walk(method)
            )
            called = {each.attr for each in _own_attributes(method)} - seen
            seen |= called
            ahead += called
    return adds  # else the state is elsewhere


def _definitions(kinds: list[type], name: str) -> Iterator[ast.FunctionDef | None]:
    """Yield the trees of the methods that a call of `name` may run; None: one without source."""
    for kind in kinds:
        if name in vars(kind):
            method = _parsed(vars(kind)[name])
            yield method
            if method is None or not any(
                isinstance(node, ast.Name) and node.id == "super" for node in ast.walk(method)
            ):
                return


def _parsed(function: Any) -> ast.FunctionDef | None:
    if isinstance(function, property):
        function = function.fget
    if isinstance(function, staticmethod | classmethod):
        function = function.__func__
    if not callable(function):
        return ast.parse("def value(): ...").body[0]  # type: ignore[return-value]  # a constant
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    except (OSError, TypeError, SyntaxError):
        return None
    return next((each for each in tree.body if isinstance(each, ast.FunctionDef)), None)


def _own_attributes(tree: ast.AST) -> Iterator[ast.Attribute]:
    for node in ast.walk(tree):
        owner = node.value if isinstance(node, ast.Attribute) else None
        if isinstance(node, ast.Attribute) and isinstance(owner, ast.Name) and owner.id == "self":
            yield node


def _uses_state(method: ast.FunctionDef, metric: Any) -> bool:
    allowed: set[int] = set()
    for node in ast.walk(method):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            target = node.func.value  # the variable, to which this call may add
            if node.func.attr in ADDITIONS:
                allowed.add(id(_bare(target)))
                continue
            is_assign = node.func.attr == "assign" and node.args
            term = _addend(node.args[0], ast.dump(target)) if is_assign else None
            if term is not None:
                allowed |= {id(_bare(target)), id(_bare(term))}
        elif isinstance(node, ast.Attribute) and node.attr in HARMLESS:
            allowed.add(id(_bare(node.value)))
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Is | ast.IsNot):
            allowed.add(id(node.left))  # is None: not made yet
        elif isinstance(node, ast.Assign | ast.AnnAssign):  # makes it
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            allowed |= {id(target) for target in targets}
    return any(
        id(node) not in allowed and _has_variables(getattr(metric, node.attr, None))
        for node in _own_attributes(method)
    )


def _addend(value: ast.AST, target: str) -> ast.AST | None:
    """Return the node of the sum `value` that `ast.dump` shows as `target`; None: there is none."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add | ast.Sub):
        terms = [value.left, value.right][: 1 + isinstance(value.op, ast.Add)]
    elif isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        terms = {"add": value.args, "subtract": value.args[:1]}.get(value.func.attr, [])
    else:
        return value if ast.dump(value) == target else None
    found = (_addend(term, target) for term in terms)
    return next((node for node in found if node is not None), None)


def _bare(node: ast.AST) -> ast.AST:
    """Return `node` without its subscripts: `self.parts` in place of `self.parts[0]`."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return node


def _has_variables(value: Any) -> bool:
    if isinstance(value, dict):
        value = [*value.values()]
    if isinstance(value, list | tuple):
        return any(map(_has_variables, value))
    return isinstance(value, keras.Variable) or hasattr(value, "assign_add")


UNKNOWN = (
    "the state of the metric %s may be no sum over the batches, so the job's result of an epoch is "
    "the mean of the workers' results; if it is one, set edl_additive = True in its class"
)


class EpochMetrics:
    def __init__(self, model: Any) -> None:
        self._model = model
        self._before: dict[int, Any] | None = None  # states before a padding batch
        self._shown: dict[str, Any] | None = None  # results with a padding batch, as Keras has them
        self._warned: set[str] = set()  # metrics that are no sums
        self._replaced: list[Any] = []  # metrics whose result is the job's mean for now

    def begin_batch(self, weight: int) -> None:
        self._shown = None
        if weight == 0:
            variables = self._variables()
            self._before = dict(zip(map(id, variables), _read(variables), strict=True))

    def end_batch(self) -> None:
        before, self._before = self._before, None
        if before is None:
            return
        self._shown = self.results()
        for variable in self._variables():  # one that this batch has made was zero
            variable.assign(before.get(id(variable), np.zeros(variable.shape, variable.dtype)))

    def results(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in self._model.get_metrics_result().items():
            found.update(value if isinstance(value, Mapping) else {name: value})
        arrays = {name: np.asarray(value) for name, value in found.items()}
        return {name: float(v) if v.ndim == 0 else v for name, v in arrays.items()}

    def of_job(self, logs: Mapping[str, Any], worker: Worker, samples: int) -> dict[str, Any]:
        """Combine the metrics of all workers; return the job's values of the numbers in `logs`.

        All workers call it after the last step of the epoch. A number of the model's own
        `train_step` belongs to the metric whose result it equals.
        """
        own = self._shown if self._shown is not None else self.results()
        self.combine(worker, samples)
        job = self.results()
        if {*job} == {*logs}:
            return job
        sources = {name: _source(name, logs[name], own) for name in sorted(logs)}
        # A number may equal a metric's by chance on some workers, after one batch for example.
        answers = worker.exchange([float(source is not None) for source in sources.values()])
        on_all = [all(each) for each in zip(*answers, strict=True)]
        return {
            name: job[source]
            for (name, source), agreed in zip(sources.items(), on_all, strict=True)
            if agreed and source is not None
        }

    def combine(self, worker: Worker, samples: int) -> None:
        """Add up the states of the metrics over workers; the sums stay until Keras resets them."""
        self.restore()
        metrics = _leaves(self._model.metrics)
        sums = [metric for metric in metrics if is_additive(metric)]
        variables, state, payload = self._states(sums)
        self._assign(variables, _added(worker.exchange_bytes(payload), state))
        for metric in metrics:
            if not any(metric is one for one in sums):
                self._take_mean(metric, worker, samples)

    def hand_over(self, worker: Worker, leaving: frozenset[int]) -> None:
        """Add the sums of workers that leave to those of the lowest rank that stays."""
        sums = [metric for metric in _leaves(self._model.metrics) if is_additive(metric)]
        variables, state, mine = self._states(sums)
        members = worker.loader.progress.members
        payloads = worker.exchange_bytes(mine if worker.id in leaving else b"")
        heir = next(member for member in members if member not in leaving)
        if worker.id == heir:
            handed = [payload for payload in payloads if payload]
            self._assign(variables, _added([mine, *handed], state))

    @staticmethod
    def _states(metrics: list[Any]) -> tuple[list[Any], list[Any], bytes]:
        variables = [variable for metric in metrics for variable in metric.variables]
        state = [value.astype(_wide(value.dtype)) for value in _read(variables)]
        return variables, state, b"".join(value.tobytes() for value in state)

    @staticmethod
    def _assign(variables: list[Any], values: list[Any]) -> None:
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value.astype(np.asarray(variable).dtype))

    def restore(self) -> None:
        """Let each metric that is no sum compute its result from its own state again."""
        for metric in self._replaced:
            del metric.result
        self._replaced.clear()

    def _take_mean(self, metric: Any, worker: Worker, samples: int) -> None:
        """Let `metric.result()` be the mean of all workers' results, weighted by their samples."""
        if metric.name not in self._warned:
            self._warned.add(metric.name)
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
    found: list[Any] = []
    for metric in metrics:
        inner = getattr(metric, "metrics", None)
        found += _leaves(inner) if inner is not None else [metric]
    return found


def _source(name: str, value: Any, results: Mapping[str, Any]) -> str | None:
    """Return the metric whose result equals `value`; of several, the one of this name, or None."""
    same = [other for other, result in results.items() if _is_same(value, result)]
    if name in same:
        return name
    return same[0] if len(same) == 1 else None


def _is_same(one: Any, other: Any) -> bool:
    if np.shape(one) != np.shape(other):
        return False
    try:
        # But for the rounding of a compiled step.
        return np.allclose(np.asarray(one), np.asarray(other), rtol=1e-5, atol=0, equal_nan=True)
    except TypeError:
        return False


def _read(variables: Sequence[Any]) -> list[Any]:
    return [np.asarray(variable) for variable in variables]


def _wide(kind: Any) -> Any:
    return np.int64 if np.issubdtype(kind, np.integer) or kind == np.bool_ else np.float64


def _added(payloads: Sequence[bytes], like: list[Any]) -> list[Any]:
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


# ------------------------------------------------------------
# Put the callbacks of a `fit` in the order that edl needs, and refuse those that cannot work.
#
# Keras makes the list of callbacks inside of `fit`, and gives no access to it. So the class of the
# list is changed once, for the process: a list that has a `KerasCallback` is put in order before
# its callbacks get the model. Keras numbers the batches that this process has taken in the epoch. A
# worker that joins in the midst of an epoch would begin at 0, and a callback that computes a
# learning rate from the number would set another rate there. So callbacks get the job's number of
# the batch.

_REFUSED: dict[type, str] = {
    keras.callbacks.BackupAndRestore: (
        "on a newcomer it would load an old backup over the job's state; use "
        "edl.checkpoint(directory) before fit, and `edl run --resume`"
    ),
    keras.callbacks.OrbaxCheckpoint: (
        "it writes from all workers at once; use edl.checkpoint(directory) or "
        "keras.callbacks.ModelCheckpoint"
    ),
    keras.callbacks.CallbackList: (
        "the callbacks in it would write files on all workers; give fit the callbacks themselves"
    ),
}

Arrange = Callable[[Any, list[Any], Any], list[Any]]  # (edl's callback, the others, model)


@functools.cache
def watch_lists(kind: type[Any], arrange: Arrange) -> None:
    plain = keras.callbacks.CallbackList.set_model

    def set_model(self: Any, model: Any) -> None:
        ours = [callback for callback in self.callbacks if isinstance(callback, kind)]
        if model and ours:
            if len(ours) > 1:
                raise UsageError("fit was given two edl.KerasCallback(); give it one")
            others = [callback for callback in self.callbacks if callback is not ours[0]]
            for callback, (refused, reason) in product(others, _REFUSED.items()):
                if isinstance(callback, refused):
                    name = type(callback).__name__
                    raise UsageError(f"fit was given keras.callbacks.{name}: {reason}")
            self.callbacks = arrange(ours[0], others, model)
            _number_batches(self, ours[0])
            self._async_train = False  # steps are begun and ended in the thread that trains
        plain(self, model)

    keras.callbacks.CallbackList.set_model = set_model


def _number_batches(callbacks: Any, job: Any) -> None:
    """Let each batch of Keras' list begin a step of `job`, the KerasCallback, with its number."""
    plain_begin, plain_end = callbacks.on_train_batch_begin, callbacks.on_train_batch_end
    params = callbacks.set_params

    def begin(_: int, logs: Any = None) -> None:
        goes_on = job.is_within_step  # with logical workers: the batches of a step are told as one
        batch = job.begin_batch()
        if not goes_on:
            plain_begin(batch, logs)

    def end(_: int, logs: Any = None) -> None:
        if job.is_within_step:
            job.on_train_batch_end(job.batch, logs)
        else:
            plain_end(job.batch, logs)

    callbacks.on_train_batch_begin, callbacks.on_train_batch_end = begin, end
    callbacks.set_params = lambda given: params(job.with_steps(given) if given else given)


def with_progress(others: list[Any]) -> list[Any]:
    # With `verbose` 0 Keras makes no bar, and a newcomer may get another from the job.
    if any(isinstance(callback, ProgbarLogger) for callback in others):
        return others
    return [*others, ProgbarLogger()]


# ------------------------------------------------------------
# Build and read the rows of floats, equal in length, that workers exchange when an epoch ends.
#
# One has the worker's id, its samples, a checksum of the metrics' names in order, the metrics, and
# zeros; the other its id, whether it wants to stop, and whether it is rank 0 and has written files.

ROOM = 32  # for metrics in a row; with more of them, as much again


def metrics_row(worker: int, samples: int, metrics: Mapping[str, float]) -> list[float]:
    names = zlib.crc32("\n".join(metrics).encode())
    # So workers with different metrics nearly always have rows of one length.
    room = -(-max(len(metrics), 1) // ROOM) * ROOM
    filling = [0.0] * (room - len(metrics))
    return [worker, samples, names, *metrics.values(), *filling]


def job_metrics(rows: Sequence[Sequence[float]], names: Sequence[str]) -> dict[str, float]:
    odd = [f"w{row[0]:.0f}" for row in rows if row[2] != rows[0][2]]
    if odd:
        raise UsageError(
            f"the metrics of {', '.join(odd)} are not those of w{rows[0][0]:.0f}; give all workers "
            f"the same metrics and the same validation_data (here: {', '.join(names)})"
        )
    means = weighted_means([[row[1], *row[3:]] for row in rows])
    return dict(zip(names, means, strict=False))  # what follows is the filling


@dataclass(frozen=True)
class Met:
    stop: str  # why all stop; empty when they do not
    written: bool  # rank 0 had written what there was to write


def end_row(worker: int, wants_to_stop: bool, wrote: bool) -> list[float]:
    return [worker, float(wants_to_stop), float(wrote)]


def met(rows: Sequence[Sequence[float]]) -> Met:
    stops, reason = stopping([int(row[0]) for row in rows if row[1]])
    return Met(stop=reason if stops else "", written=any(row[2] for row in rows))


# ------------------------------------------------------------
# Let callbacks that write files, to the terminal or to a server write on rank 0 only.
#
# The script gives the callbacks on all workers. The worker that is rank 0 at the time of a write
# makes it, so when rank 0 dies, its successor continues. Until all workers have exchanged rows at
# the end of an epoch (`met`), each worker keeps the numbers that are to be written, so that it can
# write them if rank 0 dies before it does.

_HOOKS = [
    f"on_{what}_{when}"
    for what in ("epoch", "train", "test", "predict", "train_batch", "test_batch", "predict_batch")
    for when in ("begin", "end")
]


class Writer(keras.callbacks.Callback):
    """The base class of callbacks that stand in for one that writes, and let rank 0 alone write."""

    remembers = False  # what the callback remembers follows the job

    def __init__(self, callback: Any, worker: Worker) -> None:
        super().__init__()
        self.callback, self._worker = callback, worker

    @property
    def writes(self) -> bool:
        return self._worker.rank == 0 and not self._worker.warming_up

    def set_params(self, params: Any) -> None:
        super().set_params(params)
        self.callback.set_params(params)

    def met(self, written: bool) -> None:
        """Write the files of the epoch that has ended if its rank 0 has died before it did so."""
        raise NotImplementedError


class Gated(Writer):
    def __init__(self, callback: Any, worker: Worker) -> None:
        super().__init__(callback, worker)
        self._begun = False
        self._epoch: int | None = None  # that has begun
        self._unwritten: tuple[int, dict[str, Any]] | None = None  # an epoch's end

    def hook(self, name: str, *arguments: Any, **named: Any) -> None:
        if not self.writes or (name == "on_train_end" and not self._begun):
            return
        self._begin()
        getattr(self.callback, name)(*arguments, **named)

    def on_train_begin(self, logs: Any = None) -> None:
        """Do nothing: a newcomer has no rank yet, so `_begin` calls it before the first hook."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = None
        self.hook("on_epoch_begin", epoch, logs)
        self._epoch = epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._unwritten = (epoch, dict(logs or {}))
        self._end_epoch()

    def met(self, written: bool) -> None:
        if not written and self._unwritten is not None and not self._has_written():
            self._end_epoch()
        self._epoch = self._unwritten = None

    def _end_epoch(self) -> None:
        assert self._unwritten is not None
        epoch, logs = self._unwritten
        if self.writes:
            self._begin()
            self.callback.on_epoch_end(epoch, logs)
            self.flush()

    def _has_written(self) -> bool:
        """Return whether the callback's file shows that another worker has written the epoch."""
        return False

    def _begin(self) -> None:
        """Begin the training and the epoch for the callback of a new rank 0."""
        if self._begun:
            return
        self._begun = True
        if self._worker.fits.has_trained:
            self.resume()
        self.callback.set_model(self.model)
        self.callback.on_train_begin()
        self.began()
        if self._epoch is not None:
            self.callback.on_epoch_begin(self._epoch)

    def resume(self) -> None:
        """Prepare the callback to append to files of other workers or runs; here do nothing."""

    def began(self) -> None:
        """Adjust the callback after its `on_train_begin`, in a subclass; here do nothing."""

    def flush(self) -> None:
        """Write the callback's buffered output to its files, in a subclass; here do nothing."""


for _name in _HOOKS:
    if _name not in vars(Gated):
        setattr(Gated, _name, functools.partialmethod(Gated.hook, _name))


class GatedCSV(Gated):
    """A writer for `CSVLogger`, whose file gets one line for each epoch, even if rank 0 dies."""

    def __init__(self, callback: Any, worker: Worker) -> None:
        super().__init__(callback, worker)
        self._appends = callback.append  # as the script says
        self._length = 0  # bytes that the file had before this fit
        callback.append_header = True  # of a new file; Keras sets it in the constructor only

    def on_train_begin(self, logs: Any = None) -> None:
        super().on_train_begin(logs)
        if self._appends:
            with contextlib.suppress(OSError):
                self._length = os.path.getsize(self.callback.filename)

    def resume(self) -> None:
        """Let the callback append to its file, from which an incomplete last line is removed."""
        self.callback.append = True
        path = self.callback.filename
        with contextlib.suppress(OSError), open(path, "rb+") as file:
            text = file.read()
            file.truncate(text.rfind(b"\n") + 1)  # half a line of one that was killed

    def began(self) -> None:
        """Let a further fit of the same callback append only if the script says so."""
        self.callback.append = self._appends

    def _has_written(self) -> bool:
        """Return whether the last whole line of the file, in this fit, is about the last epoch."""
        assert self._unwritten is not None
        try:
            with open(self.callback.filename, "rb") as file:
                text = file.read()
        except OSError:
            return False
        if len(text) <= self._length:
            return False
        last = text.rpartition(b"\n")[0].rpartition(b"\n")[2]
        return last.split(self.callback.sep.encode())[0] == str(self._unwritten[0]).encode()


class GatedTensorBoard(Gated):
    """A writer for `TensorBoard`: each rank 0 writes its own event files to one directory."""

    def began(self) -> None:
        self.callback._global_train_batch = self._worker.step  # by which it numbers its records

    def flush(self) -> None:
        for writer in self.callback._writers.values():
            writer.flush()


class GatedProgress(Gated):
    callback: ProgbarLogger

    def __init__(self, callback: Any, worker: Worker) -> None:
        super().__init__(callback, worker)
        self._generation = 0

    def set_params(self, params: Any) -> None:
        # The number of steps would be wrong when workers join or leave; the bar learns it from the
        # epoch before.
        super().set_params({**params, "steps": None})

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if self._generation != self._worker.generation:
            self._generation, self.callback.target = self._worker.generation, None
        super().on_epoch_begin(epoch, logs)


_REPLACED = "_edl_replaced"  # an attribute of a function that replaces a method: the method


class Saver(Writer):
    """A writer for `ModelCheckpoint`: all workers track the best value, and rank 0 alone saves."""

    remembers = True

    def __init__(self, callback: Any, worker: Worker) -> None:
        super().__init__(callback, worker)
        self._unsaved: Callable[[], None] | None = None
        if hasattr(callback, "_should_save_model"):
            # The callback's own method, also if an earlier fit with this callback has replaced it.
            plain = getattr(callback._should_save_model, _REPLACED, callback._should_save_model)

            def should_save(epoch: int, batch: int | None, logs: Any, filepath: str) -> bool:
                if self.writes:
                    return bool(plain(epoch, batch, logs, filepath))
                verbose, callback.verbose = callback.verbose, 0
                due = plain(epoch, batch, logs, filepath)
                callback.verbose = verbose
                if due and batch is None:
                    self._unsaved = lambda: self._save(epoch, batch, logs)
                return False

            setattr(should_save, _REPLACED, plain)
            callback._should_save_model = should_save

    def _save(self, epoch: int, batch: int | None, logs: Any) -> None:
        decides = self.callback._should_save_model
        self.callback._should_save_model = lambda *_: True
        try:
            self.callback._save_model(epoch, batch, logs)
        finally:
            self.callback._should_save_model = decides

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        self.callback.set_model(_Unsaved(model, self))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._unsaved = None
        self.callback.on_epoch_end(epoch, logs)

    def hook(self, name: str, *arguments: Any, **named: Any) -> None:
        getattr(self.callback, name)(*arguments, **named)

    def met(self, written: bool) -> None:
        unsaved, self._unsaved = self._unsaved, None
        if unsaved is not None and not written and self.writes:
            unsaved()


for _name in _HOOKS:
    if _name not in vars(Saver):
        setattr(Saver, _name, functools.partialmethod(Saver.hook, _name))


class _Unsaved:
    _SAVES = ("save", "save_weights", "export")

    def __init__(self, model: Any, saver: Saver) -> None:
        object.__setattr__(self, "_parts", (model, saver))

    def __getattribute__(self, name: str) -> Any:
        model, saver = object.__getattribute__(self, "_parts")
        if name in _Unsaved._SAVES and not saver.writes:
            return lambda *_arguments, **_named: None
        return getattr(model, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(object.__getattribute__(self, "_parts")[0], name, value)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return object.__getattribute__(self, "_parts")[0](*arguments, **named)


_SENT = "_edl_sent"  # an attribute of a callback
_BASES = (object, keras.callbacks.Callback, keras.callbacks.LambdaCallback)
WRITERS: list[tuple[type, type[Writer]]] = [
    (keras.callbacks.ModelCheckpoint, Saver),
    (keras.callbacks.CSVLogger, GatedCSV),
    (keras.callbacks.TensorBoard, GatedTensorBoard),
    (keras.callbacks.RemoteMonitor, Gated),
    (ProgbarLogger, GatedProgress),
]


def standing_in(callback: Any, worker: Worker) -> Writer | None:
    """Return a new writer for `callback`; None: it is called on all workers."""
    for kind, writer in WRITERS:
        if isinstance(callback, kind):
            return writer(callback, worker)
    # Those of Keras and edl, such as EarlyStopping, change the training, as all workers must, or
    # write nothing.
    kinds = [kind for kind in type(callback).__mro__ if kind not in _BASES]
    packages = {kind.__module__.partition(".")[0] for kind in kinds}
    if not getattr(callback, _SENT, False) or not packages.isdisjoint(("keras", "edl")):
        return None
    gated = Gated(callback, worker)
    gated.remembers = True
    return gated


def has_writer(callback: Any) -> bool:
    return isinstance(callback, tuple(kind for kind, _ in WRITERS))


def mark_as_sent(callback: Any) -> Any:
    """Mark a callback as a copy of one that the script gives to rank 0 only, and return it."""
    setattr(callback, _SENT, True)
    return callback
