"""Find the variables that a script trains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from edl.errors import UsageError
from edl.tensorflow.lr_schedule import with_inner
from edl.tensorflow.reduction import GradientReduction
from edl.tensorflow.replica import NO_VARIABLES
from edl.tensorflow.variables import CREATED, plain, variables_of


@dataclass(frozen=True)
class TrainedModel:
    """An optimizer, the model that it trains, and the reduction of its gradients."""

    optimizer: Any
    model: Any  # as the script gave it; None: it named none
    reduction: GradientReduction

    def variables(self) -> list[Any]:
        return list(variables_of(self.model) or [])

    def updated(self) -> list[Any]:
        """Return the variables that an optimizer of Keras was built for, also of other models."""
        return list(getattr(self.optimizer, "_trainable_variables", ()))

    def changed(self) -> list[Any]:
        """Return the variables that an update of an optimizer of Keras changes."""
        # Those that have had a gradient, once any has. The others are the script's to change: an
        # average of the weights in the model, which a `train_step` assigns.
        found, reduced = self.updated(), self.reduction.with_gradient
        inner = with_inner(self.optimizer)
        if not reduced or any(getattr(one, "ema_overwrite_frequency", None) for one in inner):
            return found
        return [variable for variable in found if id(plain(variable)) in reduced]

    def known(self) -> list[Any]:
        """Return a list of the model's variables, and of those that the optimizer was built for."""
        return [*self.variables(), *self.updated()]

    def build(self, otherwise: Callable[[], list[Any]]) -> None:
        """Let an optimizer of Keras create its variables, if it has not yet."""
        if self.optimizer.built:
            return
        variables = otherwise() if self.model is None else self.variables()
        if not variables:
            name = getattr(self.model, "name", None)
            raise UsageError(NO_VARIABLES.format(name="" if name is None else f" {name}"))
        if trainable := [variable for variable in variables if variable.trainable]:
            with tf.init_scope():
                self.optimizer.build(trainable)


def shared_variables(trained: Sequence[TrainedModel], fitted: Any) -> list[Any]:
    """Return the variables that workers share beside those of the optimizers, each once."""
    models = [each.variables() for each in trained if each.model is not None]
    if fitted is not None:
        models.append(list(variables_of(fitted) or []))
    if not models:  # all that were created since `edl.init()`
        others = {id(plain(v)) for each in trained for v in each.optimizer.variables}
        models = [[variable for variable in CREATED.alive() if id(variable) not in others]]
    found: dict[int, Any] = {}
    for variables in (*models, *(each.updated() for each in trained)):
        for variable in variables:
            found.setdefault(id(plain(variable)), variable)
    return list(found.values())
