"""A script of Horovod whose number of steps follows from hvd.size() at the top, as of a sampler."""

import torch

import edl.torch as hvd
from edl.testing import throttle

hvd.init()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
steps = 1800 // hvd.size()  # a third worker has fewer


@hvd.elastic.run
def train(state):
    while state.batch < steps:
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        state.batch += 1
        state.commit()
        throttle.throttle_step()


state = hvd.elastic.TorchState(model, optimizer, batch=0)
train(state)
print("returned at", state.batch, "of", steps)
