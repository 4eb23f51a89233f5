"""What metrics say, and that it is what the records of status and events say."""

from __future__ import annotations

import pytest

from edl.core.metric import Histogram, Metric, MetricType, Sample, counter, gauge, histogram
from edl.core.progress import WorkerProgress
from edl.core.step_totals import StepTotals
from edl.core.worker_metrics import WORKER_METRICS, WorkerFacts, worker_samples
from edl.http.exposition import exposition
from edl.worker.step_timer import StepTimer

OPEN_METRICS = "application/openmetrics-text;version=1.0.0"


def value(samples: list[Sample], name: str, *labels: str) -> float:
    [found] = [one for one in samples if one.metric.name == name and one.labels == labels]
    assert not isinstance(found.value, Histogram)
    return found.value


def facts(progress: WorkerProgress, totals: StepTotals, now_s: float = 0.0) -> WorkerFacts:
    return WorkerFacts("1.2", "digits", "a", "w3", True, True, progress, totals, now_s)


def test_a_histogram_counts_a_value_at_a_limit_below_it() -> None:
    values = Histogram((0.1, 1.0))
    for one in (0.1, 0.5, 1.0, 7.0):
        values.observe(one)
    assert (values.counts, values.sum) == ([1, 2, 1], pytest.approx(8.6))


def test_a_worker_tells_its_progress() -> None:
    progress = WorkerProgress(step=7, generation=2, size=3, samples_total=99, updated_at=5.0)
    samples = worker_samples(facts(progress, StepTotals(), now_s=6.5))
    assert value(samples, "edl_steps_total") == 7
    assert value(samples, "edl_samples_total") == 99
    assert value(samples, "edl_worker_generation") == 2
    assert value(samples, "edl_worker_last_step_age_seconds") == 1.5
    assert value(samples, "edl_leader") == 1
    assert value(samples, "edl_worker_info", "digits", "a", "w3") == 1
    assert {one.metric for one in samples} == set(WORKER_METRICS)


def test_the_times_of_steps_are_those_of_the_step_records() -> None:
    """The first step of a ring counts in the parts, and not in the durations, as in the median."""
    now, totals = [0.0], StepTotals()
    timer = StepTimer(lambda: now[0], totals)
    sums = [0, 0, 0]
    for number in (1, 2, 3):
        timer.load(0.25)
        now[0] += 1.0
        timer.wait()
        now[0] += 0.5
        timer.reduce()
        now[0] += 0.125
        timer.steps_here = number
        timer.end()
        sums = [
            a + b
            for a, b in zip(sums, (timer.compute_us, timer.data_us, timer.reduce_us), strict=True)
        ]
    assert [totals.compute_us, totals.data_us, totals.reduce_us] == sums
    assert (sum(totals.durations.counts), totals.durations.sum) == (2, pytest.approx(3.25))


def test_the_text_format_of_prometheus() -> None:
    values = Histogram((0.5,))
    values.observe(0.25)
    values.observe(2.0)
    text, kind = exposition(
        [
            counter("edl_steps_total", "Steps")(7),
            gauge("edl_workers", "Workers", "stage")(2, "active"),
            histogram("edl_stall_seconds", "Stalls", "kind")(values, "join"),
        ]
    )
    lines = text.decode().splitlines()
    assert kind.startswith("text/plain")
    assert "# HELP edl_steps_total Steps" in lines
    assert "# TYPE edl_steps_total counter" in lines
    assert "edl_steps_total 7.0" in lines
    assert 'edl_workers{stage="active"} 2.0' in lines
    assert 'edl_stall_seconds_bucket{kind="join",le="0.5"} 1.0' in lines
    assert 'edl_stall_seconds_bucket{kind="join",le="+Inf"} 2.0' in lines
    assert 'edl_stall_seconds_sum{kind="join"} 2.25' in lines
    assert any(line.startswith("process_cpu_seconds_total ") for line in lines)


def test_open_metrics_for_a_client_that_asks_for_it() -> None:
    samples = worker_samples(facts(WorkerProgress(step=7), StepTotals()))
    text, kind = exposition(samples, OPEN_METRICS)
    lines = text.decode().splitlines()
    assert kind.startswith("application/openmetrics-text")
    assert lines[-1] == "# EOF"
    assert "# TYPE edl_steps counter" in lines
    assert "# TYPE edl_build info" in lines
    assert 'edl_build_info{version="1.2"} 1.0' in lines
    assert 'edl_worker_info{edl_job="digits",host="a",worker="w3"} 1.0' in lines


@pytest.mark.parametrize("metric", WORKER_METRICS, ids=lambda one: one.name)
def test_names_follow_the_rules_of_prometheus(metric: Metric) -> None:
    suffixes = {MetricType.COUNTER: "_total", MetricType.INFO: "_info"}
    assert metric.name.startswith("edl_")
    for kind, suffix in suffixes.items():
        assert metric.name.endswith(suffix) == (metric.type is kind)
    assert not metric.help.endswith(".")
    assert metric.help[0].isupper() or metric.help[0].isdigit()
