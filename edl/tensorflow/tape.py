"""Tell whether the gradients that an ``edl.Optimizer`` is given are this worker's or the job's.

A plain ``tf.GradientTape`` returns the gradients of this worker. The optimizer reduces them when it
applies them, if they are just as the tape returned them. If the script has changed them before
(clipped, scaled, added up), each worker has changed its own, and the update would not be the one of
a single worker that trains the whole batch: such gradients raise UsageError. :class:`JobTape`
returns the job's means, which may be changed.

A plain gradient carries a mark, an attribute that no operation passes on to its result. The mark is
also lost where a gradient enters or leaves a ``tf.function``; such gradients, too, raise
UsageError.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import tensorflow as tf

from edl.binding.api import LOCAL_LAYERS
from edl.binding.replica import few
from edl.errors import UsageError
from edl.tensorflow import training
from edl.tensorflow.reduction import GradientReduction
from edl.tensorflow.variables import plain

Function = TypeVar("Function", bound=Callable[..., Any])

_MARK = "_edl_local"
_PROCEED = "_edl_proceed"  # of a graph in which gradients were reduced before the update
_APPLIED = "_edl_applied"  # of a graph in which they were applied, too

_OF_LOCAL_VARIABLES = {
    "register_local_source",
    "get_local_and_global_gradients",
}  # of Horovod's tape


def as_it_is(function: Function) -> Function:
    # A translation by AutoGraph takes processor time at the start of each worker, and changes
    # nothing in a function without a branch or a loop over tensors.
    marked: Function = tf.autograph.experimental.do_not_convert(function)
    return marked


def watch() -> None:
    """Let plain tapes and `tf.gradients` mark the gradients that they return."""
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
    """Return the means of `gradients` over the global batch, before the optimizer gets them."""
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
        raise UsageError(_changed(unknown))
    return list(gradients), _proceed(reduction, [gradient for gradient, _ in pairs])


def _proceed(reduction: GradientReduction, gradients: Sequence[Any]) -> Any:
    """Return whether to apply the gradients that a tape has reduced in this step."""
    if tf.executing_eagerly():
        return reduction.applies_early()
    here = tf.compat.v1.get_default_graph()
    if hasattr(here, _APPLIED):
        raise UsageError("apply the gradients of all variables in one apply_gradients()")
    setattr(here, _APPLIED, True)
    graph = None if reduction.several else here
    while graph is not None:
        if hasattr(graph, _PROCEED):
            return getattr(graph, _PROCEED)
        graph = getattr(graph, "outer_graph", None)
    # They were reduced in another function than this one, or their update is to be noted.
    with tf.control_dependencies([tf.convert_to_tensor(each) for each in gradients]):
        return reduction.applies_early_in_graph()


def _changed(names: list[str]) -> str:
    return (
        f"the gradients of {few(names)} are not as tape.gradient() returned them (or went through "
        "a tf.function): a worker that clips, scales or adds up its own gradients changes others "
        f"than those of the job; compute them with {_right_way()}, whose gradients are the means "
        "over all workers, and change those"
    )


def _right_way() -> str:
    if tf.compat.v1.executing_eagerly_outside_functions():
        return "edl.DistributedGradientTape(tape)"
    return "compute_gradients() of the edl.Optimizer"


def _name(variable: Any) -> str:
    return str(getattr(variable, "path", variable.name))
