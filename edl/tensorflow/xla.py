"""Keep XLA away from steps with collectives, which XLA cannot compile."""

from __future__ import annotations

import logging
import sys
from typing import Any

from edl.errors import UsageError

logger = logging.getLogger(__name__)


def turn_off_xla(model: Any) -> None:
    """Set `jit_compile` of a Keras `model` to False, before its first step is traced."""
    if model.jit_compile:
        logger.warning("jit_compile is turned off: XLA cannot compile steps with collectives")
        model.jit_compile = False


APPLIES = (
    "a tf.function with jit_compile=True applies gradients, and XLA cannot compile collectives: "
    "leave jit_compile out there, or give it to a function that only computes the loss"
)


def refuse_xla(why: str = APPLIES) -> None:
    """Raise UsageError if the stack shows that a `tf.function(jit_compile=True)` is traced."""
    frame: Any = sys._getframe()
    while frame is not None:
        if getattr(frame.f_locals.get("self"), "_jit_compile", False) is True:
            raise UsageError(why)
        frame = frame.f_back
