"""One tensor from those of all workers: sums, means, the types of the results."""

from __future__ import annotations

import pytest
import torch

from edl.errors import UsageError
from edl.torch.api import reduced


def values(*numbers: float) -> list[torch.Tensor]:
    return [torch.tensor(number) for number in numbers]


@pytest.mark.parametrize(
    ("operation", "result"), [("mean", 3.0), ("sum", 9.0), ("min", 1.0), ("max", 6.0)]
)
def test_floats_are_reduced(operation: str, result: float) -> None:
    found = reduced(values(1.0, 2.0, 6.0), operation)
    assert found == result
    assert found.dtype == torch.float32


def test_a_mean_in_a_step_is_over_the_samples() -> None:
    assert reduced(values(1.0, 5.0), "mean", [3, 1]) == 2.0


def test_a_padding_batch_does_not_count_even_if_its_loss_is_no_number() -> None:
    assert reduced(values(1.0, float("nan")), "mean", [4, 0]) == 1.0


def test_if_all_batches_are_padding_all_count_alike() -> None:
    assert reduced(values(1.0, 3.0), "mean", [0, 0]) == 2.0


def test_integers_are_added_exactly_and_their_mean_is_no_integer() -> None:
    large = [torch.tensor(2**53), torch.tensor(1)]
    assert reduced(large, "sum", [1, 1]).item() == 2**53 + 1
    assert reduced([torch.tensor(1), torch.tensor(2)], "mean", [1, 1]) == 1.5


def test_small_floats_are_added_in_double_precision() -> None:
    many = [torch.tensor(1.0, dtype=torch.bfloat16)] * 1000
    assert reduced(many, "mean", [1] * 1000) == 1.0


def test_shapes_must_be_equal() -> None:
    with pytest.raises(UsageError, match=r"shapes \(\), \(2,\)"):
        reduced([torch.zeros(()), torch.zeros(2)], "sum", [1, 1])


def test_a_double_stays_one_and_complex_numbers_keep_their_imaginary_part() -> None:
    double = torch.tensor([1 + 2**-40, 1 + 2**-40], dtype=torch.float64)
    assert torch.equal(reduced([double, double], "mean"), double)
    assert reduced([torch.tensor(1 + 2j), torch.tensor(3 + 4j)], "mean") == 2 + 3j


def test_booleans_are_counted() -> None:
    assert reduced([torch.tensor(True), torch.tensor(True)], "sum").item() == 2
