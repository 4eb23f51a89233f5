"""Of a large gradient an eighth is looked at, another each time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from edl.binding.reduction import LARGE, PARTS
from edl.torch.reduction import TorchNoise
from edl.worker.progress import GradientNoise


def meter(step: int) -> Any:
    progress = SimpleNamespace(step=step, noise=GradientNoise())
    progress.noise.asked = True  # each 50 steps
    worker: Any = SimpleNamespace(loader=SimpleNamespace(progress=progress, open=True))
    parameters = [torch.nn.Parameter(torch.zeros(1))]
    return TorchNoise(worker, torch.optim.SGD(parameters, lr=1.0), lambda: 1.0)


def test_all_parts_have_their_turn_and_small_ones_are_whole() -> None:
    size = LARGE + 3
    seen = torch.zeros(size)
    for turn in range(PARTS):
        part, times = meter(50 * turn)._looked_at(size)
        seen[part] += 1
        assert times == PARTS
    assert seen.tolist() == [1.0] * size
    assert meter(0)._looked_at(LARGE - 1) == (slice(None), 1)


def test_a_part_counts_for_the_whole() -> None:
    parameter = torch.nn.Parameter(torch.zeros(2, LARGE))
    ones = torch.ones_like(parameter)
    one = meter(150)
    seen = one._seen([(parameter, ones)], {parameter: None})
    assert [len(numbers) for numbers, _ in seen] == [2 * LARGE // PARTS]
    assert one._square(seen) == 2 * LARGE
