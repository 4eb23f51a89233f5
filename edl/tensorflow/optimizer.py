"""Define ``edl.tensorflow.Optimizer``, which makes an optimizer's updates the steps of the job.

It replaces the method through which the optimizer applies gradients, on that object only: the new
one reduces the gradients first, unless the tape has done it, and applies them only if all were
reduced. The object keeps its class, because Keras checks it, and saved models have its name.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, cast, overload

import keras
import tensorflow as tf

from edl.binding.api import LOCAL_LAYERS
from edl.binding.replica import few
from edl.errors import UsageError
from edl.tensorflow import training
from edl.tensorflow.collectives import as_it_is, check_no_strategy
from edl.tensorflow.lr_schedules import check_scaling, correct_momentum, follow_policy
from edl.tensorflow.reduction import APPLIED, GradientReduction
from edl.tensorflow.variables import check_known, plain

# ------------------------------------------------------------
# Find whether the gradients that an `edl.Optimizer` is given are this worker's or the job's.
#
# A plain `tf.GradientTape` returns the gradients of this worker. The optimizer reduces them when it
# applies them, if they are just as the tape returned them. If the script has changed them before
# (clipped, scaled, added up), each worker has changed its own, and the update would not be the one
# of a single worker that trains the whole batch: such gradients raise UsageError. `JobTape` returns
# the job's means, which may be changed.
#
# A plain gradient carries a mark, an attribute that no operation passes on to its result. The mark
# is also lost where a gradient enters or leaves a `tf.function`; such gradients, too, raise
# UsageError.

Function = TypeVar("Function", bound=Callable[..., Any])
_MARK = "_edl_local"
_PROCEED = "_edl_proceed"  # of a graph in which gradients were reduced before the update
_APPLIED = "_edl_applied"  # of a graph in which they were applied, too
_OF_LOCAL_VARIABLES = ("register_local_source", "get_local_and_global_gradients")  # of Horovod's


def watch() -> None:
    tape, version_1 = tf.GradientTape, tf.compat.v1
    if not hasattr(tape.gradient, _MARK):
        tape.gradient = _marking(tape.gradient)
        tf.gradients, version_1.gradients = _marking(tf.gradients), _marking(version_1.gradients)


def _marking(function: Function) -> Function:

    @functools.wraps(function)
    def marking(*arguments: Any, **named: Any) -> Any:
        gradients = function(*arguments, **named)
        for gradient in tf.nest.flatten(gradients):
            if gradient is not None:
                setattr(gradient, _MARK, True)
        return gradients

    setattr(marking, _MARK, True)
    return as_it_is(cast(Function, marking))


class JobTape:
    """A tape whose ``gradient`` returns the means over the global batch of all workers.

    A script gets it by ``edl.DistributedGradientTape``, and calls ``gradient`` once for a batch,
    for all variables of the optimizer. It may change the gradients, which the optimizer applies,
    unless no worker has samples in the step, or the others have completed it, after a crash.
    """

    def __init__(self, tape: Any) -> None:
        self._tape = tape

    def __enter__(self) -> JobTape:
        self._tape.__enter__()
        return self

    def __exit__(self, *error: Any) -> Any:
        return self._tape.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        if name in _OF_LOCAL_VARIABLES:
            raise UsageError(f"edl.DistributedGradientTape has no {name}: {LOCAL_LAYERS}")
        return getattr(self._tape, name)

    @as_it_is
    def gradient(self, target: Any, sources: Any, *more: Any, **named: Any) -> Any:
        """Return the mean gradients of ``target`` by ``sources`` over the global batch.

        They are dense tensors, and None for a variable on which the loss does not depend. All
        workers call it for each batch, and wait for each other. Further arguments are those of the
        wrapped tape's method.
        """
        gradients = self._tape.gradient(target, sources, *more, **named)
        means = reduce_early(tf.nest.flatten(gradients), tf.nest.flatten(sources))
        return tf.nest.pack_sequence_as(gradients, means)


def reduce_early(gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    now = training.current()
    means, proceed = now.reduction_of(variables).reduce(gradients, variables, early=True)
    now.reduced_early |= {id(plain(variable)) for variable in variables}
    now.reduces_eagerly |= tf.executing_eagerly()
    if not tf.executing_eagerly():
        graph = tf.compat.v1.get_default_graph()
        setattr(graph, _PROCEED, proceed)
        if hasattr(graph, _APPLIED):
            delattr(graph, _APPLIED)
    for mean in means:
        if hasattr(mean, _MARK):
            delattr(mean, _MARK)  # alone, the means are the gradients themselves
    return means


def for_update(
    gradients: Sequence[Any], variables: Sequence[Any], reduction: GradientReduction
) -> tuple[list[Any], Any]:
    """Return the job's gradients for an optimizer, and whether to apply them: a bool or tensor."""
    now = training.current()
    pairs = [(g, v) for g, v in zip(gradients, variables, strict=True) if g is not None]
    local = [_name(variable) for gradient, variable in pairs if hasattr(gradient, _MARK)]
    if len(local) == len(pairs):
        return reduction.reduce(gradients, variables)
    if local:
        raise UsageError(
            f"some of the gradients are this worker's own ({few(local)}) and the others are not; "
            f"compute all of them with one {_right_way()}"
        )
    unknown = [_name(v) for _, v in pairs if id(plain(v)) not in now.reduced_early]
    if unknown:
        raise UsageError(
            f"the gradients of {few(unknown)} are not as tape.gradient() returned them (or went "
            "through a tf.function): a worker that clips, scales or adds up its own gradients "
            f"changes others than those of the job; compute them with {_right_way()}, whose "
            "gradients are the means over all workers, and change those"
        )
    # A tape has reduced them in this step.
    if tf.executing_eagerly():
        return list(gradients), reduction.applies_early()
    here = tf.compat.v1.get_default_graph()
    if hasattr(here, _APPLIED):
        raise UsageError("apply the gradients of all variables in one apply_gradients()")
    setattr(here, _APPLIED, True)
    graph = None if reduction.is_multi else here
    while graph is not None:
        if hasattr(graph, _PROCEED):
            return list(gradients), getattr(graph, _PROCEED)
        graph = getattr(graph, "outer_graph", None)
    # They were reduced in another function than this one, or their update is to be noted.
    with tf.control_dependencies([tf.convert_to_tensor(gradient) for gradient, _ in pairs]):
        return list(gradients), reduction.applies_early_in_graph()


