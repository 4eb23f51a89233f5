"""The benchmark's arithmetic, on step logs made by hand."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def resize(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("benchmarks.resize")


@pytest.fixture
def step_time(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("benchmarks.step_time")


def steps(resize: ModuleType, worker: int, gaps: list[float], sizes: list[int]) -> object:
    count = len(gaps)
    return resize.Steps(worker, np.cumsum(gaps), np.arange(count), np.array(sizes))


def test_a_stall_is_the_longest_gap_after_the_request(resize: ModuleType) -> None:
    """Steps of 0.1 s until 1.9 s, the request at 1.85 s, a gap of 2 s, then the new size; the
    long gaps before the request and long after the change are somebody else's."""
    settled = resize.SETTLED
    gaps = [0.9, *[0.1] * 10, 2.0, *[0.1] * settled, 9.0]
    old = steps(resize, 7, gaps, [2] * 11 + [3] * (settled + 2))
    found = resize.stall([old], 1.85, 3)
    assert found.gap_s == pytest.approx(2.0)
    assert found.median_step_s == pytest.approx(0.1)
    assert found.timeline[1][0] == pytest.approx(0.9 + 1.0 + 2.0 - 1.85)


def test_the_worst_old_worker_counts(resize: ModuleType) -> None:
    sizes = [3] * 10 + [2] * 40
    quick = steps(resize, 1, [0.1] * 50, sizes)
    slow = steps(resize, 2, [*[0.1] * 10, 0.5, *[0.1] * 39], sizes)
    found = resize.stall([quick, slow], 0.75, 2)
    assert found.gap_s == pytest.approx(0.5)
    assert found.gaps_s == pytest.approx({1: 0.1, 2: 0.5})


def test_the_interval_of_a_median_holds_it(step_time: ModuleType) -> None:
    ratios = np.random.default_rng(1).normal(1.02, 0.05, 40)
    low, high = step_time.confidence(ratios)
    assert low < np.median(ratios) < high
    assert high - low < 0.06
