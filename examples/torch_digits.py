"""Train a small convolutional network on handwritten digits, on workers that come and go.

Alone, in a few seconds:

    python examples/torch_digits.py

Elastic, and slow enough to watch; then, in another terminal, `edl scale --np 4`:

    edl run -np 2 --max-np 4 python examples/torch_digits.py --epochs 60 --step-delay 0.1

What differs from a plain PyTorch script is marked with (edl).
"""

import argparse
import hashlib
import os
import time

import torch
import torch.nn.functional as F
from digits_data import load
from torch import nn
from torch.utils.data import TensorDataset

import edl.torch as edl  # (edl)

# ---------------------------------------------------------------------------------------------
# Settings
parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--batch-size", type=int, default=32, help="samples of one worker in a step")
parser.add_argument("--num-workers", type=int, default=0, help="processes that load data")
parser.add_argument("--step-delay", type=float, default=0.0, help="seconds to sleep in each step")
parser.add_argument("--checkpoint", metavar="DIR", help="save the job there, to be resumed")
parser.add_argument("--digest", metavar="PREFIX", help="log the weights' sha256 to PREFIX.<pid>")
args = parser.parse_args()

learning_rate = 0.1
momentum = 0.9
decay = 0.9  # of the learning rate, after each epoch
held_out = 6  # every 6th image is held out: 300 for the test, 1,497 to train on

torch.manual_seed(0)
torch.set_num_threads(1)  # the workers share this machine's cores

# ---------------------------------------------------------------------------------------------
# Data and model
edl.init()  # (edl) a job of one without a launcher

images, labels = map(torch.from_numpy, load())
images = images.unsqueeze(1)  # one channel
test = torch.arange(len(labels)) % held_out == 0

# (edl) The batch size is that of one worker: 4 workers take 4 x 32 samples in a step.
loader = edl.DataLoader(
    TensorDataset(images[~test], labels[~test]),
    batch_size=args.batch_size,
    shuffle=True,
    seed=0,
    num_workers=args.num_workers,
)

model = nn.Sequential(
    nn.Conv2d(1, 16, kernel_size=3, padding=1),  # 16 x 8 x 8
    nn.ReLU(),
    nn.Conv2d(16, 32, kernel_size=3, padding=1),  # 32 x 8 x 8
    nn.ReLU(),
    nn.MaxPool2d(2),  # 32 x 4 x 4
    nn.Flatten(),
    nn.Linear(32 * 4 * 4, 64),
    nn.ReLU(),
    nn.Linear(64, 10),
)
sgd = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=momentum)
optimizer = edl.Optimizer(sgd, model)  # (edl)
scheduler = torch.optim.lr_scheduler.ExponentialLR(sgd, decay)
if args.checkpoint:
    edl.checkpoint(args.checkpoint)  # (edl) `edl run --resume` continues from there


# ---------------------------------------------------------------------------------------------
# Helpers
@torch.no_grad()
def accuracy() -> float:
    """Share of the held-out digits that the model names rightly."""
    return (model(images[test]).argmax(dim=1) == labels[test]).float().mean().item()


def log_digest() -> None:
    """Append a line "generation step rank size sha256": equal on all workers at one step."""
    if args.digest:
        weights = b"".join(t.numpy().tobytes() for t in model.state_dict().values())
        line = f"{edl.generation()} {edl.step()} {edl.rank()} {edl.size()}"
        with open(f"{args.digest}.{os.getpid()}", "a") as file:
            file.write(f"{line} {hashlib.sha256(weights).hexdigest()}\n")


# ---------------------------------------------------------------------------------------------
# Training
#
# A newcomer runs this loop's first batch, and the end of the epoch, once for itself: a warm-up
# that warms everything up while the others train. Nothing of it counts, and its rank is never 0.
# Then the loop goes on with the job's epoch, weights and data.
generation = 0  # of the ring that the weights were logged in
for epoch in loader.epochs(args.epochs):  # (edl)
    for x, y in loader:
        if edl.generation() != generation:  # the ring changed: all workers must agree
            generation = edl.generation()
            log_digest()
        loss = F.cross_entropy(model(x), y)  # a mean over the batch
        optimizer.zero_grad()
        loss.backward()
        if args.step_delay:
            time.sleep(args.step_delay)
        optimizer.step()  # with the mean gradient over the batches of all workers
    scheduler.step()
    last = edl.mean(loss)  # (edl) of all workers' samples in the epoch's last step
    if edl.rank() == 0:
        print(
            f"epoch {epoch} loss {last:.3f} accuracy {accuracy():.3f} workers {edl.size()}",
            flush=True,
        )

log_digest()
if edl.rank() == 0:
    print(f"accuracy {accuracy():.3f} epochs {args.epochs} steps {edl.step()}", flush=True)
