"""Train on handwritten digits with large steps: gradients of several batches make one update.

Alone, in a few seconds:

    python examples/torch_accumulation.py

Elastic, and slow enough to watch; then, in another terminal, `edl scale --np 4`:

    edl run -np 2 --max-np 4 python examples/torch_accumulation.py --epochs 60 --step-delay 0.1

What differs from a plain PyTorch script is marked with (edl).
"""

import argparse
import contextlib
import time

import torch
import torch.nn.functional as F
from digits_data import load
from torch import nn
from torch.utils.data import TensorDataset

import edl.torch as edl  # (edl)

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--epochs", type=int, default=30)
parser.add_argument("--batch-size", type=int, default=8, help="samples that fit into the memory")
parser.add_argument("--accumulate", type=int, default=4, help="batches of one worker in a step")
parser.add_argument("--step-delay", type=float, default=0.0, help="seconds to sleep in each batch")
args = parser.parse_args()

torch.manual_seed(0)
torch.set_num_threads(1)  # the workers share this machine's cores
edl.init()  # (edl)

images, labels = map(torch.from_numpy, load())
images = images.flatten(1)
test = torch.arange(len(labels)) % 6 == 0
loader = edl.DataLoader(  # (edl)
    TensorDataset(images[~test], labels[~test]), batch_size=args.batch_size, shuffle=True
)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
sgd = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
optimizer = edl.Optimizer(sgd, model)  # (edl)

for epoch in loader.epochs(args.epochs):  # (edl)
    for number, (x, y) in enumerate(loader, start=1):
        last = number % args.accumulate == 0  # of the batches of this step
        with contextlib.nullcontext() if last else edl.no_sync():  # (edl) as DDP's no_sync()
            loss = F.cross_entropy(model(x), y)
            (loss / args.accumulate).backward()
        time.sleep(args.step_delay)
        if last:
            optimizer.step()  # with the mean gradient over all these batches of all workers
            optimizer.zero_grad()
    if edl.rank() == 0:
        with torch.no_grad():
            right = (model(images[test]).argmax(dim=1) == labels[test]).float().mean().item()
        print(f"epoch {epoch} accuracy {right:.3f} workers {edl.size()}", flush=True)

if edl.rank() == 0:
    print(f"accuracy {right:.3f} epochs {args.epochs} steps {edl.step()}", flush=True)
