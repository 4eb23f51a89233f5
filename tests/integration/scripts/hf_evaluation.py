"""Evaluate in Hugging Face's Trainer while it trains; a worker may be killed in an evaluation.

Each label is the number of its sample, so that the metrics show which samples were evaluated, and
how often.
"""

import argparse
import json
import os
import signal
from pathlib import Path

import torch
from transformers import TrainingArguments

import edl.torch as edl
from edl.huggingface import Trainer

edl.init()
SAMPLES, EVALUATED = 48, 37


class Samples(torch.utils.data.Dataset):
    def __init__(self, samples):
        self._samples = samples

    def __len__(self):
        return self._samples

    def __getitem__(self, index):
        # Rows of several lengths, which are padded where they come together.
        return {"x": torch.full((1 + index % 3,), float(index)), "labels": index}


def collate(rows):
    x = torch.nn.utils.rnn.pad_sequence([row["x"] for row in rows], batch_first=True)
    return {"x": x, "labels": torch.tensor([row["labels"] for row in rows])}


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x, labels):
        if not self.training:
            passes.append(labels.tolist())
            die_here(labels)
        loss = ((self.w - labels / EVALUATED) ** 2).mean()
        return {"loss": loss, "logits": x + 0 * self.w}


def die_here(labels):
    """End this process by SIGKILL, if it is the one that is to die at this batch."""
    if args.dies_at in labels.tolist():
        try:
            os.close(os.open(args.out / "died", os.O_CREAT | os.O_EXCL))
        except FileExistsError:  # its successor has this batch
            return
        os.kill(os.getpid(), signal.SIGKILL)


def compute_metrics(prediction):
    if prediction.label_ids.tolist() != list(range(EVALUATED)):
        raise AssertionError(f"the labels are {prediction.label_ids.tolist()}")
    if prediction.predictions[:, 0].tolist() != list(map(float, range(EVALUATED))):
        raise AssertionError(f"the predictions are {prediction.predictions[:, 0].tolist()}")
    if prediction.predictions.shape != (EVALUATED, 3):
        raise AssertionError(f"they have the shape {prediction.predictions.shape}")
    return {"samples": len(prediction.label_ids)}


parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--dies-at", type=int, default=-1, help="a sample in whose batch a worker dies")
args = parser.parse_args()
torch.set_num_threads(1)
passes = []
trainer = Trainer(
    model=Model(),
    args=TrainingArguments(
        output_dir=str(args.out / "trainer"),
        num_train_epochs=3,
        per_device_train_batch_size=4,
        per_device_eval_batch_size=4,
        learning_rate=0.1,
        lr_scheduler_type="constant",
        eval_strategy="epoch",
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        seed=7,
    ),
    train_dataset=Samples(SAMPLES),
    eval_dataset=Samples(EVALUATED),
    data_collator=collate,
    compute_metrics=compute_metrics,
)
trainer.train()
shared = len(passes)
logged = [log for log in trainer.state.log_history if "eval_loss" in log]
after = trainer.evaluate()
report = {
    "losses": [log["eval_loss"] for log in logged],
    "samples": [log["eval_samples"] for log in logged],
    "evaluated": sorted(sample for batch in passes[:shared] for sample in batch),
    "batches": shared,
    "after": len(passes) - shared,
    "w": trainer.model.w.item(),
    "after_loss": after["eval_loss"],
}
(args.out / f"report-{os.getpid()}.json").write_text(json.dumps(report))
