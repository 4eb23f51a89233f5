"""A training loader of PyTorch becomes options of edl's, or is refused in a sentence."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, WeightedRandomSampler

from edl.errors import UsageError
from edl.torch.loader import training_options


def test_a_training_loader_of_pytorch_becomes_options() -> None:
    generator = torch.Generator().manual_seed(5)
    options = training_options(
        DataLoader(range(10), batch_size=4, shuffle=True, num_workers=2, generator=generator)
    )
    assert (options["batch_size"], options["shuffle"]) == (4, True)
    assert options["generator"] is options["order_generator"] is generator
    assert (options["num_workers"], "collate_fn" in options) == (2, False)
    plain = training_options(DataLoader(range(10), collate_fn=list))
    assert "prefetch_factor" not in plain
    assert (plain["collate_fn"], plain["num_workers"]) == (list, 0)


@pytest.mark.parametrize("keeps", [False, True])
def test_loader_processes_stay_from_epoch_to_epoch_if_the_script_says_so(keeps: bool) -> None:
    options = {"num_workers": 1, "persistent_workers": keeps}
    assert training_options(DataLoader(range(4), **options))["persistent_workers"] is keeps


def test_a_training_loader_says_whether_it_shuffles() -> None:
    for options, shuffles in (
        ({"shuffle": True}, True),
        ({"sampler": RandomSampler(range(4))}, True),
        ({"sampler": SequentialSampler(range(4))}, False),
        ({"batch_size": 2}, False),
    ):
        assert training_options(DataLoader(range(4), **options))["shuffle"] is shuffles


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"sampler": WeightedRandomSampler([1.0] * 4, 4)}, "a WeightedRandomSampler; edl decides"),
        ({"sampler": RandomSampler(range(4), replacement=True)}, "a RandomSampler; edl decides"),
        ({"sampler": RandomSampler(range(4), num_samples=2)}, "a RandomSampler; edl decides"),
        ({"batch_sampler": [[0, 1], [2, 3]]}, "a batch sampler of its own; edl decides"),
        ({"batch_size": None}, "no batch_size; edl decides"),
        ({"batch_size": 2, "drop_last": True}, "drop_last=True, and edl trains every sample"),
    ],
)
def test_a_training_loader_that_chooses_samples_is_refused(
    options: dict[str, Any], why: str
) -> None:
    with pytest.raises(UsageError, match=f"the training loader has {why}"):
        training_options(DataLoader(range(4), **options))
