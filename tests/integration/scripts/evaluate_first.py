"""Evaluate with plain Horovod before any training, as ``train.py --evaluate`` does.

    evaluate_first.py OUT [optimizer] [unlike]

Rank 0 writes the number of samples to the file OUT. With "optimizer" there is one; with "unlike"
the ranks begin with different weights, which a script's broadcast would make equal.
"""

from __future__ import annotations

import sys
from pathlib import Path

import horovod.torch as hvd
import torch
from torch.utils.data import DataLoader, DistributedSampler

hvd.init()
torch.manual_seed(hvd.rank() if "unlike" in sys.argv else 0)
model = torch.nn.Linear(2, 1)
if "optimizer" in sys.argv:
    hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
model.eval()
data = torch.ones(48, 2)
sampler = DistributedSampler(data, num_replicas=hvd.size(), rank=hvd.rank(), shuffle=False)
with torch.no_grad():
    samples = sum(len(model(each)) for each in DataLoader(data, batch_size=5, sampler=sampler))
total = int(hvd.allreduce(torch.tensor(samples), op=hvd.Sum))
if hvd.rank() == 0:
    Path(sys.argv[1]).write_text(str(total))
