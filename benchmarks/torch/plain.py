"""The benchmark's script under plain Horovod: fixed size, `hvd.DistributedOptimizer`."""

import horovod.torch as hvd
import torch.nn.functional as F
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from benchmarks.script import BATCH_SIZE, EPOCHS, arguments
from benchmarks.torch.workload import MODELS, Synthetic, build_model, build_sgd

progress, name = arguments(MODELS)
hvd.init()
dataset = Synthetic()
sampler = DistributedSampler(dataset, hvd.size(), hvd.rank(), shuffle=True, seed=0)
loader = DataLoader(dataset, batch_size=BATCH_SIZE, sampler=sampler)
model = build_model(name)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(build_sgd(model), named_parameters=model.named_parameters())

step = 0
for epoch in range(EPOCHS):
    sampler.set_epoch(epoch)
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        progress.completed(step, hvd.size())
