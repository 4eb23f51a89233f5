"""The stand-ins of the benchmark of a thousand jobs: their jobs, and how they count."""

from __future__ import annotations

import importlib
import threading
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


def part(name: str) -> ModuleType:
    return importlib.import_module(f"benchmarks.cluster_scale.{name}")


def test_a_day_has_the_load_that_it_promises() -> None:
    workload = part("workload")
    length_s = 7200.0
    jobs = workload.day(4000, 1, length_s)
    assert [one.at_s for one in jobs] == sorted(one.at_s for one in jobs)
    assert jobs[0].at_s >= 0.0
    assert jobs[-1].at_s <= length_s
    slots_s = 0.0
    for one in jobs:
        np = one.job.manifest.requested_np
        lasts_s = one.job.samples / one.job.samples_per_s(np, 1)
        assert lasts_s == pytest.approx(one.job.manifest.hints.duration_s)
        slots_s += np * lasts_s
    # The longest durations are cut, so a little less than the load.
    assert 0.7 < slots_s / (workload.HOSTS * workload.SLOTS * length_s) < 0.85
    noon = sum(length_s / 4 < one.at_s < 3 * length_s / 4 for one in jobs)
    assert 0.6 < noon / len(jobs) < 0.72
    assert jobs == workload.day(4000, 1, length_s)


def test_more_workers_train_more_but_less_each() -> None:
    [job] = part("workload").thousand(1, 1)
    rates = [job.samples_per_s(workers, 1) for workers in range(1, 5)]
    assert rates == sorted(rates)
    assert [rate / n for n, rate in enumerate(rates, 1)] == sorted(
        (rate / n for n, rate in enumerate(rates, 1)), reverse=True
    )
    assert job.samples_per_s(4, 2) < job.samples_per_s(4, 1)


def test_a_device_of_two_runs_is_noticed() -> None:
    book = part("runs").Book()
    book.use("a", (0, 1), ("one", "x"))
    book.use("a", (2,), ("two", "y"))
    book.use("a", (1,), ("one", "x"))
    book.use("a", (0, 2), ("two", "y"))
    assert book.shared == []
    book.use("a", (0, 1), ("one", "x"))
    assert book.shared == ["device 0 of a: two and one"]


def test_the_loop_calls_what_is_woken_once_and_what_is_due_in_order() -> None:
    loop = part("loop").Loop()
    seen: list[str] = []
    done = threading.Event()
    for text in ("a", "b"):
        loop.wake("key", lambda text=text: seen.append(text))
    loop.after(0.02, lambda: seen.append("later"))
    loop.after(0.01, lambda: 1 // 0)
    loop.after(0.0, lambda: seen.append("soon"))
    loop.after(0.03, done.set)
    loop.start()
    try:
        assert done.wait(60.0)
    finally:
        loop.close()
    # A loop that starts late finds all due at once, beside what was woken.
    assert sorted(seen) == ["b", "later", "soon"], "woken twice by one key, it is called once"
    assert seen.index("soon") < seen.index("later")
    assert [type(one) for one in loop.errors] == [ZeroDivisionError]


def test_processor_time_of_leaders_one_after_another() -> None:
    measure, Turn = part("measure"), part("observed").Turn
    turns = [Turn(processor_s=spent_s) for spent_s in (1.0, 3.0, 0.5, 2.0)]
    assert measure._processor_s(turns) == 5.0
