"""The benchmark's script under edl."""

import torch.nn.functional as F

import edl.torch as edl
from benchmarks.workload import (
    BATCH_SIZE,
    EPOCHS,
    StepLog,
    Synthetic,
    build_model,
    build_sgd,
    parse_arguments,
)

args = parse_arguments()
log = StepLog(args.steps_to)
edl.init()
loader = edl.DataLoader(Synthetic(), batch_size=BATCH_SIZE, shuffle=True, seed=0)
model = build_model()
optimizer = edl.Optimizer(build_sgd(model), model)

for _epoch in loader.epochs(EPOCHS):
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if edl.generation() > 0:  # not in the rehearsal, which trains nothing
            log.completed(edl.step(), edl.size())
            if args.turns:
                args.turns.completed(edl.step())
