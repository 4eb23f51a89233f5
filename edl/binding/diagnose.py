"""Record the layer balance of a model that a job trains, counting the samples of the whole job.

The layer balance itself, the norms of each layer's weights over the training, is
:class:`edl.diagnose.LayerBalance`. ``edl.torch`` and ``edl.tensorflow`` find the layers of a model
and make a :class:`JobBalance`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from edl.binding.process import current_worker, is_initialized
from edl.binding.replica import few
from edl.diagnose import LayerBalance
from edl.errors import UsageError

Weights = TypeVar("Weights")


class JobBalance(LayerBalance):
    """A layer balance that counts the samples of the whole job."""

    def record(self, samples: float | None = None) -> None:
        """Record the norms after an update; `samples` None: as many as edl's loader has counted."""
        if is_initialized() and current_worker().warming_up:
            return  # the result of a warm-up is discarded
        super().record(_trained() if samples is None else samples)


def _trained() -> int:
    """Return how many samples all workers have trained in all epochs, by edl's loader."""
    if not is_initialized() or not current_worker().loader.progress.attached:
        raise UsageError(
            "balance.record() takes the samples from edl's loader, and there is none here; give "
            "those that are trained so far: balance.record(samples)"
        )
    return current_worker().loader.update.after  # those of the present update are counted


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
