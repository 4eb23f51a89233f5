"""Three models under edl, each batch in microbatches: of logical workers, or as they come."""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import edl.torch as edl
from benchmarks.exact import LOGICAL, MODELS
from benchmarks.script import CLASSES, EPOCHS, arguments
from benchmarks.torch.resnet import resnet
from benchmarks.torch.workload import build_model, build_sgd
from edl.binding.process import current_worker
from edl.torch.logical import LogicalSums

SAMPLES, LENGTH, WORDS = 4096, 64, 1000


class Words(nn.Module):
    """A transformer of two layers that predicts the class of a text."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 256)
        layer = nn.TransformerEncoderLayer(256, 4, 1024, 0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.last = nn.Linear(256, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.layers(self.embedding(x)).mean(dim=1))
        return found


def timed(name: str, spent: dict[str, float]) -> None:
    """Let each call of a method of the gradients of logical workers add its time to ``spent``."""
    method: Callable[..., Any] = getattr(LogicalSums, name)

    def wrapped(*given: Any) -> Any:
        began = time.perf_counter()
        try:
            return method(*given)
        finally:
            spent[name] = spent.get(name, 0.0) + time.perf_counter() - began

    setattr(LogicalSums, name, wrapped)


progress, mode = arguments(tuple(MODELS))
edl.init()
torch.manual_seed(0)
inputs: torch.Tensor
if mode == "mlp":
    model, inputs = build_model(), torch.randn(SAMPLES, 256)
elif mode == "resnet":
    model, inputs = resnet(), torch.randn(SAMPLES, 3, 32, 32)
else:
    model, inputs = Words(), torch.randint(WORDS, (SAMPLES, LENGTH))
dataset = torch.utils.data.TensorDataset(inputs, torch.randint(CLASSES, (SAMPLES,)))
size = MODELS[mode]
if current_worker().logical:
    loader = edl.DataLoader(dataset, batch_size=size, shuffle=True)
else:
    loader = edl.DataLoader(dataset, global_batch=size * LOGICAL, micro_batch=size, shuffle=True)
optimizer = edl.Optimizer(build_sgd(model), model)
spent: dict[str, float] = {}
for each in ("begin_piece", "end_piece", "means"):
    timed(each, spent)
parts = Path(sys.argv[sys.argv.index("--steps-to") + 1]) / f"{os.getpid()}.parts"

for _epoch in loader.epochs(EPOCHS):
    for x, y in loader:
        before = edl.step()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        if edl.generation() > 0 and edl.step() != before:
            parts.write_text(json.dumps({"steps": edl.step(), **spent}))
            progress.completed(edl.step(), edl.size())
