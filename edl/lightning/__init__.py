"""Train LightningModules on workers that may join and leave during the training.

::

    import edl.torch as edl
    from edl.lightning import ElasticStrategy

    edl.init()
    trainer = lightning.Trainer(strategy=ElasticStrategy(), max_epochs=10)
    trainer.fit(model, train_dataloaders, val_dataloaders)

It needs the package ``lightning`` (``pip install edl-horovod[lightning]``), which no other part of
edl imports. See docs/guides/lightning.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edl.binding.api import import_adapter

if TYPE_CHECKING:
    from edl.lightning.strategy import ElasticEnvironment, ElasticStrategy

__all__ = ["ElasticEnvironment", "ElasticStrategy"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    libraries = ("lightning", "torchmetrics")
    return getattr(import_adapter(f"{__name__}.strategy", libraries, "lightning"), name)
