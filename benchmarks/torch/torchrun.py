"""The benchmark's script under torchrun, as PyTorch's elastic tutorial writes it.

After a failure torchrun starts all workers again, from the newest snapshot; one is written as often
as stock Horovod's script commits.
"""

import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from benchmarks.script import BATCH_SIZE, EPOCHS, arguments
from benchmarks.torch.stock_intervals import COMMIT_EVERY
from benchmarks.torch.workload import MODELS, Synthetic, build_model, build_sgd

SNAPSHOT = Path("snapshot.pt")
# Workers that are started again may meet addresses of those before them in torchrun's store, and
# wait for nobody, for 30 minutes unless one says otherwise.
TIMEOUT = timedelta(seconds=float(os.environ.get("TIMEOUT_S", "30")))

progress, name = arguments(MODELS)
dist.init_process_group("gloo", timeout=TIMEOUT)
dataset = Synthetic()
sampler = DistributedSampler(dataset, shuffle=True, seed=0)
loader = DataLoader(dataset, batch_size=BATCH_SIZE, sampler=sampler)
model = build_model(name)
optimizer = build_sgd(model)
step = first_epoch = skipped = 0
if SNAPSHOT.exists():
    snapshot = torch.load(SNAPSHOT)
    model.load_state_dict(snapshot["model"])
    optimizer.load_state_dict(snapshot["optimizer"])
    step, first_epoch, skipped = snapshot["step"], snapshot["epoch"], snapshot["batches"]
parallel = DistributedDataParallel(model, gradient_as_bucket_view=True)

for epoch in range(first_epoch, EPOCHS):
    sampler.set_epoch(epoch)
    for batch, (x, y) in enumerate(loader, start=1):
        if epoch == first_epoch and batch <= skipped:
            continue
        loss = F.cross_entropy(parallel(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        progress.completed(step, dist.get_world_size())
        if step % COMMIT_EVERY == 0 and dist.get_rank() == 0:
            fresh = SNAPSHOT.with_suffix(".new")
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "step": step, "epoch": epoch, "batches": batch}, fresh)
            os.replace(fresh, SNAPSHOT)
