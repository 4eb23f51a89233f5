"""What ElasticStrategy refuses: each case in a fork of its own, a line "name: sentence" for each.

A case that trains without an error prints "name: trained 5 steps".
"""

import os
import sys
import tempfile
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.callbacks import LearningRateFinder, ModelCheckpoint
from lightning.pytorch.callbacks import StochasticWeightAveraging as Averaging
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, TensorDataset

import edl.torch as edl
from edl.errors import EdlError
from edl.lightning import ElasticStrategy

DATA = TensorDataset(torch.arange(20.0).unsqueeze(1))
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


class Line(L.LightningModule):
    def __init__(self, automatic=True):
        super().__init__()
        self.automatic_optimization = automatic
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, batch):
        return self.layer(batch[0])

    def training_step(self, batch, batch_idx):
        return self(batch).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Unnumbered(IterableDataset):
    def __iter__(self):
        return iter(DATA)


def fit(loader=None, module=None, ckpt_path=None, **options):
    edl.init()
    trainer = L.Trainer(
        accelerator="cpu",
        strategy=ElasticStrategy(),
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **{"max_epochs": 1, "enable_checkpointing": False, **options},
    )
    trainer.fit(
        module or Line(),
        DataLoader(DATA, batch_size=4) if loader is None else loader,
        ckpt_path=ckpt_path,
    )
    return trainer


@case
def nothing():
    fit()


@case
def no_init():
    ElasticStrategy()


@case
def manual_optimization():
    fit(module=Line(automatic=False))


@case
def averaged_weights():
    fit(callbacks=[Averaging(swa_lrs=0.1)])


class WarmedUp(Line):
    """A line with an LR scheduler per step, for which it has a method of its own."""

    def configure_optimizers(self):
        sgd = super().configure_optimizers()
        scheduler = torch.optim.lr_scheduler.StepLR(sgd, 1)
        return {"optimizer": sgd, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def lr_scheduler_step(self, scheduler, metric):
        if self.trainer.global_step > 2:
            scheduler.step()


@case
def own_scheduler_step():
    fit(module=WarmedUp())


@case
def own_scheduler_step_by_updates():
    fit(module=WarmedUp(), max_steps=4, max_epochs=-1)


@case
def rate_finder():
    fit(callbacks=[LearningRateFinder()])


@case
def reloaded():
    fit(reload_dataloaders_every_n_epochs=1)


@case
def drop_last():
    fit(DataLoader(DATA, batch_size=3, drop_last=True))


@case
def sampler():
    fit(DataLoader(DATA, batch_size=4, sampler=RandomSampler(DATA, replacement=True)))


@case
def two_loaders():
    fit([DataLoader(DATA, batch_size=4), DataLoader(DATA, batch_size=4)])


@case
def no_loader():
    fit([(torch.zeros(1, 1),)])


@case
def unnumbered():
    fit(DataLoader(Unnumbered(), batch_size=4))


@case
def second_fit():
    fit()
    fit()


class Stopping(L.Callback):
    """Stop the training after a batch of the first epoch."""

    def __init__(self, batch):
        self.batch = batch

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        trainer.should_stop |= batch_idx == self.batch


@case
def stopped_before_an_update():
    fit(callbacks=[Stopping(1)], accumulate_grad_batches=3, max_epochs=2)


@case
def stopped_between_two_updates():
    fit(callbacks=[Stopping(3)], accumulate_grad_batches=3, max_epochs=2)


@case
def one_more_epoch():
    class Longer(L.Callback):
        def on_train_epoch_end(self, trainer, module):
            trainer.fit_loop.max_epochs = 2

    fit(callbacks=[Longer()])


@case
def inside_an_epoch():
    kept = Path(tempfile.mkdtemp())
    if (pid := os.fork()) == 0:
        saved = ModelCheckpoint(kept, "{step}", every_n_train_steps=2, save_top_k=-1)
        fit(callbacks=[saved], enable_checkpointing=True)
        end()
    os.waitpid(pid, 0)
    fit(ckpt_path=kept / "step=2.ckpt")


@case
def prediction():
    found = fit().predict(Line(), DataLoader(DATA, batch_size=4))
    assert sum(map(len, found)) == len(DATA)


def end():
    sys.stdout.flush()
    os._exit(0)


def main():
    torch.set_num_threads(1)
    for name, function in CASES.items():
        if (pid := os.fork()) == 0:
            try:
                function()
                print(f"{name}: trained {edl.step()} steps")
            except EdlError as error:
                print(f"{name}: {error}")
            end()
        _, status = os.waitpid(pid, 0)
        assert status == 0, f"{name}: see above"


main()
