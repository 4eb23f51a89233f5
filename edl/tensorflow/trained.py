"""Find the variables that a script trains: :class:`TrainedModel` and :func:`shared_variables`."""

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
    """An optimizer, the model that it trains, and the reduction of its gradients.

    Attributes:
        optimizer: the optimizer that the script gave to ``edl.Optimizer``.
        model: the model, as the script gave it; None: it named none.
        reduction: the reduction of the optimizer's gradients over all workers.
    """

    optimizer: Any
    model: Any
    reduction: GradientReduction

    def variables(self) -> list[Any]:
        """Return a list of the model's variables, of Keras or TensorFlow.

        The list is empty if the script has named no model, or a model that has no variables yet.
        """
        return list(variables_of(self.model) or [])

    def updated(self) -> list[Any]:
        """Return a list of the variables that an optimizer of Keras was built for.

        They are not all the model's if the script has built it for others, too. The list is empty
        for an optimizer that is not built, and one of TensorFlow 1.
        """
        return list(getattr(self.optimizer, "_trainable_variables", ()))

    def changed(self) -> list[Any]:
        """Return a list of the variables that an update of an optimizer of Keras changes.

        They are those of :meth:`updated` that have had a gradient, as soon as any has had one. The
        others are the script's to change: if the model has an average of its own weights in it, a
        ``train_step`` assigns that. They are all if the optimizer puts averages in their place.
        """
        found, reduced = self.updated(), self.reduction.with_gradient
        inner = with_inner(self.optimizer)
        if not reduced or any(getattr(one, "ema_overwrite_frequency", None) for one in inner):
            return found
        return [variable for variable in found if id(plain(variable)) in reduced]

    def known(self) -> list[Any]:
        """Return a list of the model's variables, and of those that the optimizer was built for."""
        return [*self.variables(), *self.updated()]

    def build(self, otherwise: Callable[[], list[Any]]) -> None:
        """Let an optimizer of Keras create its variables, if it has not yet.

        It is built for the trainable variables of the model, or of what ``otherwise()`` returns if
        the script has named no model. If none is trainable at present, that is left to the script.

        Raises:
            UsageError: there are no variables yet.
        """
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
    """Return the variables that workers share beside those of the optimizers, each once.

    They are the variables of the models that the script has named and of ``fitted``. Without any of
    these they are the variables created since ``edl.init()`` that are not the optimizers'. Then
    come those that an optimizer was built for and that are not among these.

    Args:
        trained: the optimizers of Keras with their models.
        fitted: the model that ``fit`` trains; None: there is none.
    """
    models = [each.variables() for each in trained if each.model is not None]
    if fitted is not None:
        models.append(list(variables_of(fitted) or []))
    if not models:
        others = {id(plain(v)) for each in trained for v in each.optimizer.variables}
        models = [[variable for variable in CREATED.alive() if id(variable) not in others]]
    found: dict[int, Any] = {}
    for variables in (*models, *(each.updated() for each in trained)):
        for variable in variables:
            found.setdefault(id(plain(variable)), variable)
    return list(found.values())
