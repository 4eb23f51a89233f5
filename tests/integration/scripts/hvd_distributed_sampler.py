"""A script of Horovod whose loader, made at the top, has a DistributedSampler of hvd.size()."""

import torch
from torch.utils.data import DataLoader, DistributedSampler

import edl.torch as hvd
from edl.testing import throttle

hvd.init()
sampler = DistributedSampler(range(3600), num_replicas=hvd.size(), rank=hvd.rank())
loader = DataLoader(range(3600), batch_size=2, sampler=sampler)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


@hvd.elastic.run
def train(state):
    steps_left = len(loader) - state.batch
    for batch in loader:
        if steps_left <= 0:
            return
        steps_left -= 1
        optimizer.zero_grad()
        model(batch[:, None].float()).sum().backward()
        optimizer.step()
        state.batch += 1
        state.commit()
        throttle.throttle_step()


train(hvd.elastic.TorchState(model, optimizer, batch=0))
print("returned: rank", sampler.rank, "of", sampler.num_replicas, "after", len(loader))
