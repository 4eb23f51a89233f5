"""Refuse what a Trainer cannot do on workers that come and go, with what to do instead."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from edl.errors import UsageError

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

# Callbacks by name: some are only in some releases of Lightning.
CALLBACKS = {
    "StochasticWeightAveraging": "its averaged weights do not reach newcomers; track an average of "
    "your own by edl.track",
    "WeightAveraging": "its averaged weights do not reach newcomers; track an average of your own "
    "by edl.track",
    "EMAWeightAveraging": "its averaged weights do not reach newcomers; track an average of your "
    "own by edl.track",
    "LearningRateFinder": "it trains several times, and a job trains once; run it before, in a "
    "script of its own",
    "BatchSizeFinder": "it trains several times, and a job trains once; run it before, in a script "
    "of its own",
    "ModelPruning": "it changes the parameters outside of the optimizer's update",
}


def why_refused(trainer: Trainer, module: LightningModule) -> str:
    if not module.automatic_optimization:
        return (
            "the module must leave optimization to Lightning; leave out automatic_optimization = "
            "False, or write the loop with edl.torch (docs/guides/lightning.md)"
        )
    kinds = {kind.__name__ for each in trainer.callbacks for kind in type(each).__mro__}
    for name in sorted(kinds & CALLBACKS.keys()):
        return f"the callback {name} does not work: {CALLBACKS[name]}"
    if trainer.reload_dataloaders_every_n_epochs:
        every = trainer.reload_dataloaders_every_n_epochs
        return (
            "the training loader stays the same; leave out "
            f"reload_dataloaders_every_n_epochs={every}"
        )
    if "dataloader_iter" in inspect.signature(module.training_step).parameters:
        return "training_step takes a batch; it cannot take a dataloader_iter"
    return ""


def check_own_steps(trainer: Trainer, has_own_step: bool) -> None:
    configs = trainer.lr_scheduler_configs
    steps = any(one.interval == "step" and not one.reduce_on_plateau for one in configs)
    if has_own_step and steps and trainer.max_steps == -1:
        raise UsageError(
            "with ElasticStrategy an LR scheduler per step counts samples, and lr_scheduler_step "
            "of the module would not be called for it; leave the method out, give the Trainer "
            'max_steps, or the scheduler "interval": "epoch"'
        )
