"""ResNet-18 for images of 32 by 32 pixels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.script import CLASSES


class Block(nn.Module):
    """A residual block of ResNet-18 for small images."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after),
        )  # fmt: skip
        same = stride == 1 and before == after
        self.skip: nn.Module = (
            nn.Identity() if same else nn.Conv2d(before, after, 1, stride, bias=False)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = F.relu(self.body(x) + self.skip(x))
        return found


def resnet() -> nn.Module:
    """Return the network, with 11.2 M parameters."""
    widths = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
    blocks = [b for a, b, s in widths for b in (Block(a, b, s), Block(b, b, 1))]
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(), *blocks,
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, CLASSES),
    )  # fmt: skip
