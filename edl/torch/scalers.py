"""The GradScalers of a script follow the job by themselves: a newcomer has the job's scale."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from torch.amp import GradScaler

_see: Callable[[GradScaler], None] | None = None


def see_scalers(see: Callable[[GradScaler], None]) -> None:
    """Call ``see(scaler)`` each time a scaler is about to scale a loss, in this process.

    PyTorch has no hook for that, and a script need not tell us of its scaler.
    """
    global _see
    if _see is None:
        scale = GradScaler.scale

        @functools.wraps(scale)
        def scale_seen(self: GradScaler, outputs: Any) -> Any:
            if _see is not None and self.is_enabled():
                _see(self)
            return scale(self, outputs)

        GradScaler.scale = scale_seen  # type: ignore[method-assign]
    _see = see


class Scalers:
    """The enabled scalers in the order in which the script first used them, the same everywhere.

    A state may come before the script uses its scaler here: from a checkpoint, as a rule. Then it
    waits. Or a scaler was used in the warm-up of a newcomer, and the job has used none yet: then
    it begins anew.
    """

    def __init__(self) -> None:
        self._seen: list[GradScaler] = []
        self._fresh: list[dict[str, Any]] = []  # their states when they were first seen
        self._awaiting: list[dict[str, Any]] = []  # states of the job's, by the same numbers

    def see(self, scaler: GradScaler) -> None:
        """A scaler is about to be used."""
        if any(seen is scaler for seen in self._seen):
            return
        number = len(self._seen)
        self._seen.append(scaler)
        self._fresh.append(scaler.state_dict())
        if number < len(self._awaiting):
            scaler.load_state_dict(self._awaiting[number])

    def states(self) -> list[dict[str, Any]]:
        known = [scaler.state_dict() for scaler in self._seen]
        return known + self._awaiting[len(known) :]

    def load(self, states: Sequence[dict[str, Any]]) -> None:
        self._awaiting = list(states)
        theirs = self._awaiting + self._fresh[len(self._awaiting) :]
        for scaler, state in zip(self._seen, theirs, strict=False):
            scaler.load_state_dict(state)
