"""Means over logical workers that several workers hold: the same bits, and what must be alike."""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from edl.binding.exact import Summands, exact_means
from edl.errors import UsageError
from edl.torch.logical import Tensors

SHAPES = ((3, 5), (7,), (), (0,))


class Ring:
    def __init__(self, size: int) -> None:
        self.brought: list[Any] = [None] * size
        self.barrier = threading.Barrier(size, timeout=60.0)

    def together(self, rank: int, values: Any, kind: str) -> Any:
        self.brought[rank] = torch.as_tensor(values, dtype=torch.float64)
        self.barrier.wait()
        stacked = torch.stack(self.brought)
        self.barrier.wait()
        found = stacked.sum(0) if kind == "sum" else stacked.amax(0)
        return found.tolist() if isinstance(values, list) else found


def means_of(shares: Sequence[Sequence[int]], seeds: Sequence[int] = ()) -> list[list[Any]]:
    ring, pieces = Ring(len(shares)), sum(map(len, shares))
    found: list[Any] = [None] * len(shares)

    def work(rank: int) -> None:
        rows = []
        for index, shape in enumerate(SHAPES):
            own = []
            for piece in shares[rank]:
                drawn = torch.Generator().manual_seed(100 * index + piece)
                own.append((torch.randn(shape, generator=drawn) * 10.0**piece, 1.0 + piece % 2))
            rows.append(Summands(torch.empty(shape), own, float(pieces)))
        rows.append(Summands(torch.empty(2), [], 1.0))  # nobody has it
        rows.append(Summands(torch.empty(2), [(torch.ones(2), 1.0)], 1.0, counts=False))
        alike = [(seeds[rank] if seeds else 5, "the seeds differ")]
        try:
            found[rank] = exact_means(
                rows, pieces, alike, Tensors(), functools.partial(ring.together, rank)
            )
        except UsageError as error:
            found[rank] = error

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(len(shares))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    return found


def test_the_same_bits_however_they_are_shared() -> None:
    expected = means_of([[0, 1, 2, 3, 4]])[0]
    assert expected[-2:] == [None, None]
    for shares in ([[3, 1], [4, 0, 2]], [[0], [1], [2], [3], [4]], [[], [4, 3, 2, 1, 0]]):
        for found in means_of(shares):
            assert found[-2:] == [None, None]
            for mean, other in zip(found[:-2], expected[:-2], strict=True):
                assert mean.shape == other.shape
                assert mean.numpy().tobytes() == other.numpy().tobytes()


def test_a_number_that_differs_is_refused_on_all_workers() -> None:
    for refused in means_of([[0], [1]], seeds=[7, 8]):
        with pytest.raises(UsageError, match="the seeds differ"):
            raise refused
