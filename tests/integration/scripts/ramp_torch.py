"""PyTorch: trains by a ramp while workers come, go and die; see ramp_diary.py."""

import ramp_problem as problem
import torch
from ramp_diary import Diary

import edl.torch as edl

diary = Diary()
edl.init()
x, y = (torch.from_numpy(array) for array in problem.data())
loader = edl.DataLoader(torch.arange(problem.SAMPLES), problem.BATCH, shuffle=True, seed=3)
model = torch.nn.Module()
for name, array in zip(("hidden", "bias", "out"), problem.first_weights(), strict=True):
    model.register_parameter(name, torch.nn.Parameter(torch.from_numpy(array)))
sgd = torch.optim.SGD(model.parameters(), lr=9.0, momentum=problem.MOMENTUM)
optimizer = edl.Optimizer(sgd, model)
edl.LRSchedule(
    optimizer,
    edl.schedules.Constant(peak_lr=problem.PEAK_LR),
    edl.schedules.Scaling(batch=problem.BASE, ramp=problem.RAMP),
)
for epoch in loader.epochs(problem.EPOCHS):
    for ids in loader:
        diary.begin(epoch, ids.tolist())
        optimizer.zero_grad()
        said = torch.tanh(x[ids] @ model.hidden + model.bias) @ model.out
        (said - y[ids]).square().mean().backward()
        diary.reduced()
        optimizer.step()
        parameters = list(model.parameters())
        diary.end(
            epoch,
            ids.tolist(),
            optimizer.param_groups[0]["lr"],
            [parameter.detach() for parameter in parameters],
            [optimizer.state[parameter]["momentum_buffer"] for parameter in parameters],
        )
