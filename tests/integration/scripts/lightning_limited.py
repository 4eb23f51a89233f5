"""Train 4 epochs of 20 batches, by ``limit_train_batches``, with an LR schedule of 80 steps.

Each worker prints "made" and, as JSON, for each of its updates the epoch, the batch and how many
steps the LR scheduler had made before it, and how many updates the job has made in all.
"""

import argparse
import json

import lightning as L
import torch
from torch.utils.data import DataLoader, TensorDataset

import edl.torch as edl
from edl.lightning import ElasticStrategy
from edl.testing import throttle

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--checkpoint", help="save into this directory")
args = parser.parse_args()


class Line(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.updates = []

    def training_step(self, batch, batch_idx):
        throttle.throttle_step()
        return self.layer(batch[0]).mean()

    def optimizer_step(self, epoch, batch_idx, *arguments):
        super().optimizer_step(epoch, batch_idx, *arguments)
        if not edl.is_warming_up():
            self.updates.append((epoch, batch_idx, self.steps))

    def configure_optimizers(self):
        sgd = torch.optim.SGD(self.parameters(), lr=0.1)
        total = self.trainer.estimated_stepping_batches
        scheduler = torch.optim.lr_scheduler.OneCycleLR(sgd, 0.1, total_steps=total)
        sgd.register_step_post_hook(lambda *_: setattr(self, "steps", scheduler.last_epoch))
        return {"optimizer": sgd, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


torch.set_num_threads(1)
edl.init()
if args.checkpoint:
    edl.checkpoint(args.checkpoint, every_s=0.5)
trainer = L.Trainer(
    accelerator="cpu",
    strategy=ElasticStrategy(),
    max_epochs=4,
    limit_train_batches=20,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
module = Line()
trainer.fit(module, DataLoader(TensorDataset(torch.ones(800, 1)), batch_size=4))
print("made", json.dumps({"updates": module.updates, "step": edl.step()}))
