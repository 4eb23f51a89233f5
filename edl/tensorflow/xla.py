"""Models that Keras would compile with XLA."""

from __future__ import annotations

import logging
from typing import Any

logger = logging.getLogger(__name__)


def turn_off_xla(model: Any) -> None:
    """Collectives are no part of XLA programs; nor are Horovod's own."""
    if model.jit_compile:
        logger.warning("jit_compile is turned off: XLA cannot compile steps with collectives")
        model.jit_compile = False
