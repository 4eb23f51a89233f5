"""What is useful of what a job trains under failures, on step logs made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import goodput


def log(worker: int, *rows: tuple[float, int, int]) -> object:
    times, steps, sizes = zip(*rows, strict=True)
    return goodput.Steps(worker, np.array(times), np.array(steps), np.array(sizes))


def test_a_step_counts_once_though_it_was_trained_again() -> None:
    first = log(1, (0.0, 1, 2), (1.0, 2, 2), (2.0, 3, 2))
    second = log(2, (0.1, 1, 2), (1.1, 2, 2))
    again = log(3, (6.0, 2, 1), (7.0, 3, 1), (8.0, 4, 1))  # from a snapshot of step 1
    logs = [first, second, again]
    assert goodput.rate(logs, 0.0, 10.0) == goodput.BATCH_SIZE * (2 + 2 + 2 + 1) / 10
    assert goodput.redone(logs) == 1, "step 2; the death was before step 3 was complete"
    assert goodput.stopped(logs, 0.0, 10.0) == pytest.approx(6.0 + 2.0)
    assert goodput.stopped(logs, 0.0, 3.0) == 0.0


def test_the_page_says_who_was_killed_and_what_was_useful() -> None:
    found = {
        "edl": goodput.Goodput(1000.0, 950.0, 0, ("worker", "leader", "worker"), 1.2),
        "other": goodput.Goodput(1000.0, 500.0, 40, ("worker",), 60.0, "its launcher ended with 1"),
    }
    page = goodput.markdown(found, 20.0, 60.0, 3)
    assert "| edl | 1000 | 950 | **95.0%** | 1 s | 0 | 2 x worker, 1 x leader |" in page
    assert "| **50.0%** | 60 s | 40 | 1 x worker; its launcher ended with 1 |" in page
