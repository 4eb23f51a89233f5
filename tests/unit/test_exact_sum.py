"""Sums that have the same bits in any order, also of numbers that float64 cannot add exactly."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch

from edl.binding.exact import CHUNK, add_rounded, divide_into, rounding_constant

SCRATCH = torch.empty(CHUNK, dtype=torch.float64)


def summed(summands: list[torch.Tensor], groups: int, weight: float = 1.0) -> bytes:
    """Add up ``summands`` as so many workers would, each a part of them."""
    largest = max(float(each.abs().max()) for each in summands) * weight
    constant = rounding_constant(largest, len(summands))
    parts = []
    for group in range(groups):
        part = torch.full_like(summands[0], 99.0, dtype=torch.float64)
        add_rounded(part, [(each, weight) for each in summands[group::groups]], constant, SCRATCH)
        parts.append(part)
    return torch.stack(parts).sum(dim=0).numpy().tobytes()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_any_order_and_any_split(dtype: torch.dtype, count: int) -> None:
    """Of numbers between 1e-12 and 1e12, whose plain sum in float64 depends on the order."""
    drawn = torch.Generator().manual_seed(count)
    sizes = 10.0 ** torch.randint(-12, 13, (count, 500), generator=drawn)
    values = torch.randn(count, 500, generator=drawn, dtype=torch.float64) * sizes
    summands = [each.to(dtype) for each in values]
    expected = summed(summands, 1)
    shuffle = random.Random(1)
    for groups in range(1, count + 1):
        shuffle.shuffle(summands)
        assert summed(summands, groups) == expected


def test_a_plain_sum_depends_on_the_order() -> None:
    """Else the test above could not fail."""
    values = [torch.tensor([1e16]), torch.tensor([1.0]), torch.tensor([-1e16])]
    doubles = [each.double() for each in values]
    assert doubles[0] + doubles[1] + doubles[2] != doubles[0] + doubles[2] + doubles[1]
    assert summed(values, 1) == summed(values[::-1], 3)


def test_float32_loses_nothing_that_counts() -> None:
    drawn = torch.Generator().manual_seed(3)
    values = [torch.randn(CHUNK + 7, generator=drawn) for _ in range(6)]
    total = torch.empty(CHUNK + 7, dtype=torch.float64)
    constant = rounding_constant(max(float(each.abs().max()) for each in values), 6)
    add_rounded(total, [(each, 0.5) for each in values], constant, SCRATCH)
    exact = torch.stack([each.double() for each in values]).sum(dim=0) * 0.5
    assert (total - exact).abs().max() < 1e-13


def test_the_edges() -> None:
    total = torch.ones(2, dtype=torch.float64)
    add_rounded(total, [], rounding_constant(0.0, 8), SCRATCH)
    assert total.tolist() == [0.0, 0.0]
    for largest in (math.inf, math.nan):
        constant = rounding_constant(largest, 2)
        add_rounded(total, [(torch.tensor([1.0, math.inf]), 1.0)], constant, SCRATCH)
        assert total.isnan().all(), "an update that is skipped is skipped on all workers"
    for edge in (2.0**-1074, 2.0**-1000, 2.0**1000):  # float64 from end to end
        value = torch.tensor([edge, -edge], dtype=torch.float64)
        add_rounded(total, [(value, 1.0)], rounding_constant(edge, 1), SCRATCH)
        assert torch.equal(total, value)


def test_the_mean_has_the_dtype_of_the_result() -> None:
    total = torch.tensor([3.0, 5.0] * CHUNK, dtype=torch.float64)
    result = torch.empty(2 * CHUNK)
    divide_into(result, total.clone(), 2.0)
    assert torch.equal(result, torch.tensor([1.5, 2.5] * CHUNK))
    counts = torch.empty(2 * CHUNK, dtype=torch.int64)
    divide_into(counts, total, 1.0000000001, whole=True)
    assert counts[:2].tolist() == [3, 5]


def test_arrays_of_numpy_are_added_up_like_tensors() -> None:
    drawn = torch.Generator().manual_seed(5)
    values = [torch.randn(CHUNK + 7, generator=drawn) for _ in range(3)]
    constant = rounding_constant(max(float(each.abs().max()) for each in values), 3)
    total, array = torch.empty(CHUNK + 7, dtype=torch.float64), np.empty(CHUNK + 7)
    add_rounded(total, [(each, 0.75) for each in values], constant, SCRATCH)
    add_rounded(array, [(each.numpy(), 0.75) for each in values], constant, np.empty(100))
    assert total.numpy().tobytes() == array.tobytes()
    mean, other = torch.empty(CHUNK + 7), np.empty(CHUNK + 7, np.float32)
    divide_into(mean, total, 3.0)
    divide_into(other, array, 3.0)
    assert mean.numpy().tobytes() == other.tobytes()
