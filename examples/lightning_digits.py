"""Train a small convolutional network on handwritten digits, with Lightning's Trainer.

Alone, in half a minute (`pip install lightning` first):

    python examples/lightning_digits.py

Elastic, and slow enough to watch; then, in another terminal, `edl scale --np 4`:

    edl run -np 2 --max-np 4 python examples/lightning_digits.py --epochs 60 --step-delay 0.1

What differs from a script for one process is marked with (edl).
"""

import argparse
import time

import lightning as L
import torch
import torch.nn.functional as F
from digits_data import load
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

import edl.torch as edl  # (edl)
from edl.lightning import ElasticStrategy  # (edl)

# ---------------------------------------------------------------------------------------------
# Settings
parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--batch-size", type=int, default=32, help="samples of one worker in a step")
parser.add_argument("--num-workers", type=int, default=0, help="processes that load data")
parser.add_argument("--step-delay", type=float, default=0.0, help="seconds to sleep in each step")
parser.add_argument("--kept", default="lightning_digits", help="the folder of the best models")

held_out = 6  # every 6th image is held out: 300 to validate, 1,497 to train on


class Digits(L.LightningModule):
    def __init__(self, learning_rate=0.1, step_delay=0.0):
        super().__init__()
        self.save_hyperparameters()
        self.network = nn.Sequential(
            nn.Conv2d(1, 16, kernel_size=3, padding=1),  # 16 x 8 x 8
            nn.ReLU(),
            nn.MaxPool2d(2),  # 16 x 4 x 4
            nn.Flatten(),
            nn.Linear(16 * 4 * 4, 64),
            nn.ReLU(),
            nn.Linear(64, 10),
        )
        self.accuracy = MulticlassAccuracy(num_classes=10, average="micro")

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.network(x), y)  # a mean over the batch
        self.log("train_loss", loss, prog_bar=True)
        time.sleep(self.hparams.step_delay)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        scores = self.network(x)
        self.accuracy(scores, y)
        self.log("val_loss", F.cross_entropy(scores, y), sync_dist=True)
        self.log("val_accuracy", self.accuracy, prog_bar=True)

    def configure_optimizers(self):
        sgd = torch.optim.SGD(self.parameters(), lr=self.hparams.learning_rate, momentum=0.9)
        steps = self.trainer.estimated_stepping_batches
        one_cycle = torch.optim.lr_scheduler.OneCycleLR(
            sgd, max_lr=self.hparams.learning_rate, total_steps=steps
        )
        return {"optimizer": sgd, "lr_scheduler": {"scheduler": one_cycle, "interval": "step"}}


def main():
    args = parser.parse_args()
    edl.init()  # (edl) a job of one without a launcher
    L.seed_everything(0)
    torch.set_num_threads(1)  # the workers share this machine's cores

    images, labels = map(torch.from_numpy, load())
    images = images.unsqueeze(1)  # one channel
    test = torch.arange(len(labels)) % held_out == 0
    training = TensorDataset(images[~test], labels[~test])
    validation = TensorDataset(images[test], labels[test])

    trainer = L.Trainer(
        accelerator="cpu",
        strategy=ElasticStrategy(),  # (edl)
        max_epochs=args.epochs,
        gradient_clip_val=1.0,
        log_every_n_steps=10,
        callbacks=[
            ModelCheckpoint(args.kept, monitor="val_accuracy", mode="max"),
            EarlyStopping("val_loss", patience=20),
            LearningRateMonitor(),
        ],
    )
    trainer.fit(
        Digits(step_delay=args.step_delay),
        DataLoader(
            training, batch_size=args.batch_size, shuffle=True, num_workers=args.num_workers
        ),
        DataLoader(validation, batch_size=100),
    )
    accuracy = trainer.callback_metrics["val_accuracy"].item()
    if edl.rank() == 0:
        print(f"accuracy {accuracy:.3f} workers {edl.size()}")


if __name__ == "__main__":
    main()
