"""Look into a directory of checkpoints, and give up when that takes too long: :func:`looked`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

LOOK_S = 2.0  # for a look into the directory between two steps: all workers wait
T = TypeVar("T")


def looked(look: Callable[[], T], limit_s: float, otherwise: T) -> T:
    """Return what `look` returns, or `otherwise` if that takes longer than `limit_s` seconds."""
    # In a thread: on a file server that is away, `look`, which must raise no error, may take for
    # ever.
    found: list[T] = []
    thread = threading.Thread(
        target=lambda: found.append(look()), name="edl-checkpoint-look", daemon=True
    )
    thread.start()
    thread.join(limit_s)
    return found[0] if found else otherwise
