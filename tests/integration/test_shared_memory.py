"""Horovod's allreduce among workers of one host, in shared memory and without it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from test_horovod_build import Store, at, outcome, serve, start_worker, workers

__all__ = ("serve", "workers")  # fixtures

pytestmark = pytest.mark.integration

LONG = pytest.mark.long

WORKER = Path(__file__).with_name("shared_memory_worker.py")


def results(
    workers: list[subprocess.Popen[str]], store: Store, ranks: int, **settings: str
) -> list[dict[str, object]]:
    """Run the worker's script on so many ranks, and return what each of them prints."""
    started = [
        start_worker(rank, ranks, at(store) | settings, script=WORKER) for rank in range(ranks)
    ]
    workers += started
    return [outcome(one) for one in started]


@pytest.mark.parametrize(
    "ranks",
    [2, pytest.param(3, marks=pytest.mark.long), 4, pytest.param(6, marks=pytest.mark.long)],
)
def test_the_sum_is_made_in_the_order_of_the_ranks(
    workers: list[subprocess.Popen[str]], serve: Callable[[Store], Store], ranks: int
) -> None:
    """With more than three ranks each one reduces a part, and reads those of the others."""
    found = results(workers, serve(Store()), ranks)
    for one in found:
        assert (one["shared"], one["gone"], one["wrong"]) == (True, True, [])
    assert len({one["sha256"] for one in found}) == 1


def test_without_it_gloo_reduces(
    workers: list[subprocess.Popen[str]], serve: Callable[[Store], Store]
) -> None:
    """It is enough that one rank does not want it. The sum of two has the same bits."""
    store = serve(Store())
    settings = ({}, {"HOROVOD_SHM_ALLREDUCE": "0"})
    started = [
        start_worker(rank, 2, at(store) | settings[rank], script=WORKER) for rank in range(2)
    ]
    workers += started
    for one in (outcome(each) for each in started):
        assert (one["shared"], one["wrong"]) == (False, [])
