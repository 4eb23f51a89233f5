"""Accelerate's order and parts of processes: prints a JSON line of what this worker has got."""

import json
import sys
import time
from pathlib import Path

import torch

import edl.torch as edl

edl.init()

from edl.huggingface import Accelerator  # noqa: E402  (its imports take long)

accelerator = Accelerator()
seen = []
orders = accelerator.main_process_first, accelerator.local_main_process_first
for number, first in enumerate(orders):
    cache = Path(sys.argv[1]) / f"cache-{number}"
    with first():
        seen.append(cache.exists())
        if accelerator.is_main_process:
            time.sleep(0.5)  # the others would come before
            cache.touch()


def part(inputs, **options):
    with accelerator.split_between_processes(inputs, **options) as mine:
        return mine


parts = [
    part([*range(5)]),
    part((1, 2, 3), apply_padding=True),
    part({"a": [0, 1, 2], "b": torch.arange(6).view(3, 2)}, apply_padding=True),
    part(torch.arange(4)),
    part([7]),
]
texts = json.loads(json.dumps(parts, default=torch.Tensor.tolist))
print(json.dumps([edl.rank(), seen, texts]), flush=True)
