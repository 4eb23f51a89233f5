"""Record the layer balance of a model that a job trains, counting the samples of the whole job.

The layer balance itself, the norms of each layer's weights over the training, is
:class:`edl.diagnose.LayerBalance`. ``edl.torch`` and ``edl.tensorflow`` find the layers of a model
and make a :class:`JobBalance`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from edl.diagnose import LayerBalance
from edl.errors import UsageError
from edl.framework.process import current_worker, is_initialized
from edl.framework.state import few

Weights = TypeVar("Weights")


class JobBalance(LayerBalance):
    """A record of the norms of a model's layers."""

    def record(self, samples: float | None = None) -> None:
        """Record the present norms of the layers' weights; the script calls this after an update"""
        # A newcomer that warms up records nothing, because the result of its warm-up is discarded.
        if is_initialized() and current_worker().warming_up:
            return
        super().record(_trained() if samples is None else samples)


def _trained() -> int:
    """How many samples all workers together have trained, over all epochs, by edl's loader"""
    if not is_initialized() or not current_worker().loader.progress.attached:
        raise UsageError(
            "balance.record() takes the samples from edl's loader, and there is none here; give "
            "those that are trained so far: balance.record(samples)"
        )
    return current_worker().loader.update.after


def chosen(found: Mapping[str, Weights], layers: Iterable[str] | None) -> dict[str, Weights]:
    """Return a new dict of the chosen layers' weight matrices, by layer name."""
    if layers is None:
        return dict(found)
    names = [layers] if isinstance(layers, str) else [*layers]
    if odd := [name for name in names if name not in found]:
        raise UsageError(
            f"layer_balance: the model has no weight matrix {few(odd)}; it has "
            f"{few(list(found)) or 'none'}"
        )
    return {name: found[name] for name in names}
