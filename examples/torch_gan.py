"""Train a GAN on handwritten digits: two optimizers, and a batch has a step of each.

Alone, in a few seconds:

    python examples/torch_gan.py

Elastic, and slow enough to watch; then, in another terminal, `edl scale --np 4`:

    edl run -np 2 --max-np 4 python examples/torch_gan.py --epochs 60 --step-delay 0.1

What differs from a plain PyTorch script is marked with (edl).
"""

import argparse
import time

import torch
import torch.nn.functional as F
from digits_data import load
from torch import nn
from torch.utils.data import TensorDataset

import edl.torch as edl  # (edl)

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--batch-size", type=int, default=32, help="of one worker")
parser.add_argument("--step-delay", type=float, default=0.0, help="seconds to sleep in each batch")
args = parser.parse_args()

NOISE = 16  # numbers from which a digit is made

torch.manual_seed(0)
torch.set_num_threads(1)  # the workers share this machine's cores
edl.init()  # (edl)

images, _ = load()
images = torch.from_numpy(images).flatten(1)
loader = edl.DataLoader(TensorDataset(images), batch_size=args.batch_size, shuffle=True)  # (edl)
generator = nn.Sequential(
    nn.Linear(NOISE, 128), nn.LeakyReLU(0.2), nn.Linear(128, 64), nn.Sigmoid()
)
discriminator = nn.Sequential(nn.Linear(64, 128), nn.LeakyReLU(0.2), nn.Linear(128, 1))
adam = {"lr": 1e-3, "betas": (0.5, 0.999)}
generator_optimizer = edl.Optimizer(  # (edl)
    torch.optim.Adam(generator.parameters(), **adam), generator
)
discriminator_optimizer = edl.Optimizer(  # (edl)
    torch.optim.Adam(discriminator.parameters(), **adam), discriminator
)


def judged(digits, real):
    """Return the discriminator's loss if `digits` are taken as real (or else as made)."""
    logits = discriminator(digits).squeeze(1)
    return F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, float(real)))


for epoch in loader.epochs(args.epochs):  # (edl)
    for (real,) in loader:
        made = generator(torch.randn(len(real), NOISE))

        discriminator_optimizer.zero_grad()
        judged(real, real=True).backward()
        judged(made.detach(), real=False).backward()
        discriminator_optimizer.step()  # with the mean gradient over the batches of all workers

        generator_optimizer.zero_grad()
        judged(made, real=True).backward()
        generator_optimizer.step()
        time.sleep(args.step_delay)

    with torch.no_grad():
        noise = torch.randn(1000, NOISE, generator=torch.Generator().manual_seed(epoch))
        apart = (generator(noise).mean(0) - images.mean(0)).abs().mean().item()
    if edl.rank() == 0:
        print(f"epoch {epoch} mean digit off by {apart:.3f} workers {edl.size()}", flush=True)

if edl.rank() == 0:
    print(f"off by {apart:.3f} epochs {args.epochs} steps {edl.step()}", flush=True)
