"""Train, and log each step to TensorBoard, to MLflow and to a file: `loggers.py DIRECTORY`.

A rank 0 dies before it has written step 20, another one after it has written step 30; at step 50
all die.
"""

import functools
import json
import os
import signal
import sys
from pathlib import Path

import torch
from torch.utils.tensorboard import SummaryWriter

import edl.torch as edl
from edl.testing.throttle import throttle_step

directory = Path(sys.argv[1])
torch.set_num_threads(1)
edl.init()
data = torch.utils.data.TensorDataset(torch.arange(80.0).reshape(-1, 1))
loader = edl.DataLoader(data, batch_size=4, shuffle=True)
model = torch.nn.Linear(1, 1)
optimizer = edl.Optimizer(torch.optim.SGD(model.parameters(), lr=1e-6), model)
edl.checkpoint(directory / "checkpoints", every_s=0.5)


@functools.cache  # opened on the worker that writes
def board():
    return SummaryWriter(directory / "board")


@functools.cache
def client():
    import mlflow

    return mlflow.MlflowClient(f"file:{directory}/mlflow")


@functools.cache
def run_id():
    name = "mean-loss"
    found = client().get_experiment_by_name(name)
    experiment = found.experiment_id if found else client().create_experiment(name)
    runs = client().search_runs([experiment])
    return runs[0].info.run_id if runs else client().create_run(experiment).info.run_id


def write(step, values):
    once(step == 20, "writer")
    with open(directory / "points.jsonl", "a") as file:
        file.write(json.dumps({"step": step, "worker": edl.rank(), **values}) + "\n")
    for name, value in values.items():
        board().add_scalar(name, value, step)
        client().log_metric(run_id(), name, value, step=step)
    board().flush()


def once(dies, what):
    """Die by SIGKILL, on the first start of that worker only."""
    mark = directory / f"{what}.died"
    if dies and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


for _ in loader.epochs(8):
    for (x,) in loader:
        loss = model(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        throttle_step()
        edl.log({"loss": loss}, write)
        once(edl.step() == 30 and edl.rank() == 0, "written")
        once(edl.step() == 50, f"all-{edl.rank()}")
