"""A script whose data set has an order of its own, made anew in each epoch; the model counts.

The argument says how it is made: "shuffle" by the seeded generator that all share, "rank" by one
with the rank in it.
"""

import random
import sys

import torch

import edl.torch as edl

edl.init()
random.seed(0)
HOW, RECORDS, BATCH = sys.argv[1], 96, 4


class Records(torch.utils.data.Dataset):
    def __init__(self):
        self.order = list(range(RECORDS))

    def __len__(self):
        return RECORDS

    def __getitem__(self, index):
        return self.order[index]


data = Records()
loader = edl.DataLoader(data, batch_size=BATCH)
model = torch.nn.Module()
model.count = torch.nn.Parameter(torch.zeros(RECORDS, dtype=torch.float64))
optimizer = edl.Optimizer(torch.optim.SGD(model.parameters(), lr=1.0), model)
for epoch in loader.epochs(3):
    if HOW == "shuffle":
        random.shuffle(data.order)
    elif epoch == 1:
        random.Random(edl.rank()).shuffle(data.order)
    for ids in loader:
        optimizer.zero_grad()
        model.count[ids].mean().backward()
        optimizer.step()
times = torch.round(-model.count.detach() * BATCH * edl.size()).long()
print("counted", torch.bincount(times).tolist(), flush=True)
