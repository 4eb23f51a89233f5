"""Trains with a learning rate that is tuned, and writes down each of its updates."""

import argparse
import json
from pathlib import Path

import torch
import torch.nn.functional as F

import edl.torch as edl
from edl.testing import throttle

SAMPLES, EPOCHS, BATCH = 480, 8, 4


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.manual_seed(0)
    edl.init()
    x = torch.randn(SAMPLES, 8)
    data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
    loader = edl.DataLoader(data, BATCH, shuffle=True)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1)
    )
    optimizer = edl.Optimizer(torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), model)
    tuner = edl.LRTuner(
        optimizer,
        lambda batch: F.mse_loss(model(batch[0]), batch[1]),
        total=SAMPLES * EPOCHS,
        share=1.0,  # a step of this model is as short as what comes with an evaluation
    )
    edl.checkpoint(args.out / "saved", every_s=0.1)
    for _ in loader.epochs(EPOCHS):
        for batch in loader:
            optimizer.zero_grad()
            F.mse_loss(model(batch[0]), batch[1]).backward()
            update = edl.current_worker().loader.update
            optimizer.step()
            rate = optimizer.param_groups[0]["lr"]
            tuner.step(batch)
            if (
                not edl.is_warming_up()
                and not edl.current_worker().loader.engine.completed_by_peers
            ):
                row = [edl.generation(), update.number, update.after, rate, tuner.reason]
                with (args.out / f"w{edl.current_worker().id}.jsonl").open("a") as file:
                    file.write(json.dumps(row) + "\n")
            throttle.throttle_step()


if __name__ == "__main__":
    main()
