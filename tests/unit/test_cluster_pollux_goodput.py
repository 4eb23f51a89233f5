"""What a job gains by slots and by batches, with numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.published.pollux_goodput import BatchLimits, Shapes, _evaluated, choices, efficiency
from edl.policy.step_time import TINY, StepTime

# A step takes 1 s and 0.01 s for each sample of a slot; reducing costs nothing.
MODEL = StepTime(compute_s=1.0, each_sample_s=0.01)
LIMITS = BatchLimits((100, 400), (10, 400))
ONE_NODE = Shapes((4,), 4)


def test_numbers_of_nodes_and_slots_that_can_be() -> None:
    nodes, slots = Shapes((4, 6, 8), 5).pairs()
    assert list(zip(nodes.tolist(), slots.tolist(), strict=True)) == [
        *((1, slots) for slots in (1, 2, 3, 4)),
        *((2, slots) for slots in (2, 3, 4, 5)),
        *((3, slots) for slots in (3, 4, 5)),
    ]


def test_what_a_sample_is_worth_in_a_larger_batch() -> None:
    # (300 + 100) / (300 + B)
    batches = np.array([100.0, 300.0, 500.0])
    assert efficiency(300.0, 100, batches) == pytest.approx([1.0, 2 / 3, 0.5])
    assert efficiency(math.inf, 100, batches) == pytest.approx([1, 1, 1])
    assert efficiency(None, 100, batches) == pytest.approx([1, 1 / 3, 1 / 5])


def test_nothing_but_noise_wants_the_largest_batch_and_none_the_smallest() -> None:
    # 4 slots share 400 samples in 2 s, so 200 a second; a fair share of 2 does 400 in 3 s.
    found = choices(MODEL, math.inf, LIMITS, ONE_NODE, fair_slots=2)
    assert (found.batches[1, 4], found.speedups[1, 4]) == (400, pytest.approx(200 / (400 / 3)))
    assert found.speedups[1, 2] == pytest.approx(1)
    # Without noise a step is a step: of 100 samples in 1.25 s beside 1.5 s.
    found = choices(MODEL, 0.0, LIMITS, ONE_NODE, fair_slots=2)
    assert (found.batches[1, 4], found.speedups[1, 4]) == (100, pytest.approx(1.5 / 1.25))
    assert not found.speedups[0].any()


def test_the_best_batch_lies_between() -> None:
    # With 4 slots: B / (1 + B / 400) samples a second, worth (S + 100) / (S + B) each. That is
    # largest at B = sqrt(400 S), 200 for S = 100; the candidates are 3 % apart.
    found = choices(MODEL, 100.0, LIMITS, ONE_NODE, fair_slots=4)
    assert found.batches[1, 4] == pytest.approx(200, rel=0.03)
    assert found.speedups[1, 4] == pytest.approx(1)


def test_a_share_too_large_for_a_slot_is_accumulated() -> None:
    # 400 samples of a slot: 4 parts of 100, each 2 s, if it takes 100 at once; 2 parts of 200,
    # each 3 s, if it takes 400, as the noise could not be measured in one.
    for most, wanted_s in ((100, 8.0), (400, 6.0)):
        batches, throughputs = _evaluated(
            MODEL, BatchLimits((100, 400), (10, most)), np.array([1]), np.array([1])
        )
        assert batches[-1, 0] == 400
        assert throughputs[-1, 0] == pytest.approx(400 / wanted_s)
        assert throughputs[0, 0] == pytest.approx(100 / 2.0)


def test_a_slot_has_its_least_share() -> None:
    # 8 slots of at least 50 samples need 400; 9 cannot share the largest batch, but nobody asks.
    found = choices(MODEL, 0.0, BatchLimits((100, 400), (50, 400)), Shapes((8,), 8), fair_slots=1)
    assert found.batches[1].tolist() == [0, 100, 100, 150, 200, 250, 300, 350, 400]


def test_what_was_never_measured_is_as_fast_as_it_has_slots() -> None:
    found = choices(None, None, LIMITS, Shapes((16,), 16), fair_slots=4)
    assert found.speedups[1] == pytest.approx(np.arange(17) / 4)
    assert (found.batches[1, 10], found.batches[1, 16]) == (100, 160)


def test_a_batch_that_does_not_change_is_shared_evenly() -> None:
    # Amdahl: T(k) = 0.2 + 0.8 / k of one sample.
    model = StepTime(0.2, 0.8, TINY, TINY, TINY, TINY, 1.0)
    found = choices(model, None, BatchLimits((1, 1), None), ONE_NODE, fair_slots=2)
    assert found.speedups[1, 1:] == pytest.approx([0.6, 1.0, 0.6 / (0.2 + 0.8 / 3), 1.5])
    assert found.batches[1].tolist() == [0, 1, 1, 1, 1]
