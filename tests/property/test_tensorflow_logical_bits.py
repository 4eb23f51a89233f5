"""TensorFlow with logical workers on a loopback ring: the same bits in each step."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scenarios import SEEDS, Change, Fault, Scenario, faults, points, scales, some

from edl.records import JobState

pytestmark = pytest.mark.long  # tests/README.md, Time
FEWER = settings(max_examples=max(10, settings().max_examples // 2))


@pytest.fixture(autouse=True, scope="module")
def tensorflow_is_imported() -> None:
    """Import TensorFlow with the first test of this module, for it takes seconds."""
    importlib.import_module("tensorflow_net")


def net(*sizes: int, **options: int) -> Any:
    from tensorflow_net import TensorFlowNet

    return TensorFlowNet(*sizes, **options)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_any_number_of_workers(size: int) -> None:
    for workers in (1, 4, 8):  # 5 samples of a batch of 4 * 3, and a last one of 1
        Scenario(np=size, script=net(29, 3, workers)).run()


@FEWER
@given(
    seed=SEEDS,
    np=st.integers(1, 4),
    exchange_every=st.integers(0, 2),
    changes=some(scales(), 0, 3),
    deaths=some(faults("kill", "cut", "fail", "freeze"), 0, 3),
)
def test_through_joins_and_deaths(
    seed: int, np: int, exchange_every: int, changes: tuple[Change, ...], deaths: tuple[Fault, ...]
) -> None:
    Scenario(seed, np, 1, 5, net(exchange_every=exchange_every), deaths, changes).run()


@pytest.mark.parametrize("point", points(1, 100, 5))
def test_a_death_at_each_point(point: int) -> None:
    for worker in range(3):
        scenario = Scenario(point % 2, script=net(), faults=(Fault(worker, point, "kill"),))
        assert scenario.run().memory.job.state is JobState.FINISHED
