"""JSA's program and its choice of batches, with numbers worked out by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from clusters import Steps, decide, job, nodes, sizes

from edl.cluster.policies.jsa import LARGEST, RANDOM, SMALLEST, Jsa, best_sizes, fastest_batch
from edl.cluster.state import ClusterJob

NO = -math.inf


@dataclass(frozen=True)
class Shared(Steps):
    """A step takes 1 s, and 0.1 s for each sample of a slot's share; and a sync, with several."""

    sync_s: float = 0.0

    def step_s(self, slots: tuple[int, ...], batch: int) -> float:
        return 1 + 0.1 * batch / sum(slots) + (self.sync_s if sum(slots) > 1 else 0)


def tuned(name: str, **changes) -> ClusterJob:
    values = {"batch": 10, "batches": (10, 40), "local_batches": (1, 10), "model": Shared()}
    return job(name, **(values | changes))


@pytest.mark.parametrize(
    ("slots", "expected"),
    [
        (1, None),  # each needs one
        (2, [1, 1]),
        (3, [2, 1]),  # 1.8 + 1 = 2.8; 1 + 1.5
        (4, [3, 1]),  # 2.4 + 1 = 3.4; 1.8 + 1.5 = 3.3
        (5, [3, 2]),  # 2.4 + 1.5
        (9, [3, 2]),  # the third slot of the second makes it slower: 4 stay free
    ],
)
def test_the_program(slots: int, expected: list[int] | None) -> None:
    values = [np.array([NO, 1.0, 1.8, 2.4]), np.array([NO, 1.0, 1.5, 1.4])]
    assert best_sizes(values, slots) == expected


def test_sizes_that_a_job_cannot_have() -> None:
    # The first can have 2 or 4: with 5 slots 2 and 3 are 1 + 3 = 4, 4 and 1 are 2.5 + 1.
    values = [np.array([NO, NO, 1.0, NO, 2.5]), np.array([NO, 1.0, 1.5, 3.0])]
    assert best_sizes(values, 5) == [2, 3]
    assert best_sizes(values, 2) is None
    assert best_sizes([np.array([NO, NO])], 5) is None
    assert best_sizes([], 5) == []


def test_of_equal_sums_the_last_job_has_fewest() -> None:
    linear = np.array([NO, 1.0, 2.0, 3.0])
    assert best_sizes([linear, linear, linear], 5) == [3, 1, 1]
    flat = np.array([NO, 1.0, 1.0, 1.0])
    assert best_sizes([flat, flat], 6) == [1, 1]


def test_many_jobs_with_diminishing_gains_are_served_as_by_the_greedy_rule() -> None:
    # Where each slot gains less than the one before, to give each to who gains most is best, too.
    curves = [np.arange(33) ** (0.4 + 0.002 * number) for number in range(200)]
    chosen = best_sizes([np.array([NO, *curve[1:]]) for curve in curves], 2000)
    assert chosen is not None
    assert sum(chosen) == 2000
    gains = sorted((gain for curve in curves for gain in np.diff(curve)[1:]), reverse=True)
    best = sum(curve[1] for curve in curves) + sum(gains[: 2000 - 200])
    found = sum(curve[size] for curve, size in zip(curves, chosen, strict=True))
    assert found == pytest.approx(best, rel=1e-12)


def test_the_batch_with_the_highest_throughput() -> None:
    # A larger share is always better here: all that fits, up to 40.
    found = [fastest_batch(tuned("a"), slots, 4, 10, 40) for slots in (1, 2, 4, 5)]
    assert [(one.batch, one.rate) for one in found if one] == [
        (10, pytest.approx(5)),
        (20, pytest.approx(10)),
        (40, pytest.approx(20)),
        (40, pytest.approx(40 / 1.8)),
    ]
    assert fastest_batch(tuned("a"), 3, 4, 40, 40) is None  # 14 samples do not fit into a slot
    few = tuned("few", local_batches=(5, 10))
    assert fastest_batch(few, 3, 4, 10, 10) is None  # a slot takes 5 at least
    assert fastest_batch(few, 3, 4, 10, 16) == (16, pytest.approx(16 / (1 + 1.6 / 3)))


