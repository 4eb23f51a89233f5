"""The counting model as a LightningModule, with what people give a Trainer; see tally.py.

Validation counts, too: `val_count` is the mean of how often the samples were trained, and
`val_seen`, a metric of torchmetrics, how many samples all workers have validated together.
"""

import time
from pathlib import Path

import lightning as L
import torch
import torchmetrics
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from tally import Diary, counted, parser
from torch.utils.data import DataLoader
from torch_model import CountingModel, Indices

import edl.torch as edl
from edl.lightning import ElasticStrategy

CLIP, EPS = 0.2, 1e-6  # the norm of a mean gradient of 8 samples is 0.35; PyTorch adds EPS
HOLD_S = 300.0  # at most, for a validation that a test holds

options = parser()
options.add_argument("--max-steps", type=int, default=-1)
options.add_argument("--stop-after", type=int, help="epochs: by EarlyStopping")
options.add_argument("--ckpt", help="of Lightning, to begin with")
options.add_argument("--check-every", type=float, default=1.0)
options.add_argument("--precision", default="32-true")
options.add_argument("--hold", type=Path, help="validation stands still as long as it exists")
options.add_argument("--each-validation-batch", action="store_true", help="exchange something")


class Counting(L.LightningModule):
    def __init__(self, samples):
        super().__init__()
        self.model = CountingModel(samples)
        self.other = torch.nn.Parameter(torch.zeros(()))  # its rate is scheduled
        self.seen = torchmetrics.SumMetric()
        self.trained = torchmetrics.SumMetric()

    def training_step(self, indices, batch_idx):
        loss = self.model(indices) + 0 * self.other
        self.trained(edl.batch_weight())
        self.log("train_loss", loss, on_step=True, on_epoch=True, sync_dist=True, prog_bar=True)
        self.log("trained", self.trained, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, indices, batch_idx):
        if args.hold and not self.trainer.sanity_checking and args.hold.exists():
            print("validates", flush=True)
            deadline = time.monotonic() + HOLD_S
            while args.hold.exists():
                assert time.monotonic() < deadline, f"{args.hold} is still there after {HOLD_S:g} s"
                time.sleep(0.05)
        self.seen(len(indices))
        self.log("val_count", self.model.count[indices].double().mean(), sync_dist=True)
        each = {"on_step": True, "on_epoch": True} if args.each_validation_batch else {}
        self.log("val_mean", indices.double().mean(), sync_dist=True, **each)
        self.log("val_seen", self.seen)

    def configure_optimizers(self):
        groups = [{"params": [self.model.w]}, {"params": [self.other]}]
        sgd = torch.optim.SGD(groups, lr=1.0)
        total = self.trainer.estimated_stepping_batches
        falls = [lambda step: 1.0, lambda step: max(0.0, 1 - step / total)]
        scheduler = torch.optim.lr_scheduler.LambdaLR(sgd, falls)
        return {"optimizer": sgd, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class Watch(Callback):
    """Keep the diary: what each step did to the model."""

    def __init__(self):
        self.diary = Diary(args)
        self.rates, self.logged = [], {}

    def on_train_start(self, trainer, module):
        self.begun = trainer.global_step  # by a checkpoint of Lightning's

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.diary.begin_step(module.model.steps.item())
        self.diary.in_step()
        assert batch_idx == trainer.fit_loop.epoch_loop.batch_idx

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        model = module.model
        if edl.is_warming_up() or torch.equal(model.w, model.before):
            return
        times, problem = counted(model.before.numpy(), model.w.detach().numpy(), CLIP, EPS)
        with torch.no_grad():
            model.before.copy_(model.w)
            model.steps += 1
            model.count += torch.from_numpy(times)
        self.diary.end_step(model.steps.item(), problem)
        assert trainer.global_step == self.begun + edl.step()
        self.rates.append(trainer.optimizers[0].param_groups[1]["lr"])
        self.logged[edl.step()] = float(trainer.callback_metrics["train_loss_step"])

    def on_train_epoch_end(self, trainer, module):
        if not edl.is_warming_up():
            metrics = trainer.callback_metrics
            shown = {
                name: float(metrics[name])
                for name in ("val_count", "val_mean", "val_seen", "train_loss_epoch", "trained")
            }
            self.diary.end_epoch(trainer.current_epoch, module.model.count, **shown)


torch.set_num_threads(1)
if __name__ == "__main__":
    args = options.parse_args()
    edl.init()
    loader = DataLoader(
        Indices(args.samples),
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.num_workers,
    )
    validation = DataLoader(Indices(args.samples), batch_size=16)
    watch = Watch()
    kept = ModelCheckpoint(
        args.out / "kept", "{epoch}", monitor="val_count", mode="max", save_top_k=-1
    )
    stop = EarlyStopping(
        "val_count", mode="max", patience=100, stopping_threshold=(args.stop_after or 999) - 0.5
    )
    if args.checkpoint:
        edl.checkpoint(args.checkpoint, every_s=args.every, keep=args.keep)
    trainer = L.Trainer(
        accelerator="cpu",
        strategy=ElasticStrategy(seed=7),
        max_epochs=args.epochs,
        max_steps=args.max_steps,
        accumulate_grad_batches=args.accumulate,
        gradient_clip_val=CLIP,
        callbacks=[watch, kept, stop],
        logger=CSVLogger(args.out / "logs"),
        log_every_n_steps=5,
        val_check_interval=args.check_every,
        enable_model_summary=False,
        precision=args.precision,
    )
    model = Counting(args.samples)
    trainer.fit(model, loader, validation, ckpt_path=args.ckpt)
    counting = model.model
    watch.diary.report(
        counting.w.detach().numpy(),
        counting.count,
        counting.steps.item(),
        rates=watch.rates,
        logged=watch.logged,
        best=kept.best_model_path,
        epoch=trainer.current_epoch,
        global_step=trainer.global_step,
    )
