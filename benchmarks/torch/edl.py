"""The benchmark's script under edl."""

import torch.nn.functional as F

import edl.torch as edl
from benchmarks.script import BATCH_SIZE, EPOCHS, arguments
from benchmarks.torch.workload import MODELS, Synthetic, build_model, build_sgd

progress, name = arguments(MODELS)
edl.init()
loader = edl.DataLoader(Synthetic(), batch_size=BATCH_SIZE, shuffle=True, seed=0)
model = build_model(name)
optimizer = edl.Optimizer(build_sgd(model), model)

for _epoch in loader.epochs(EPOCHS):
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if edl.generation() > 0:  # not in the warm-up, which trains nothing
            progress.completed(edl.step(), edl.size())
