"""All workers evaluate a model with BatchNorm on all data, and set the rate by what they found."""

import torch

import edl.torch as edl
from edl.testing.throttle import throttle_step

edl.init()
torch.manual_seed(0)
x = torch.randn(120, 4) * torch.linspace(0.5, 3.0, 120)[:, None]
data = torch.utils.data.TensorDataset(x, (x.sum(1) > 0).long())
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2))
optimizer = edl.Optimizer(torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9), model)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
loader = edl.DataLoader(data, batch_size=6, shuffle=True)
for epoch in loader.epochs(8):
    for inputs, labels in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        throttle_step()
    model.eval()
    with torch.no_grad():
        value = torch.nn.functional.cross_entropy(model(x), data.tensors[1])
    model.train()
    plateau.step(value)
    if not edl.is_warming_up():
        batches = int(model[1].num_batches_tracked)
        print(f"epoch {epoch}: {value.item()!r} {plateau.get_last_lr()} {batches}", flush=True)