def _right_way() -> str:
    if tf.compat.v1.executing_eagerly_outside_functions():
        return "edl.DistributedGradientTape(tape)"
    return "compute_gradients() of the edl.Optimizer"


def _name(variable: Any) -> str:
    return str(getattr(variable, "path", variable.name))


Wrapped = TypeVar("Wrapped")
_elastic: weakref.WeakSet[Any] = weakref.WeakSet()  # wrapped optimizers


@overload
def Optimizer(
    optimizer: str | dict[str, Any], model: Any = None, *, backward_passes_per_step: int = 1
) -> Any: ...


@overload
def Optimizer(
    optimizer: Wrapped, model: Any = None, *, backward_passes_per_step: int = 1
) -> Wrapped: ...


def Optimizer(optimizer: Any, model: Any = None, *, backward_passes_per_step: int = 1) -> Any:
    """Let ``optimizer`` apply the mean gradient over the global batch of all workers; return it.

    An update is applied as a whole or not at all. Keras' own clipping (``clipnorm`` and the like)
    sees the means. A script that changes gradients before they are applied computes them with
    :func:`edl.tensorflow.DistributedGradientTape`, or, in a graph, with ``compute_gradients`` of
    the optimizer. If the job's policy file has a table [learning_rate], the optimizer gets that
    rate.

    A script may have several of Keras' optimizers, each with its model, for a GAN for example. With
    each batch any of them may apply gradients, in an order that is equal on all workers. Between
    two calls of ``model.fit`` a new optimizer, given to ``compile``, takes the place of the first.

    Args:
        optimizer: one of ``tf.keras.optimizers``, its name or its configuration, or, in a graph,
            one of ``tf.compat.v1.train``.
        model: the variables that every newcomer receives, beside those that the optimizer was built
            for: a Keras model, a ``tf.Module``, or a list of variables. None: in ``model.fit``
            those of its model, in a graph the global variables, else all variables that were
            created since ``edl.init()``.
        backward_passes_per_step: must be 1; a Keras optimizer accumulates gradients by itself.

    Returns:
        ``optimizer``, the same object; for a name or a configuration, a new Keras optimizer.

    Raises:
        UsageError: ``edl.init()`` was not called; Keras knows no optimizer of this name;
            ``backward_passes_per_step`` is not 1; the optimizer was wrapped already, is of another
            kind, or does not fit the mode that TensorFlow is in (eager or graph); ``model`` is of a
            kind that has no variables; one of several names no model, or comes after the first
            batch; both the script and the policy set a schedule; the updates cannot follow the
            scaling of the rate (Ftrl, Adafactor, or accumulated gradients); or the call is in the
            scope of a ``tf.distribute`` strategy.
    """
    now = training.current()
    if isinstance(optimizer, str | dict):  # as Keras' compile() takes them
        try:
            optimizer = keras.optimizers.get(optimizer)
        except (ValueError, TypeError) as error:
            raise UsageError(f"Keras knows no optimizer {optimizer!r}") from error
    kind: Any = type(optimizer)
    if backward_passes_per_step != 1:
        raise UsageError(
            f"backward_passes_per_step is {backward_passes_per_step}; in TensorFlow give the Keras "
            "optimizer gradient_accumulation_steps instead"
        )
    if is_elastic(optimizer):
        raise UsageError("this optimizer was wrapped by edl.Optimizer already")
    if "horovod" in str(kind.__module__):
        raise UsageError("this optimizer was wrapped by Horovod already; give edl the plain one")
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        if tf.executing_eagerly():
            raise UsageError(
                f"{kind.__name__} of tf.compat.v1.train needs a graph: call "
                "tf.compat.v1.disable_eager_execution() at the start of the script, or use "
                "tf.keras.optimizers"
            )
        elastic = _graph_apply
    elif isinstance(optimizer, keras.optimizers.Optimizer):
        if not tf.executing_eagerly():
            raise UsageError(
                "the script builds graphs (eager execution is disabled), in which Keras "
                "optimizers cannot train: use one of tf.compat.v1.train"
            )
        elastic = _keras_apply
    else:
        raise UsageError(
            "edl.Optimizer wraps an optimizer of tf.keras.optimizers or tf.compat.v1.train; this "
            f"is a {kind.__name__}"
        )
    check_no_strategy()
    follow_policy(optimizer, several=now.has_optimizer and not now.replaces_optimizer)
    check_scaling(optimizer)
    elastic(optimizer, now.attach_optimizer(optimizer, model))
    _elastic.add(optimizer)
    return optimizer


