"""Compute Keras' metrics of an epoch over the samples of all workers: :class:`EpochMetrics`.

The state of a Keras metric is a sum over the batches, or several sums (a total and a count, a
confusion matrix, true positives by threshold), and the result is computed from the state. So at the
end of an epoch the workers add up their states, and Keras computes the job's result from the sums,
the same on all workers: History, callbacks and logs have the numbers that one process would have.
After a padding batch the states are set back to what they were before it.

A user's own metric may keep something else, a maximum for example
(:mod:`~edl.tensorflow.keras_callbacks.metrics`). The job's result of such a metric is the mean of
the workers' results, weighted with their samples; a warning says so once.
"""

from __future__ import annotations

import ast
import inspect
import logging
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from edl.errors import UsageError
from edl.step.weighting import weighted_means
from edl.worker.worker import Worker

logger = logging.getLogger(__name__)


# ------------------------------------------------------------
# Decide whether the state of a Keras metric is a sum over the batches: `is_additive`.
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
    """Return whether the state of `metric` is a sum, so that states of workers can be added."""
    said = getattr(type(metric), "edl_additive", None)
    if said is not None:
        return bool(said)
    inner = [each for each in getattr(metric, "_metrics", ()) if each is not metric]
    return _only_adds(metric) and all(map(is_additive, inner))


def _only_adds(metric: Any) -> bool:
    """Return whether the code of `metric` changes the variables of its state by adding only."""
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
    """Yield each expression `self.name` in the syntax tree `tree`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_self(node.value):
            yield node


def _is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _uses_state(method: ast.FunctionDef, metric: Any) -> bool:
    """Return whether `method` uses variables of `metric` for more than adding to them."""
    allowed: set[int] = set()
    for node in ast.walk(method):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            allowed |= _added_to(node, node.func)
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


def _added_to(call: ast.Call, function: ast.Attribute) -> set[int]:
    """Return the `id()` of the nodes that stand for the variable to which a call adds, if any."""
    target = function.value
    if function.attr in ADDITIONS:
        return {id(_bare(target))}
    term = (
        _addend(call.args[0], ast.dump(target)) if function.attr == "assign" and call.args else None
    )
    return set() if term is None else {id(_bare(target)), id(_bare(term))}


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
    """Return whether `value`, an attribute of a metric, is or contains a variable."""
    if isinstance(value, dict):
        value = [*value.values()]
    if isinstance(value, list | tuple):
        return any(map(_has_variables, value))
    return isinstance(value, keras.Variable) or hasattr(value, "assign_add")


UNKNOWN = (
    "the state of the metric %s may be no sum over the batches, so the job's result of an epoch is "
    "the mean of the workers' results; if it is one, set edl_additive = True in its class"
)

State = list[Any]


class EpochMetrics:
    """The metrics of a model that `fit` trains, combined over the samples of all workers."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._before: dict[int, Any] | None = None  # states before a padding batch
        self._shown: dict[str, Any] | None = None  # results with a padding batch, as Keras has them
        self._told: set[str] = set()  # metrics that are no sums
        self._replaced: list[Any] = []  # metrics whose result is the job's mean for now

    def begin_batch(self, weight: int) -> None:
        """Remember the states of the metrics before a padding batch."""
        self._shown = None
        if weight == 0:
            variables = self._variables()
            self._before = dict(zip(map(id, variables), _read(variables), strict=True))

    def end_batch(self) -> None:
        """Restore the states of the metrics after a padding batch, which must not count in them."""
        before, self._before = self._before, None
        if before is None:
            return
        self._shown = self.results()
        for variable in self._variables():  # one that this batch has made was zero
            variable.assign(before.get(id(variable), np.zeros(variable.shape, variable.dtype)))

    def results(self) -> dict[str, Any]:
        """Return the present results of all metrics by name: floats, or arrays."""
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
        said = worker.exchange([float(source is not None) for source in sources.values()])
        on_all = [all(each) for each in zip(*said, strict=True)]
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
        variables = [variable for metric in sums for variable in metric.variables]
        state = [value.astype(_wide(value.dtype)) for value in _read(variables)]
        added = _added(worker.exchange_bytes(b"".join(value.tobytes() for value in state)), state)
        for variable, value in zip(variables, added, strict=True):
            variable.assign(value.astype(_numpy_type(variable)))
        for metric in metrics:
            if not any(metric is one for one in sums):
                self._take_mean(metric, worker, samples)

    def hand_over(self, worker: Worker, leaving: frozenset[int]) -> None:
        """Add the sums of workers that leave to those of the lowest rank that stays."""
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
        """Let each metric that is no sum compute its result from its own state again."""
        for metric in self._replaced:
            del metric.result
        self._replaced.clear()

    def _take_mean(self, metric: Any, worker: Worker, samples: int) -> None:
        """Let `metric.result()` be the mean of all workers' results, weighted by their samples."""
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


def _read(variables: Sequence[Any]) -> State:
    return [np.asarray(variable) for variable in variables]


def _wide(kind: Any) -> Any:
    return np.int64 if np.issubdtype(kind, np.integer) or kind == np.bool_ else np.float64


def _numpy_type(variable: Any) -> Any:
    return np.asarray(variable).dtype


def _added(payloads: Sequence[bytes], like: State) -> State:
    """Return the sums of the workers' states, the bytes of arrays with the form of `like`."""
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
