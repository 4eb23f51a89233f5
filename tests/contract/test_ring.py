"""One contract for every ring: in this process, and Horovod's in PyTorch and in TensorFlow.

A case runs on three workers at once (`cases.py`). On the loopback ring each case is tried in many
orders; with Horovod the same three processes run one case after the other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, Protocol

import pytest
from cases import SIZES, WORKERS
from processes import Processes
from threads import Threads

SEEDS = 60
RINGS = (
    "loopback",
    pytest.param("torch", marks=pytest.mark.integration),
    pytest.param("tensorflow", marks=[pytest.mark.integration, pytest.mark.slow]),
)


class Members(Protocol):
    bound_s: float

    def run(self, case: str) -> list[Any]: ...


@pytest.fixture(scope="module", params=RINGS)
def members(request: pytest.FixtureRequest) -> Iterator[Members]:
    if request.param == "loopback":
        yield Threads(SEEDS)
    else:
        with Processes(request.param) as processes:
            yield processes


def test_rows_come_in_rank_order(members: Members) -> None:
    answers = [[2, 0, 1], [2, 0, 1]]
    assert members.run("rows_come_in_rank_order") == [
        [1, 3, answers],
        [2, 3, answers],
        [0, 3, answers],
    ]


def test_broadcasts_of_any_size(members: Members) -> None:
    """Whatever the others pass is ignored; nothing at all can be sent, too."""
    expected = [
        [size, hashlib.sha256(bytes([root + 1]) * size).hexdigest()]
        for size in SIZES
        for root in range(WORKERS)
    ]
    assert members.run("broadcasts_of_any_size") == [expected] * WORKERS


def test_payloads_of_any_size_are_exchanged(members: Members) -> None:
    """One member sends nothing, and no two of them as much as each other."""
    expected = [
        [
            [size * worker, hashlib.sha256(bytes([worker + 1]) * (size * worker)).hexdigest()]
            for worker in range(WORKERS)
        ]
        for size in (*SIZES, 8, 16)
    ]
    assert members.run("payloads_of_any_size_are_exchanged") == [expected] * WORKERS


def test_gradients_are_averaged(members: Members) -> None:
    assert members.run("gradients_are_averaged") == [[[1.0] * 5, [2.0] * 5]] * WORKERS


def test_what_does_not_fit_is_refused(members: Members) -> None:
    assert members.run("what_does_not_fit_is_refused") == [[True, [0, 1, 2]]] * WORKERS


def test_alone_nothing_is_sent(members: Members) -> None:
    answers = members.run("alone_nothing_is_sent")
    assert answers == [[True, [worker], "alone", "mine", 1] for worker in range(WORKERS)]


def test_a_cut_ends_the_ring_on_all(members: Members) -> None:
    answers = members.run("a_cut_ends_the_ring_on_all")
    assert [left for _, left in answers] == [[2, 0], [], [2, 0]]
    assert max(failed_s for failed_s, _ in answers) < members.bound_s


def test_who_closes_ends_it_for_all(members: Members) -> None:
    answers = members.run("who_closes_ends_it_for_all")
    assert [is_open for _, is_open in answers] == [False] * WORKERS
    assert max(failed_s for failed_s, _ in answers) < members.bound_s


def test_gradients_fail_with_the_ring(members: Members) -> None:
    for failed_s in members.run("gradients_fail_with_the_ring"):
        assert 0.0 <= failed_s < members.bound_s


def test_a_rendezvous_that_is_given_up_fails_and_the_next_one_works(members: Members) -> None:
    answers = members.run("a_rendezvous_that_is_given_up_fails_and_the_next_one_works")
    assert answers == [[True, [False, False, 0], [1, 2, 0]]] * WORKERS


def test_newcomers_hear_that_the_others_go(members: Members) -> None:
    assert members.run("newcomers_hear_that_the_others_go") == [[0, 1, 2]] * WORKERS


def test_rings_follow_each_other(members: Members) -> None:
    orders = [[n % 3, (n + 1) % 3, (n + 2) % 3] for n in range(1, 6)]
    assert members.run("rings_follow_each_other") == [orders] * WORKERS
