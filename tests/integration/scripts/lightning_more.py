"""A Trainer with much of what one can have, whose workers end with equal metrics and rates.

Each worker prints "ends with" and what must be equal on all; with --part what a single process
would do as well.
"""

import argparse
import os
from datetime import timedelta
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback, GradientAccumulationScheduler, Timer
from torch.utils.data import DataLoader, TensorDataset

import edl.torch as edl
from edl.lightning import ElasticStrategy
from edl.testing import throttle

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--part", action="store_true", help="parts of epochs, whole validations")
args = parser.parse_args()


class Data(L.LightningDataModule):
    def prepare_data(self):
        with (args.out / "prepared").open("a") as file:
            file.write(f"{os.getpid()} begins\n")
            file.flush()
            file.write(f"{os.getpid()} ends\n")

    def setup(self, stage):
        torch.manual_seed(0)
        x = torch.randn(96, 4)
        self.data = TensorDataset(x, x.sum(1, keepdim=True))

    def train_dataloader(self):
        return DataLoader(self.data, batch_size=4, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.data, batch_size=8)


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 1)
        )
        self.validated = 0

    def training_step(self, batch, batch_idx):
        throttle.throttle_step()
        loss = torch.nn.functional.mse_loss(self.layers(batch[0]), batch[1])
        return {"loss": loss, "more": loss.detach()}

    def validation_step(self, batch, batch_idx):
        self.validated += len(batch[0])
        loss = torch.nn.functional.mse_loss(self.layers(batch[0]), batch[1])
        self.log_dict({"val_loss": loss, "val_worst": loss}, sync_dist=True)

    def on_validation_epoch_end(self):
        sizes = self.all_gather(torch.tensor([edl.rank()]))
        assert sizes.flatten().tolist() in ([*range(edl.size())], [edl.rank()])

    def configure_optimizers(self):
        adam = torch.optim.AdamW(self.parameters(), lr=0.01)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(adam, factor=0.5, patience=0)
        return {
            "optimizer": adam,
            "lr_scheduler": {"scheduler": plateau, "monitor": "val_loss"},
        }


class Count(Callback):
    def __init__(self):
        self.batches, self.validations = {}, 0

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if not edl.is_warming_up():
            self.batches[trainer.current_epoch] = batch_idx + 1

    def on_validation_end(self, trainer, module):
        self.validations += not trainer.sanity_checking


def main():
    torch.set_num_threads(1)
    edl.init()
    count = Count()
    more = {"limit_train_batches": 6, "val_check_interval": 0.5, "use_distributed_sampler": False}
    callbacks = [count, GradientAccumulationScheduler({0: 1, 2: 2}), Timer(timedelta(hours=1))]
    trainer = L.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=ElasticStrategy(),
        max_epochs=4,
        callbacks=callbacks,
        sync_batchnorm=not args.part,
        detect_anomaly=True,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **(more if args.part else {}),
    )
    module = Net()
    trainer.fit(module, datamodule=Data())
    synchronised = any(isinstance(each, torch.nn.SyncBatchNorm) for each in module.modules())
    assert synchronised == (not args.part)
    rate = trainer.optimizers[0].param_groups[0]["lr"]
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    total = sum(value.sum().item() for value in module.state_dict().values())  # BatchNorm's, too
    print("ends with", metrics, rate, total, trainer.global_step, count.batches, count.validations)
    (tested,) = trainer.validate(module, datamodule=Data(), verbose=False)
    assert tested.keys() == {"val_loss", "val_worst"}


main()
