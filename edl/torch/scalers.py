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
    """Register ``see``: ``see(scaler)`` is called each time a GradScaler is about to scale a loss.

    A scaler that is not enabled is passed over. The first call replaces ``GradScaler.scale``,
    because PyTorch has no hook for that and a script need not name its scaler to edl. Only the
    function registered last is called.
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
    """The GradScalers of a script, in the order of their first use, which is equal on all workers.

    The job's state of a scaler may arrive before the script uses that scaler here, mostly from a
    checkpoint; it is kept, and loaded at the first use. If a newcomer has used a scaler in its
    warm-up and the job has used none yet, :meth:`load` sets the scaler back to its initial state.
    """

    def __init__(self) -> None:
        self._seen: list[GradScaler] = []
        self._fresh: list[dict[str, Any]] = []  # their states when they were first seen
        self._awaiting: list[dict[str, Any]] = []  # states of the job's, by the same numbers

    def see(self, scaler: GradScaler) -> None:
        """Add ``scaler``, which is about to be used, as the next one in the order.

        If :meth:`load` has brought a state for its place in the order, the scaler gets that state.
        A scaler that was added before is left alone.
        """
        if any(seen is scaler for seen in self._seen):
            return
        number = len(self._seen)
        self._seen.append(scaler)
        self._fresh.append(scaler.state_dict())
        if number < len(self._awaiting):
            scaler.load_state_dict(self._awaiting[number])

    def states(self) -> list[dict[str, Any]]:
        """Return the state of each scaler, in order.

        The job's states of scalers that the script has not used here yet are included.
        """
        known = [scaler.state_dict() for scaler in self._seen]
        return known + self._awaiting[len(known) :]

    def load(self, states: Sequence[dict[str, Any]]) -> None:
        """Load ``states``, the job's states of its scalers in the order of :meth:`states`.

        The state of a scaler that is not used here yet is kept until it is used. A scaler of this
        worker that the job has not is set back to its state at its first use.
        """
        self._awaiting = list(states)
        theirs = self._awaiting + self._fresh[len(self._awaiting) :]
        for scaler, state in zip(self._seen, theirs, strict=False):
            scaler.load_state_dict(state)
