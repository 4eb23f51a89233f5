"""Train by edl.run, and print what the workers return: `program.py JOB HOW EPOCHS`."""

import json
import os
import signal
import sys

import edl
from edl.errors import JobFailed, JobStopped

SAMPLES = 240
words = []  # of a closure, which a module could not give the workers


def trainer(how):
    """Return the function that each worker calls."""
    words.append("from the program")

    def train(samples, epochs):
        import torch

        import edl.torch as edl
        from edl.testing.throttle import throttle_step

        torch.set_num_threads(1)
        edl.init()
        data = torch.utils.data.TensorDataset(torch.arange(float(samples)).reshape(-1, 1))
        loader = edl.DataLoader(data, batch_size=4, shuffle=True, seed=3)
        model = torch.nn.Linear(1, 1)
        sgd = torch.optim.SGD(model.parameters(), lr=1e-6)
        optimizer = edl.Optimizer(sgd, model)
        for _ in loader.epochs(epochs):
            for (x,) in loader:
                optimizer.zero_grad()
                model(x).pow(2).mean().backward()
                optimizer.step()
                throttle_step()
                if how == "raises" and edl.step() == 3:
                    raise ValueError("of the function")
        if how == "raises late" and edl.rank() == 0:
            raise ValueError("after the training")
        if how == "dies late" and edl.rank() == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "returns a socket":
            import socket

            return socket.socket()
        return [edl.rank(), edl.size(), model.weight.item(), *words]

    return train


if __name__ == "__main__":
    _, job, how, epochs = sys.argv
    sizes = {"np": 2, "min_np": 1, "max_np": 3, "slots": 3}
    if how == "on two hosts":
        sizes |= {"slots": 2, "directory": "shared"}
    try:
        results = edl.run(trainer(how), (SAMPLES,), {"epochs": int(epochs)}, name=job, **sizes)
        print(json.dumps(results), flush=True)
    except (JobFailed, JobStopped, KeyboardInterrupt) as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        sys.exit(9)
