"""The arithmetic of the benchmark of the HTTP API, and how it counts a late answer."""

from __future__ import annotations

import threading
import time

from benchmarks.cluster_api import load


def test_the_summary() -> None:
    taken = [number / 1000 for number in range(1, 101)]
    found = load.summary(200.0, 0.5, taken, 4)
    assert (found.p50_ms, found.p99_ms, found.most_ms) == (50.0, 99.0, 100.0)
    assert found.per_s == 192.0
    assert load.percentile([3.0], 0.99) == 3.0


def test_each_job_is_submitted_once_and_late_ones_count_from_when_they_were_due() -> None:
    seen: list[int] = []
    noting = threading.Lock()

    def submit(number: int) -> bool:
        time.sleep(0.01 if number == 10 else 0.0)
        with noting:
            seen.append(number)
        return number != 12

    found = load.at_rate([submit], 1000.0, 20, first=10)
    assert sorted(seen) == list(range(10, 30))
    assert (found.submitted, found.refused) == (20, 1)
    assert found.most_ms >= 10.0
    assert found.p50_ms >= 1.0, "the ones behind it were late, too"
