"""The loop by edl.DataLoader."""

import torch

import edl.torch as edl
from benchmarks.script import EPOCHS, arguments
from benchmarks.torch.loading import BATCH_SIZE, MODES, Smallest, dataset, parts

progress, mode = arguments(MODES)
kind, processes = parts(mode)
edl.init()
loader = edl.DataLoader(
    dataset(kind), batch_size=BATCH_SIZE[kind], shuffle=True, num_workers=processes
)
model = Smallest()
optimizer = edl.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)

for _epoch in loader.epochs(EPOCHS):
    for x, _y in loader:
        optimizer.zero_grad()
        model(x).backward()
        optimizer.step()
        progress.completed(edl.step(), edl.size())
