"""The samples of an epoch in the order in which a distributed sampler's replicas train them."""

from __future__ import annotations

import numpy as np
import pytest
from torch.utils.data import DataLoader, DistributedSampler

from edl.step.batching import Batching, logical_batching
from edl.step.source import AlignedSource, by_steps, samples_of_replica


@pytest.mark.parametrize(
    ("samples", "replicas", "batch_size"),
    [(24, 3, 4), (23, 3, 4), (29, 4, 3), (5, 4, 3), (2, 4, 1)],
)
@pytest.mark.parametrize("drop_last", [False, True])
def test_each_step_has_the_batches_of_all_replicas(
    samples: int, replicas: int, batch_size: int, drop_last: bool
) -> None:
    if drop_last and samples < replicas:
        return  # no replica has a sample
    data = list(range(samples))
    loaders = [
        DataLoader(
            data, batch_size, sampler=DistributedSampler(data, replicas, rank, drop_last=drop_last)
        )
        for rank in range(replicas)
    ]
    steps = zip(*loaders, strict=True)
    theirs = [batch.tolist() for step in steps for batch in step]
    each = samples_of_replica(samples, replicas, drop_last)
    shuffled = np.fromiter(DistributedSampler(data, 1, 0), np.int64)
    order = by_steps(shuffled, replicas, each, batch_size)
    assert order.tolist() == [index for batch in theirs for index in batch]
    source = AlignedSource(
        len(order), logical_batching("", Batching(batch_size), replicas), False, 0, 0, "", order
    )
    begins = np.cumsum([0, *map(len, theirs)])
    assert [source.units.at(int(begin)) for begin in begins[:-1]] == [*map(len, theirs)]
