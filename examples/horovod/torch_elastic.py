"""A script for Horovod Elastic on handwritten digits; one import makes it a script for edl.

Alone:

    python examples/horovod/torch_elastic.py

Elastic, and slow enough to watch; then, in another terminal, `edl scale --np 4`:

    edl run -np 2 --max-np 4 python examples/horovod/torch_elastic.py --epochs 60 --step-delay 0.1

The only line that differs from a script for Horovod is marked with (edl).
"""

import argparse
import hashlib
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import edl.torch as hvd  # (edl) was: import horovod.torch as hvd

sys.path.append(str(Path(__file__).resolve().parents[1]))
from digits_data import load

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--epochs", type=int, default=12)
parser.add_argument("--batch-size", type=int, default=32, help="samples of one worker in a step")
parser.add_argument("--step-delay", type=float, default=0.0, help="seconds to sleep in each step")
args = parser.parse_args()

base_rate = 0.05  # for one worker
held_out = 6  # every 6th image is held out: 300 for the test, 1,497 to train on
commit_every = 5  # batches

torch.manual_seed(0)
torch.set_num_threads(1)  # the workers share this machine's cores
hvd.init()

images, labels = map(torch.from_numpy, load())
images = images.unsqueeze(1)  # one channel
test = torch.arange(len(labels)) % held_out == 0
dataset = TensorDataset(images[~test], labels[~test])
sampler = hvd.elastic.ElasticSampler(dataset, shuffle=True)
loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)

model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(16, 32, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(32 * 4 * 4, 10),
)
optimizer = torch.optim.SGD(model.parameters(), lr=base_rate * hvd.size(), momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


@hvd.elastic.run
def train(state):
    while state.epoch < args.epochs:
        loss = torch.zeros(())  # the rest of an epoch may be empty
        for batch, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            time.sleep(args.step_delay)
            sampler.record_batch(batch, args.batch_size)
            if batch % commit_every == commit_every - 1:
                state.commit()
            else:
                state.check_host_updates()
        mean = hvd.allreduce(loss.detach(), name="loss").item()
        if hvd.rank() == 0:
            print(f"epoch {state.epoch}: loss {mean:.3f}, {hvd.size()} workers", flush=True)
        state.epoch += 1
        sampler.set_epoch(state.epoch)
        state.commit()


def on_reset():
    for group in optimizer.param_groups:
        group["lr"] = base_rate * hvd.size()


state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0)
state.register_reset_callbacks([on_reset])
train(state)

model.eval()
with torch.no_grad():
    accuracy = (model(images[test]).argmax(1) == labels[test]).float().mean().item()
weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
print(
    f"rank {hvd.rank()}: accuracy {accuracy:.3f} weights {hashlib.sha256(weights).hexdigest()}",
    flush=True,
)
