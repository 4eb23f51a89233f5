"""Exact means of PyTorch's tensors: on a GPU, many in one operation, they have the same bits."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edl.binding.exact import Summands, add_rounded, divide_into, exact_means, rounding_constant
from edl.torch import logical
from edl.torch.logical import Tensors

TYPES = (
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.complex128,
    torch.int64, torch.int32, torch.uint8, torch.bool,
)  # fmt: skip
SHAPES = ((), (0,), (1,), (7,), (3, 5), (90,), (2, 3, 4, 2), (3, 0))
WEIGHTS = (1.0, 1.0, 0.5, 1 / 3)
EDGES = (0.0, -0.0, math.inf, -math.inf, math.nan, 1e-40, 65504.0)


@st.composite
def values(draw: Any, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**40)))
    if not (dtype.is_floating_point or dtype.is_complex):
        whole = torch.randint(
            0, 2**62 if dtype is torch.int64 else 2**7, shape, generator=generator
        )
        return whole.bool() if dtype is torch.bool else whole.to(dtype)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    sizes = 10.0 ** torch.randint(-12, 5, shape, generator=generator)
    found = (torch.randn(shape, generator=generator, dtype=wide) * sizes).to(dtype)
    for edge in draw(st.lists(st.sampled_from(EDGES), max_size=2)):
        if draw(st.booleans()):
            found.fill_(edge)
        elif found.numel():
            found.view(-1)[draw(st.integers(0, found.numel() - 1))] = edge
    if found.dim() == 4 and draw(st.booleans()):
        return found.to(memory_format=torch.channels_last)
    return found.T.contiguous().T if found.dim() == 2 and draw(st.booleans()) else found


@st.composite
def rows(draw: Any, pieces: int) -> list[Summands]:
    found = []
    for _ in range(draw(st.integers(1, 8))):
        shape, dtype = draw(st.sampled_from(SHAPES)), draw(st.sampled_from(TYPES))
        own = [
            (draw(values(shape, dtype)), draw(st.sampled_from(WEIGHTS)))
            for _ in range(draw(st.integers(0, pieces)))
        ]
        base = draw(values(shape, dtype)) if draw(st.booleans()) else None
        divisor = draw(st.sampled_from((1.0, float(pieces), 2.5)))
        counts = draw(st.integers(0, 5)) > 0
        found.append(Summands(torch.empty(shape, dtype=dtype), own, divisor, counts, base))
    return found


def real(values: torch.Tensor) -> torch.Tensor:
    return (torch.view_as_real(values) if values.is_complex() else values).reshape(-1)


def largest(values: torch.Tensor) -> float:
    numbers = [float(number) for number in real(values).tolist()]
    return max((abs(number) for number in numbers if math.isfinite(number)), default=0.0)


def one_by_one(row: Summands, pieces: int) -> torch.Tensor | None:
    if not row.own or not row.counts:
        return None
    bound = max(largest(each) * weight for each, weight in row.own)
    bound = bound if row.base is None else max(bound, largest(row.base))
    total = torch.empty(real(row.target).numel(), dtype=torch.float64)
    summands = [(real(each), weight) for each, weight in row.own]
    add_rounded(total, summands, rounding_constant(bound, pieces), torch.empty_like(total))
    mean = torch.empty(row.target.shape, dtype=row.target.dtype)
    is_whole = not (mean.is_floating_point() or mean.is_complex())
    divide_into(real(mean), total, row.divisor, is_whole)
    return mean


def bits(values: torch.Tensor) -> bytes:
    flat = real(values).clone()
    flat[flat != flat] = 1.0
    return flat.view(torch.uint8).numpy().tobytes() + bytes(real(values).isnan().tolist())


@pytest.mark.parametrize(("is_gpu", "chunk"), [(False, 1), (True, 16), (True, 1 << 23)])
@given(data=st.data())
def test_all_at_once_or_one_by_one(is_gpu: bool, chunk: int, data: st.DataObject) -> None:
    pieces = data.draw(st.integers(1, 4))
    drawn = data.draw(rows(pieces))
    expected = [one_by_one(row, pieces) for row in drawn]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logical, "is_launched", lambda _: is_gpu)
        patch.setattr(logical, "GPU_CHUNK", chunk)
        found = exact_means(drawn, pieces, [], Tensors(), lambda summed, _: summed)
    for mean, other in zip(found, expected, strict=True):
        assert (mean is None) == (other is None)
        if mean is not None and other is not None:
            assert (mean.shape, mean.dtype) == (other.shape, other.dtype)
            assert bits(mean) == bits(other)