def is_elastic(optimizer: Any) -> bool:
    """Return whether `optimizer` itself, not one inside it, was wrapped by `Optimizer`."""
    return any(optimizer is one for one in _elastic)


def _keras_apply(optimizer: Any, reduction: GradientReduction) -> None:
    """Replace `apply` of a Keras optimizer by a method that first averages over all workers."""
    # `apply_gradients` calls it, too.
    plain, reduction.noise.optimizer = optimizer.apply, optimizer

    def apply(grads: Sequence[Any], trainable_variables: Any = None) -> None:
        check_no_strategy()
        variables = list(
            optimizer._trainable_variables if trainable_variables is None else trainable_variables
        )
        with tf.init_scope():  # not in the branch below
            if not optimizer.built:
                optimizer.build(variables)
            check_scaling(optimizer)  # a MultiOptimizer may have got others when it was built
        check_known(variables, optimizer._trainable_variables)
        means, proceed = for_update(list(grads), variables, reduction)
        # In each step, with an update or without, for a ramp goes on. A graph must not read the
        # momentum before a repair has brought it from others.
        with tf.control_dependencies([] if isinstance(proceed, bool) else [proceed]):
            correct_momentum(optimizer)

        def update() -> None:
            tuner = training.current().tuner
            with tf.control_dependencies(() if tuner is None else tuner.before_update()):
                plain(means, variables)

        if isinstance(proceed, bool):
            if proceed:
                update()
            return

        def applied() -> Any:
            update()
            return tf.constant(True)

        done = tf.cond(proceed, applied, lambda: tf.constant(False))
        setattr(tf.compat.v1.get_default_graph(), APPLIED, done)  # what comes next is to follow it

    optimizer.apply = as_it_is(apply)


def _graph_apply(optimizer: Any, reduction: GradientReduction) -> None:
    """Replace the two methods of a `tf.compat.v1.train` optimizer that `minimize` calls, too."""
    compute, plain = optimizer.compute_gradients, optimizer.apply_gradients

    def compute_gradients(*arguments: Any, **named: Any) -> list[tuple[Any, Any]]:
        gradients, variables = _unzipped(compute(*arguments, **named))
        return list(zip(reduce_early(gradients, variables), variables, strict=True))

    def apply_gradients(
        grads_and_vars: Iterable[tuple[Any, Any]], global_step: Any = None, name: Any = None
    ) -> Any:
        gradients, variables = _unzipped(grads_and_vars)
        means, proceed = for_update(gradients, variables, reduction)
        averaged = list(zip(means, variables, strict=True))
        optimizer._create_slots([v for g, v in averaged if g is not None])  # not in the branch
        update = tf.cond(proceed, lambda: plain(averaged, global_step), tf.no_op, name=name)
        training.current().updates.append(update)
        return update

    optimizer.compute_gradients, optimizer.apply_gradients = compute_gradients, apply_gradients


def _unzipped(pairs: Iterable[tuple[Any, Any]]) -> tuple[list[Any], list[Any]]:
    found = list(pairs)
    return [gradient for gradient, _ in found], [variable for _, variable in found]
