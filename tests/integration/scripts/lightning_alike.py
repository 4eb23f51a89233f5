"""Train alike by Lightning alone and by ElasticStrategy in a job of one: a JSON line for each case.

A line has the name of the case and two lists, Lightning's own and edl's: what hooks read of the
trainer before, in and after each batch; and for each update, the batch after which it was made, the
weight of the model after it, and how many steps the LR scheduler had made before it.
"""

import json
import os
import sys

import lightning as L
import torch
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch.utils.data import DataLoader, TensorDataset

import edl.torch as edl
from edl.lightning import ElasticStrategy

CASES = {
    "accumulated": {"accumulate_grad_batches": 4},
    "accumulated with a rest": {"accumulate_grad_batches": 3},
    "frequency": {"frequency": 3},
    "frequency of the accumulation": {"accumulate_grad_batches": 4, "frequency": 4},
    "other frequency": {"accumulate_grad_batches": 4, "frequency": 2},
    "callback": {"scheduling": {0: 4}},
    "callback and frequency": {"scheduling": {0: 1, 1: 2, 3: 4}, "frequency": 2},
    "limited": {"accumulate_grad_batches": 2, "limit_train_batches": 5},
    "limited below a group": {"accumulate_grad_batches": 4, "limit_train_batches": 3},
    "limited to a part": {"accumulate_grad_batches": 2, "limit_train_batches": 0.3},
    "fast_dev_run": {"accumulate_grad_batches": 4, "fast_dev_run": True},
    "max_steps": {"accumulate_grad_batches": 2, "max_steps": 20, "max_epochs": -1},
}


class Line(L.LightningModule):
    def __init__(self, frequency):
        super().__init__()
        self.frequency = frequency
        self.layer = torch.nn.Linear(1, 1)
        self.updates = []
        self.estimated = None

    def on_train_batch_start(self, batch, batch_idx):
        self.read(batch_idx)

    def on_train_batch_end(self, output, batch, batch_idx):
        self.read(batch_idx)

    def on_train_epoch_end(self):
        self.read(None)

    def read(self, batch_idx):
        trainer = self.trainer
        rate = trainer.optimizers[0].param_groups[0]["lr"]
        lengths = trainer.num_training_batches, len(trainer.train_dataloader)
        place = batch_idx, trainer.global_step, trainer.current_epoch, trainer.is_last_batch
        (config,) = trainer.lr_scheduler_configs
        estimated = self.estimated  # it cannot be estimated where accumulation changes
        if not any(isinstance(one, GradientAccumulationScheduler) for one in trainer.callbacks):
            estimated = trainer.estimated_stepping_batches
        loader = trainer.train_dataloader.batch_size, config.interval, config.frequency
        checks = trainer.val_check_batch
        self.updates.append((*place, *lengths, estimated, rate, *loader, checks))

    def training_step(self, batch, batch_idx):
        self.read(batch_idx)
        return self.layer(batch[0]).mean()

    def optimizer_step(self, epoch, batch_idx, *arguments):
        super().optimizer_step(epoch, batch_idx, *arguments)
        self.updates.append((batch_idx, self.layer.weight.item(), self.steps))

    def configure_optimizers(self):
        sgd = torch.optim.SGD(self.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(sgd, 1, gamma=0.99)
        sgd.register_step_post_hook(lambda *_: setattr(self, "steps", scheduler.last_epoch))
        config = {"scheduler": scheduler, "interval": "step", "frequency": self.frequency}
        return {"optimizer": sgd, "lr_scheduler": config}


def train(strategy, samples=16, frequency=1, scheduling=None, **options):
    """Return the updates of a training."""
    torch.manual_seed(0)
    callbacks = [] if scheduling is None else [GradientAccumulationScheduler({**scheduling})]
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        strategy=strategy,
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **{"max_epochs": 4, **options},
    )
    module = Line(frequency)
    trainer.fit(module, DataLoader(TensorDataset(torch.ones(samples, 1)), batch_size=1))
    module.read(None)
    return module.updates


def main():
    torch.set_num_threads(1)
    for name, options in CASES.items():
        alone = train(SingleDeviceStrategy("cpu"), **options)
        if (pid := os.fork()) == 0:
            edl.init()
            print(json.dumps([name, alone, train(ElasticStrategy(), **options)]))
            sys.stdout.flush()
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        assert status == 0, f"{name}: see above"


main()
