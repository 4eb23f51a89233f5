"""ResNet-18 for images of 32 by 32 pixels, and ResNet-50."""

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


class Bottleneck(nn.Module):
    """A residual block of ResNet-50: 1 by 1, 3 by 3, and 1 by 1 to four times the width."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(before, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, after, 1, bias=False), nn.BatchNorm2d(after),
        )  # fmt: skip
        self.skip: nn.Module = nn.Identity()
        if stride > 1 or before != after:
            self.skip = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = F.relu(self.body(x) + self.skip(x))
        return found


def resnet50(classes: int = 1000) -> nn.Module:
    """Return ResNet-50 as for ImageNet; with 1000 classes it has 25.6 M parameters."""
    blocks, before = list[nn.Module](), 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for number in range(count):
            blocks.append(Bottleneck(before, width, stride if number == 0 else 1))
            before = 4 * width
    return nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
        nn.MaxPool2d(3, 2, 1), *blocks,
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes),
    )  # fmt: skip
