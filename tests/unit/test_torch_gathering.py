"""Tensors of all workers: gathered, one each, and added up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import edl.torch as edl
from edl.binding import reduction
from edl.errors import UsageError


@pytest.fixture
def on_all(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    def run(act: Callable[[Any], Any], values: Sequence[Any]) -> list[Any]:
        sent: list[bytes] = []

        def exchange(payload: bytes) -> list[bytes]:
            sent.append(payload)
            return [payload]

        monkeypatch.setattr(
            reduction, "current_worker", lambda: SimpleNamespace(exchange_bytes=exchange)
        )
        for value in values:
            act(value)
        everything = [*sent]
        told = SimpleNamespace(exchange_bytes=lambda _: everything)
        monkeypatch.setattr(reduction, "current_worker", lambda: told)
        return [act(value) for value in values]

    return run


KINDS = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.complex64)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_rows_come_in_rank_order_whatever_their_number(on_all, kind) -> None:
    parts = [torch.arange(2 * n).reshape(n, 2).to(kind) + rank for rank, n in enumerate((3, 0, 2))]
    for answer in on_all(edl.gather, parts):
        assert answer.dtype == kind
        assert torch.equal(answer, torch.cat(parts))
    for answer in on_all(edl.gather_each, parts):
        assert [each.tolist() for each in answer] == [part.tolist() for part in parts]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_tensor_without_elements_has_the_type_of_the_others(on_all, kind) -> None:
    parts = [torch.zeros(0), torch.arange(3).to(kind), torch.zeros(0, dtype=torch.int64)]
    for answer in on_all(edl.gather_each, parts):
        assert [each.dtype for each in answer] == [kind] * 3
        assert torch.equal(torch.cat(answer), parts[1])
    nothing = on_all(edl.gather_each, [torch.zeros(0), torch.zeros(0)])
    assert [[*each.shape] for each in nothing[1]] == [[0], [0]]


def test_a_number_of_each_worker_is_a_row(on_all) -> None:
    assert on_all(edl.gather, [torch.tensor(1.5), torch.tensor(2.5)])[1].tolist() == [1.5, 2.5]


def test_sums(on_all) -> None:
    confusions = [torch.tensor([[5, 1], [0, 2**53 + 1]]), torch.tensor([[1, 1], [1, 1]])]
    for answer in on_all(edl.sum, confusions):
        assert answer.tolist() == [[6, 2], [1, 2**53 + 2]]
    # In float32 or bfloat16 the small one would be lost.
    large = [torch.tensor(2.0**24), torch.tensor(1.0), torch.tensor(1.0)]
    assert on_all(edl.sum, large)[0].item() == 2.0**24 + 2
    right = [torch.tensor([True, False]), torch.tensor([True, True])]
    assert on_all(edl.sum, right)[0].tolist() == [2, 1]
    assert on_all(edl.sum, [3, 4])[0].item() == 7
    whole = on_all(edl.sum, [{"a": torch.ones(2), "n": 1}, {"n": 2, "a": torch.ones(2)}])
    assert [each["a"].tolist() for each in whole] == [[2.0, 2.0]] * 2
    assert whole[0]["n"].item() == 3


def test_no_gradient_comes_along(on_all) -> None:
    assert not on_all(edl.gather, [torch.ones(2, requires_grad=True)])[0].requires_grad


@pytest.mark.parametrize(
    ("act", "values", "sentence"),
    [
        (edl.gather, [torch.ones(2, 3), torch.ones(2, 4)], r"shapes are \(2, 3\), \(2, 4\); they"),
        (edl.sum, [torch.ones(2), torch.ones(3)], r"shapes are \(2,\), \(3,\); they must be equal"),
        (edl.sum, [torch.ones(2), torch.ones(2).int()], "rank 1 gathers int32, and .* float32"),
        (edl.gather_each, [torch.ones(2), torch.ones(2).int()], "rank 1 gathers int32"),
        (edl.gather, [{"a": torch.ones(1)}, {"b": torch.ones(1)}], "gathers b float32"),
    ],
)
def test_what_does_not_fit_is_refused(on_all, act, values, sentence) -> None:
    with pytest.raises(UsageError, match=sentence):
        on_all(act, values)
