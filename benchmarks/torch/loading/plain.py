"""The loop by torch.utils.data.DataLoader, whose loader processes live on as edl's do."""

import torch
from torch.utils.data import DataLoader

from benchmarks.script import EPOCHS, arguments
from benchmarks.torch.loading import BATCH_SIZE, MODES, Smallest, dataset, parts

progress, mode = arguments(MODES)
kind, processes = parts(mode)
loader = DataLoader(
    dataset(kind),
    batch_size=BATCH_SIZE[kind],
    shuffle=True,
    num_workers=processes,
    persistent_workers=processes > 0,
)
model = Smallest()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

step = 0
for _epoch in range(EPOCHS):
    for x, _y in loader:
        optimizer.zero_grad()
        model(x).backward()
        optimizer.step()
        step += 1
        progress.completed(step, 1)
