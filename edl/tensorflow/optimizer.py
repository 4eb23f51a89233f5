"""Define ``edl.tensorflow.Optimizer``, which makes an optimizer's updates the steps of the job.

It replaces the method through which the optimizer applies gradients, on that object only. The
new method reduces the gradients first, unless :mod:`edl.tensorflow.tape` has done it, and applies
them only if all were reduced. In an optimizer of TensorFlow 1, the method that computes gradients
is replaced, too, and returns the means over all workers. The object keeps its class, because Keras
checks the class, and saved models have the class's name.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar, overload

import keras
import tensorflow as tf

from edl.errors import UsageError
from edl.tensorflow import training
from edl.tensorflow.collectives import refuse_strategy
from edl.tensorflow.lr_schedules import check_scaling, correct_momentum, follow_policy
from edl.tensorflow.reduction import APPLIED, GradientReduction
from edl.tensorflow.tape import as_it_is, for_update, reduce_early
from edl.tensorflow.variables import check_known

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
    refuse_strategy()
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
        refuse_strategy()
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

        _if(proceed, update)

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


def _if(proceed: Any, apply: Any) -> None:
    """Call `apply`, which makes an update, if `proceed` is true; the graph decides a tensor."""
    if isinstance(proceed, bool):
        if proceed:
            apply()
        return

    def applied() -> Any:
        apply()
        return tf.constant(True)

    update = tf.cond(proceed, applied, lambda: tf.constant(False))
    setattr(tf.compat.v1.get_default_graph(), APPLIED, update)  # what comes next is to follow it
