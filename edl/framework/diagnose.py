"""The layer balance of a model that a job trains; each framework finds the layers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from edl.diagnose import LayerBalance
from edl.errors import UsageError
from edl.framework.process import current_worker, is_initialized
from edl.framework.state import few

Weights = TypeVar("Weights")


class JobBalance(LayerBalance):
    """One that counts the samples of the job, and leaves warm-ups out."""

    def record(self, samples: float | None = None) -> None:
        """Note the layers as they are now, after an update: :meth:`LayerBalance.record`.

        A newcomer that warms up notes nothing: what it trains there is thrown away.

        Args:
            samples: that are trained so far, over all epochs; None: as edl's loader counts them.

        Raises:
            UsageError: nobody counts them here; or there are no so many.
        """
        if is_initialized() and current_worker().warming_up:
            return
        super().record(_trained() if samples is None else samples)


def _trained() -> int:
    if not is_initialized() or not current_worker().loader.progress.attached:
        raise UsageError(
            "balance.record() takes the samples from edl's loader, and there is none here; give "
            "those that are trained so far: balance.record(samples)"
        )
    return current_worker().loader.update.after


def chosen(found: Mapping[str, Weights], layers: Iterable[str] | None) -> dict[str, Weights]:
    """Those of ``found`` that are named in ``layers``, in that order; None: all.

    Raises:
        UsageError: one is not there.
    """
    if layers is None:
        return dict(found)
    names = [layers] if isinstance(layers, str) else [*layers]
    if odd := [name for name in names if name not in found]:
        raise UsageError(
            f"layer_balance: the model has no weight matrix {few(odd)}; it has "
            f"{few(list(found)) or 'none'}"
        )
    return {name: found[name] for name in names}
