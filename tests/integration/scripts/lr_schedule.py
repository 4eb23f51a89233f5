"""Trains by a schedule in samples, and writes down each of its updates."""

import argparse
import json
from pathlib import Path

import torch

import edl.torch as edl
from edl.testing import throttle

SAMPLES, EPOCHS, BATCH = 480, 6, 4
TOTAL = SAMPLES * EPOCHS
KNEE = edl.schedules.Knee(peak_lr=0.4, warmup=240, explore=1200, total=TOTAL)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rule", default="linear")
    args = parser.parse_args()
    torch.manual_seed(0)
    edl.init()
    data = torch.utils.data.TensorDataset(torch.randn(SAMPLES, 4))
    loader = edl.DataLoader(data, BATCH, shuffle=True)
    model = torch.nn.Linear(4, 1)
    groups = [{"params": [model.weight]}, {"params": [model.bias]}]
    optimizer = edl.Optimizer(torch.optim.SGD(groups, lr=9.0, momentum=0.9), model)
    scaling = edl.schedules.Scaling(batch=2 * BATCH, rule=args.rule, ramp=4)
    scheduler = edl.LRSchedule(optimizer, KNEE, scaling)
    edl.checkpoint(args.out / "saved", every_s=0.1)
    for _ in loader.epochs(EPOCHS):
        for (x,) in loader:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            update = edl.current_worker().loader.update
            optimizer.step()
            scheduler.step()  # as with PyTorch alone
            rates = [group["lr"] for group in optimizer.param_groups]
            assert scheduler.get_last_lr() == rates
            if (
                not edl.is_warming_up()
                and not edl.current_worker().loader.engine.completed_by_peers
            ):
                batch = update.batches[-1][1]
                known = update.noise.changes
                row = [edl.generation(), update.number, update.after, batch, known, *rates]
                with (args.out / f"w{edl.current_worker().id}.jsonl").open("a") as file:
                    file.write(json.dumps(row) + "\n")
            throttle.throttle_step()


if __name__ == "__main__":
    main()
