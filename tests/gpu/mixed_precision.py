"""A convolutional network on a GPU: float16, a GradScaler, Adam, SyncBatchNorm, pinned memory."""

import argparse
import json
import os
import time
from pathlib import Path

import torch

import edl.torch as edl

options = argparse.ArgumentParser()
options.add_argument("--out", type=Path, required=True)
options.add_argument("--device", default="cuda")
options.add_argument("--epochs", type=int, default=16)
args = options.parse_args()

edl.init()
if args.device == "cuda":
    torch.cuda.set_device(0)
    os.environ["NCCL_HOSTID"] = f"{edl.local_rank()}-{os.getpid()}"  # see counting_gpu.py
torch.manual_seed(1)
images = torch.randn(1600, 3, 32, 32)
labels = images.mean((2, 3)).argmax(1)  # the channel that is the brightest
data = torch.utils.data.TensorDataset(images, labels)
loader = edl.DataLoader(data, batch_size=16, shuffle=True, seed=3, pin_memory=args.device == "cuda")
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 32, 3),
    torch.nn.BatchNorm2d(32),
    torch.nn.ReLU(),
    torch.nn.Conv2d(32, 64, 3, stride=2),
    torch.nn.BatchNorm2d(64),
    torch.nn.ReLU(),
    torch.nn.AdaptiveAvgPool2d(1),
    torch.nn.Flatten(),
    torch.nn.Linear(64, 3),
)
model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model).to(args.device)
optimizer = edl.Optimizer(torch.optim.Adam(model.parameters(), lr=3e-3), model)
scaler = torch.amp.GradScaler(args.device, enabled=args.device == "cuda")
dtype = torch.float16 if args.device == "cuda" else torch.bfloat16
args.out.mkdir(exist_ok=True)
diary = (args.out / f"steps.{os.getpid()}").open("w", buffering=1)
step, loss = 0, torch.zeros(())
for _epoch in loader.epochs(args.epochs):
    for batch in loader:
        x, y = (one.to(args.device, non_blocking=True) for one in batch)
        with torch.autocast(args.device, dtype=dtype):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if not edl.is_warming_up():
            step += 1
            print(time.time(), edl.rank(), edl.size(), edl.generation(), step, file=diary)
report = {"loss": loss.item(), "sum": sum(p.double().sum().item() for p in model.parameters())}
fresh = args.out / f"{os.getpid()}.new"
fresh.write_text(json.dumps(report))
fresh.rename(args.out / f"{os.getpid()}.json")
