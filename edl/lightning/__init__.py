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

from edl.errors import UsageError

if TYPE_CHECKING:
    from edl.lightning.environment import ElasticEnvironment
    from edl.lightning.strategy import ElasticStrategy

__all__ = ["ElasticEnvironment", "ElasticStrategy"]


def __getattr__(name: str) -> Any:
    """Import Lightning with the first use of a name of this package.

    Raises:
        AttributeError: the package has no such name.
        UsageError: Lightning is not installed.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from edl.lightning import environment, strategy
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("lightning", "torchmetrics"):
            raise
        raise UsageError(
            f"edl.lightning needs the package lightning ({error}): install edl-horovod[lightning]"
        ) from error
    found: Any = getattr(strategy if name == "ElasticStrategy" else environment, name)
    return found
