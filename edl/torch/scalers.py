"""Share the states of a script's GradScalers, so that a newcomer has the loss scale of the job.

:class:`Scalers` has their states; :func:`see_scalers` tells when a scaler is used.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from torch.amp import GradScaler

_see: Callable[[GradScaler], None] | None = None


def see_scalers(see: Callable[[GradScaler], None]) -> None:
    """Register `see`: `see(scaler)` is called each time a GradScaler is about to scale a loss."""
    global _see
    if _see is None:  # PyTorch has no hook for that, and a script need not name its scaler to edl
        scale = GradScaler.scale

        @functools.wraps(scale)
        def scale_seen(self: GradScaler, outputs: Any) -> Any:
            if _see is not None and self.is_enabled():
                _see(self)
            return scale(self, outputs)

        GradScaler.scale = scale_seen  # type: ignore[method-assign]
    _see = see


class Scalers:
    """The GradScalers of a script, in the order of their first use, the same on all workers."""

    def __init__(self) -> None:
        self._seen: list[GradScaler] = []
        self._fresh: list[dict[str, Any]] = []  # their states when they were first seen
        self._awaiting: list[dict[str, Any]] = []  # states of the job's, by the same numbers

    def see(self, scaler: GradScaler) -> None:
        """Add `scaler`, which is about to be used, as the next one in the order."""
        if any(seen is scaler for seen in self._seen):
            return
        number = len(self._seen)
        self._seen.append(scaler)
        self._fresh.append(scaler.state_dict())
        if number < len(self._awaiting):
            scaler.load_state_dict(self._awaiting[number])

    def states(self) -> list[dict[str, Any]]:
        """Return the state of each scaler, in order."""
        known = [scaler.state_dict() for scaler in self._seen]
        return known + self._awaiting[len(known) :]

    def load(self, states: Sequence[dict[str, Any]]) -> None:
        """Load `states`, the job's states of its scalers in the order of `states`."""
        self._awaiting = list(states)
        # One that was used in the warm-up only, and by nobody else yet, begins anew.
        theirs = self._awaiting + self._fresh[len(self._awaiting) :]
        for scaler, state in zip(self._seen, theirs, strict=False):
            scaler.load_state_dict(state)
