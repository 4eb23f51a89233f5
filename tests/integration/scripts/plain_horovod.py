"""Train as scripts for plain Horovod do; nothing in it knows of edl.

    plain_horovod.py --out DIRECTORY [--epochs N] [--habits NAME,NAME]

The first process of the host appends a line to DIRECTORY/epochs after each epoch: its number, a
digest of the weights and the optimizer's state, the rate, and the number of batches of its loops.
At the end it saves the weights in DIRECTORY/weights.pt. Without habits nothing is random but the
order of the samples, so plain Horovod with as many ranks trains the same.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import torch
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--habits", default="")
args = parser.parse_args()
HABITS = set(filter(None, args.habits.split(",")))


class Images(torch.utils.data.Dataset[Any]):
    def __init__(self, count: int, seed: int) -> None:
        made = torch.Generator().manual_seed(seed)
        self.images = torch.randn(count, 3, 6, 6, generator=made)
        self.labels = torch.randint(0, 5, (count,), generator=made)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Any:
        image = self.images[index]
        if "augment" in HABITS:
            image = image + 0.1 * torch.randn(3, 6, 6)
        return image, self.labels[index]


class Mean:
    """The mean of a number over the ranks and the batches."""

    def __init__(self, name: str) -> None:
        self.name, self.sum, self.count = name, torch.tensor(0.0), torch.tensor(0.0)

    def add(self, value: torch.Tensor) -> None:
        self.sum += hvd.allreduce(value.detach().cpu(), name=self.name)
        self.count += 1

    @property
    def value(self) -> float:
        return (self.sum / self.count).item()


def together(batch: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = zip(*batch, strict=True)
    return torch.stack(images) * (1 + 0.01 * torch.rand(1)), torch.stack(labels)


hvd.init()
if "unseeded" not in HABITS:
    torch.manual_seed(7 + (hvd.rank() if "seed_by_rank" in HABITS else 0))
first = 0
if "from_rank_0" in HABITS:
    first = int(hvd.broadcast(torch.tensor(0 if hvd.rank() == 0 else 9), root_rank=0, name="first"))
    settings = hvd.broadcast_object({"rate": 0.01} if hvd.rank() == 0 else None, root_rank=0)
    assert settings == {"rate": 0.01}
    assert len(hvd.allgather(torch.tensor([hvd.rank()]), name="ranks")) >= 1
if "late" in HABITS:  # a worker may die before the training
    (args.out / f"early{hvd.rank()}").touch()
    deadline = time.monotonic() + 240.0
    while not (args.out / "go").exists():
        assert time.monotonic() < deadline, "nobody has let the training begin"
        time.sleep(0.05)
    hvd.barrier()

how: dict[str, Any] = {"num_workers": 1} if "loaders" in HABITS else {}
if "collate" in HABITS:
    how["collate_fn"] = together
train_set, test_set = Images(110, 1), Images(30, 2)
train_sampler = DistributedSampler(
    train_set, num_replicas=hvd.size(), rank=hvd.rank(), drop_last="drop_last" in HABITS
)
train_loader = DataLoader(
    train_set, batch_size=4, sampler=train_sampler, drop_last="drop_last" in HABITS, **how
)
test_sampler = DistributedSampler(test_set, num_replicas=hvd.size(), rank=hvd.rank(), shuffle=False)
test_loader = DataLoader(test_set, batch_size=8, sampler=test_sampler)

model = nn.Sequential(
    nn.Conv2d(3, 4, 3),
    nn.BatchNorm2d(4),
    nn.ReLU(),
    nn.Dropout(0.2 if "dropout" in HABITS else 0.0),
    nn.Flatten(),
    nn.Linear(64, 5),
)
decay = 0.0
if "unused" in HABITS:  # a layer that no forward pass runs: under Horovod its gradients are zeros
    decay, unused = 0.1, nn.Linear(2, 2, bias=False)
    nn.init.ones_(unused.weight)
    model[4].add_module("unused", unused)
optimizer: Any = torch.optim.SGD(
    model.parameters(), lr=0.01 * hvd.size(), momentum=0.9, weight_decay=decay
)
passes = 2 if "passes" in HABITS else 1  # backward passes for a batch, each of a part of it
if "unnamed" in HABITS:
    optimizer = hvd.DistributedOptimizer(optimizer)
else:
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), backward_passes_per_step=passes
    )
average: AveragedModel | None = None
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7) if "schedule" in HABITS else None
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
if "unused" not in HABITS:  # Horovod's makes a step by zeros, which decays all weights once more
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)


def adjust_rate(epoch: int, batch: int) -> None:
    """Warm up over three epochs, from the rate of one rank to that of all."""
    progress = (epoch + (batch + 1) / len(train_loader)) / 3
    for group in optimizer.param_groups:
        group["lr"] = 0.01 * (1 + min(1.0, progress) * (hvd.size() - 1))


def update() -> None:
    if "broadcasts" in HABITS:  # the weights are the same, and BatchNorm's averages are not
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    if "clip" in HABITS:
        optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        with optimizer.skip_synchronize():
            optimizer.step()
    else:
        optimizer.step()


def train(epoch: int) -> int:
    model.train()
    if "no_set_epoch" not in HABITS:
        train_sampler.set_epoch(epoch % 2 if "phases" in HABITS else epoch)
    loss_mean, batches = Mean("loss"), 0
    for batch, (images, labels) in enumerate(train_loader):
        if "break" in HABITS and batch >= 3:
            break
        if scheduler is None:
            adjust_rate(epoch, batch)
        optimizer.zero_grad()
        for part, wanted in zip(images.chunk(passes), labels.chunk(passes), strict=True):
            loss = functional.cross_entropy(model(part), wanted)
            loss_mean.add(loss)
            (loss / passes).backward()
        update()
        if average is not None:
            average.update_parameters(model)
        if "test_within" in HABITS and batch == 2:
            test()
            model.train()
        batches += 1
    if scheduler is not None:
        scheduler.step()
    return batches


def test() -> float:
    model.eval()
    accuracy, right, total = Mean("accuracy"), 0, 0
    for images, labels in test_loader:
        found = model(images).argmax(1) == labels
        accuracy.add(found.float().mean())
        right, total = right + int(found.sum()), total + len(labels)
    return accuracy.value + right / total  # a loop without a batch would divide by zero


def digest() -> str:
    values = [*model.state_dict().values()]
    values += [each for one in optimizer.state.values() for each in one.values()]
    values += [] if average is None else average.state_dict().values()
    whole = b"".join(value.numpy().tobytes() for value in values)
    return hashlib.sha256(whole).hexdigest()


if "first_batch" in HABITS:
    next(iter(train_loader))
for epoch in range(first, args.epochs):
    if "average" in HABITS and epoch == 1:
        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    trained = train(epoch)
    test()
    if "join" in HABITS:
        hvd.join()
    if "broadcasts" in HABITS:
        if hvd.rank() == 0:
            model.load_state_dict({name: one / 2 for name, one in model.state_dict().items()})
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    if hvd.local_rank() == 0:
        rate = optimizer.param_groups[0]["lr"]
        with (args.out / "epochs").open("a") as file:
            file.write(f"{epoch} {digest()} {rate:.6g} {trained}\n")
if hvd.local_rank() == 0:
    torch.save(model.state_dict(), args.out / "weights.pt")
