"""Train on handwritten digits from packed files, which can only be read from their beginnings.

Alone, in a few seconds:

    python examples/torch_stream.py

Elastic, and slow enough to watch; then, in another terminal, `edl scale --np 4`:

    edl run -np 2 --max-np 4 python examples/torch_stream.py --epochs 60 --step-delay 0.1

What differs from a plain PyTorch script is marked with (edl).
"""

import argparse
import gzip
import itertools
import json
import os
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from digits_data import load
from torch import nn

import edl.torch as edl  # (edl)

SHARDS = 24  # some for each worker, so that all have work until the end of an epoch

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "edl-digits")
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--step-delay", type=float, default=0.0, help="seconds to sleep in each step")
args = parser.parse_args()


def write_shards(images, labels):
    """Return the paths of files with a part of the digits each, one in a line.

    Files that are missing are written.
    """
    args.data.mkdir(parents=True, exist_ok=True)
    paths = [args.data / f"digits-{number:02}.jsonl.gz" for number in range(SHARDS)]
    for number, path in enumerate(paths):
        if not path.exists():
            written = path.with_suffix(f".{os.getpid()}")  # by each worker, the last one stays
            with gzip.open(written, "wt") as lines:
                for image, label in zip(
                    images[number::SHARDS], labels[number::SHARDS], strict=True
                ):
                    lines.write(json.dumps({"pixels": image.tolist(), "digit": int(label)}) + "\n")
            written.replace(path)
    return paths


def read(path, offset):  # (edl) goes on where a worker that is gone has been
    """Yield the digits of one file, from number `offset` on."""
    with gzip.open(path, "rt") as lines:
        yield from itertools.islice(lines, offset, None)


def parse(line):
    """In the loader's processes, if there are any."""
    digit = json.loads(line)
    return torch.tensor(digit["pixels"], dtype=torch.float32), digit["digit"]


torch.manual_seed(0)
torch.set_num_threads(1)  # the workers share this machine's cores
edl.init()  # (edl)

images, labels = map(torch.from_numpy, load())
images = images.flatten(1)
test = torch.arange(len(labels)) % 6 == 0
stream = edl.data.stream(write_shards(images[~test], labels[~test]), read, parse)  # (edl)
loader = edl.DataLoader(stream, batch_size=args.batch_size, shuffle=True)  # (edl) the files
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
sgd = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
optimizer = edl.Optimizer(sgd, model)  # (edl)

for epoch in loader.epochs(args.epochs):  # (edl)
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        time.sleep(args.step_delay)
    if edl.rank() == 0:
        with torch.no_grad():
            right = (model(images[test]).argmax(dim=1) == labels[test]).float().mean().item()
        print(f"epoch {epoch} accuracy {right:.3f} workers {edl.size()}", flush=True)

if edl.rank() == 0:
    print(f"accuracy {right:.3f} epochs {args.epochs} steps {edl.step()}", flush=True)