def test_batches_and_slots_together() -> None:
    # F is 1, 2, 3, 4 with 1 to 4 slots. All sums of 4 are equal: the last one has fewest.
    decision = decide(Jsa(), [tuned("a"), tuned("b")], nodes(4))
    assert sizes(decision) == {"a": 3, "b": 1}
    assert decision.batches == {"a": 30}
    assert decision.reasons == {
        "a": "has 3 slots and a batch of 30: 3.00 times as fast as one full slot",
        "b": "has 1 slot and a batch of 10: 1.00 times as fast as one full slot",
    }
    # Who has that batch already is not told of it again.
    present = {"a": (("n0", 3),), "b": (("n0", 1),)}
    again = decide(Jsa(), [tuned("a", batch=30), tuned("b")], nodes(4), present)
    assert (again.placements, again.batches) == (decision.placements, {})


def test_slots_that_slow_all_down_stay_free() -> None:
    # With a sync of 1.1 s, 2 slots make 20 / 3.1 = 6.45 a second, 3 make 30 / 3.1: worth it. With a
    # batch of 10 and 2 slots it is 10 / 2.6, less than the 10 / 2 of one.
    dear = tuned("dear", model=Shared(sync_s=1.1))
    assert sizes(decide(Jsa(), [dear], nodes(3))) == {"dear": 3}
    assert sizes(decide(Jsa(SMALLEST), [dear], nodes(3))) == {"dear": 1}


def test_the_largest_batch_needs_as_many_slots_as_it_fits_in() -> None:
    jobs = [tuned("a"), tuned("b"), tuned("c")]
    decision = decide(Jsa(LARGEST), jobs, nodes(5))
    # 40 samples need 4 slots; a fifth makes 40 / 1.8 of 40 / 2 a second.
    assert (sizes(decision), decision.batches) == ({"a": 5}, {"a": 40})
    assert decision.reasons["b"] == "waits: of 5 slots 1 are left, too few for it"
    assert decision.reasons["c"] == "waits: so does a job submitted before it"
    assert sizes(decide(Jsa(LARGEST, elastic=False), jobs, nodes(5))) == {"a": 4}


def test_the_smallest_batch_gains_little_by_more_slots() -> None:
    # 10 samples on 1, 2, 3 slots: 5, 6.67, 7.5 a second. 6.67 twice is more than 5 and 7.5.
    jobs = [tuned("a"), tuned("b")]
    assert sizes(decide(Jsa(SMALLEST), jobs, nodes(4))) == {"a": 2, "b": 2}
    assert sizes(decide(Jsa(SMALLEST, elastic=False), jobs, nodes(4))) == {"a": 1, "b": 1}


def test_random_batches_are_powers_of_two_of_the_smallest_and_stay() -> None:
    jobs = [tuned(f"j{number}") for number in range(60)]
    decision = decide(Jsa(RANDOM), jobs, nodes(400))
    chosen = {name: decision.batches.get(name, 10) for name in sizes(decision)}
    assert set(chosen.values()) == {10, 20, 40}
    assert decide(Jsa(RANDOM), jobs, nodes(300)).batches.items() <= chosen.items()
    other = decide(Jsa(RANDOM, seed=1), jobs, nodes(400))
    assert other.batches != decision.batches


def test_jobs_without_batches_are_compared_by_their_speedup() -> None:
    # Speedups 1 and 1.667, 2 of a; 1, 2, 3 of b.
    a, b = job("a", model=Steps(100, {1: 1.0, 2: 0.6, 3: 0.5})), job("b")
    decision = decide(Jsa(), [a, b], nodes(4))
    assert (sizes(decision), decision.batches) == ({"a": 1, "b": 3}, {})


def test_who_may_not_be_preempted_keeps_its_slots_and_its_batch() -> None:
    fixed = tuned("fixed", preemptible=False)
    decision = decide(Jsa(), [tuned("a"), fixed], nodes(4), {"fixed": (("n0", 2),)})
    assert sizes(decision) == {"fixed": 2, "a": 2}
    assert decision.batches == {"a": 20}
