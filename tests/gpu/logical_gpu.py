"""A network on a GPU, trained by logical workers: random numbers, BatchNorm, clipping, Adam.

Each worker writes a file ``w<pid>`` with one line for each step: its number, and the SHA-256 of
all parameters, buffers and values of the optimizer's state.
"""

import argparse
import hashlib
import json
import os
import time
from pathlib import Path

import torch
from torch import nn

import edl.torch as edl
from edl.testing.throttle import throttle_step

SAMPLES, CLASSES, SIDE = 512, 10, 32
options = argparse.ArgumentParser()
options.add_argument("--out", type=Path, required=True)
options.add_argument("--device", default="cuda")
options.add_argument("--epochs", type=int, default=4)
options.add_argument("--samples", type=int, default=SAMPLES)
args = options.parse_args()


def digest(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    found = hashlib.sha256()
    values = [*model.state_dict().values()]
    values += [each for one in optimizer.state.values() for each in one.values()]
    for value in values:
        found.update(value.detach().cpu().numpy().tobytes())
    return found.hexdigest()


def on_device(samples: list[tuple[torch.Tensor, torch.Tensor]]) -> list[torch.Tensor]:
    """Make a batch on the device, with noise that is drawn there."""
    x, y = (one.to(args.device) for one in torch.utils.data.default_collate(samples))
    return [x + 0.1 * torch.randn_like(x), y]


torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)  # cuBLAS needs CUBLAS_WORKSPACE_CONFIG for it
torch.manual_seed(7)
edl.init()
if args.device == "cuda":
    torch.cuda.set_device(0)
    os.environ["NCCL_HOSTID"] = f"{edl.local_rank()}-{os.getpid()}"  # see counting_gpu.py
made = torch.Generator().manual_seed(1)
images = torch.randn(args.samples, 3, SIDE, SIDE, generator=made)
labels = torch.randint(CLASSES, (args.samples,), generator=made)
data = torch.utils.data.TensorDataset(images, labels)
loader = edl.DataLoader(data, batch_size=8, shuffle=True, seed=3, collate_fn=on_device)
model = nn.Sequential(
    nn.Conv2d(3, 32, 3, bias=False),
    nn.BatchNorm2d(32),
    nn.ReLU(),
    nn.Dropout2d(0.1),
    nn.Conv2d(32, 64, 3, stride=2),
    nn.BatchNorm2d(64),
    nn.ReLU(),
    nn.Flatten(),
    nn.Dropout(0.3),
    nn.Linear(64 * 14 * 14, 64),
    nn.ReLU(),
    nn.Linear(64, CLASSES),
).to(args.device)
adam = torch.optim.Adam(model.parameters(), lr=1e-3)
optimizer = edl.Optimizer(adam, model)
args.out.mkdir(exist_ok=True)
steps = (args.out / f"steps.{os.getpid()}").open("w", buffering=1)
digests = (args.out / f"w{os.getpid()}").open("w", buffering=1)
last = ""
for _epoch in loader.epochs(args.epochs):
    for x, y in loader:
        throttle_step()
        before = edl.step()
        x += 0.1 * torch.randn_like(x)  # as the dropout it is drawn on the device
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if edl.step() != before:
            last = digest(model, adam)
            now = [time.time(), edl.rank(), edl.num_processes(), edl.generation(), edl.step()]
            print(edl.step(), last, file=digests)
            print(*now, file=steps)
report = {"w": last, "device": next(model.parameters()).device.type}
fresh = args.out / f"{os.getpid()}.new"
fresh.write_text(json.dumps(report))
fresh.rename(args.out / f"{os.getpid()}.json")
