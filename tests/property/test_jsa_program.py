"""JSA's program beside all that there is to choose from, on small cases."""

from __future__ import annotations

import itertools
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from edl.cluster.policies.jsa import best_sizes

# Whole numbers, so that sums are exact; None: the job cannot have so many.
VALUES = st.lists(st.none() | st.integers(0, 9), min_size=1, max_size=5)


@given(st.lists(VALUES, min_size=1, max_size=4), st.integers(0, 14))
def test_no_choice_is_better(jobs: list[list[int | None]], slots: int) -> None:
    found = best_sizes(
        [
            np.array([-math.inf, *(-math.inf if one is None else one for one in job)])
            for job in jobs
        ],
        slots,
    )
    possible = [
        [(size, value) for size, value in enumerate(job, 1) if value is not None] for job in jobs
    ]
    sums = {
        tuple(size for size, _ in choice): sum(value for _, value in choice)
        for choice in itertools.product(*possible)
        if sum(size for size, _ in choice) <= slots
    }
    if found is None:
        assert not sums
        return
    best = max(sums.values())
    assert sums[tuple(found)] == best
    assert sum(found) == min(sum(sizes) for sizes, value in sums.items() if value == best)
