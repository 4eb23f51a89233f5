"""What metrics say, and that it is what the records of status and events say."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from made import make_job

from edl.dashboard.view.timeline import GenerationTimeline
from edl.event_text import CHANGE_KINDS
from edl.events import Details, Event, EventKind, GenerationDetails, SwitchDetails
from edl.http.exposition import exposition
from edl.job.snapshot import Snapshot
from edl.metric import BUILD_INFO, Histogram, Metric, MetricType, Sample, counter, gauge, histogram
from edl.metrics import (
    JOB_METRICS,
    UNKNOWN,
    WORKER_METRICS,
    EventCounts,
    job_samples,
    scrape_targets,
    worker_samples,
)
from edl.records import (
    Generation,
    Host,
    JobState,
    Member,
    RingMember,
    Stage,
    StepTotals,
    SwitchParts,
    TrainingStatus,
    WorkerProgress,
)
from edl.status import job_status
from edl.testing.counting import Counting
from edl.testing.loopback import LoopbackJob
from edl.worker.loader_steps import StepTimer

OPEN_METRICS = "application/openmetrics-text;version=1.0.0"


def value(samples: list[Sample], name: str, *labels: str) -> float:
    [found] = [one for one in samples if one.metric.name == name and one.labels == labels]
    assert not isinstance(found.value, Histogram)
    return found.value


def samples_of(progress: WorkerProgress, totals: StepTotals, now_s: float = 0.0) -> list[Sample]:
    labels = "digits", "a", "w3"
    return worker_samples("1.2", labels, progress, totals, now_s, leads=True, connected=True)


def test_a_histogram_counts_a_value_at_a_limit_below_it() -> None:
    values = Histogram((0.1, 1.0))
    for one in (0.1, 0.5, 1.0, 7.0):
        values.observe(one)
    assert (values.counts, values.sum) == ([1, 2, 1], pytest.approx(8.6))


def test_a_worker_tells_its_progress() -> None:
    progress = WorkerProgress(step=7, generation=2, size=3, samples_total=99, updated_at=5.0)
    totals = StepTotals()
    totals.steps = 4
    samples = samples_of(progress, totals, now_s=6.5)
    assert value(samples, "edl_step") == 7
    assert value(samples, "edl_steps_total") == 4  # it joined after the third
    assert value(samples, "edl_samples_total") == 99
    assert value(samples, "edl_worker_generation") == 2
    assert value(samples, "edl_worker_last_step_age_seconds") == 1.5
    assert value(samples, "edl_leader") == 1
    assert value(samples, "edl_worker_info", "digits", "a", "w3") == 1
    assert {one.metric for one in samples} == set(WORKER_METRICS)


def test_a_worker_counts_its_steps_since_it_joined() -> None:
    """So a worker that joins a job that has trained for long makes no jump in the rate."""
    job = LoopbackJob(Counting(60), np=2, max_np=3)
    job.after_step(3, lambda job: job.scale({"a": 3}))
    job.run()
    old, new = job.workers[0], job.workers[2]
    joined_after = new.worker.loader.timer.entered_at
    assert joined_after >= 3
    assert old.shared.step_totals.steps == old.shared.progress.step
    assert new.shared.step_totals.steps == new.shared.progress.step - joined_after > 0


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
    samples = samples_of(WorkerProgress(), StepTotals())
    text, kind = exposition(samples, OPEN_METRICS)
    lines = text.decode().splitlines()
    assert kind.startswith("application/openmetrics-text")
    assert lines[-1] == "# EOF"
    assert "# TYPE edl_steps counter" in lines
    assert "# TYPE edl_build info" in lines
    assert 'edl_build_info{version="1.2"} 1.0' in lines
    assert 'edl_worker_info{edl_job="digits",host="a",worker="w3"} 1.0' in lines


METRICS = {one.name: one for one in (*WORKER_METRICS, *JOB_METRICS)}  # some are of both


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS.keys())
def test_names_follow_the_rules_of_prometheus(metric: Metric) -> None:
    suffixes = {MetricType.COUNTER: "_total", MetricType.INFO: "_info"}
    assert metric.name.startswith("edl_")
    for kind, suffix in suffixes.items():
        assert metric.name.endswith(suffix) == (metric.type is kind)
    assert not metric.help.endswith(".")
    assert metric.help[0].isupper() or metric.help[0].isdigit()


# --- of a job


def event(details: Details, generation: int = 2) -> Event:
    return Event(0.0, generation, 72, "why", details)


def change(
    joined: tuple[str, ...] = (), left: tuple[str, ...] = (), repair: bool = False, **more: Any
) -> GenerationDetails:
    return GenerationDetails(1, ("w0", "w1"), joined, left, repair, **more)


@pytest.mark.parametrize(
    ("generation", "details", "kind"),
    [
        (1, change(joined=("w0", "w1"), repair=True), "start"),
        (2, change(joined=("w2",)), "join"),
        (2, change(left=("w2",)), "leave"),
        (2, change(joined=("w3",), left=("w2",)), "migrate"),
        (2, change(left=("w2",), repair=True), "crash"),
        (2, change(repair=True, failures={"w1": "the ring broke"}), "crash"),
        (2, change(joined=("w2", "w3"), repair=True), "crash"),  # all workers died
        (2, change(), "rebuild"),
    ],
)
def test_a_new_ring_counts_by_what_led_to_it(
    generation: int, details: GenerationDetails, kind: str
) -> None:
    """In the metrics and on the dashboard's time line, whatever it has seen before."""
    new, counts = event(details, generation), EventCounts()
    counts.add(new)
    samples = counts.samples()
    assert value(samples, "edl_membership_changes_total", kind) == 1
    assert sum(value(samples, "edl_membership_changes_total", one) for one in CHANGE_KINDS) == 1
    assert value(samples, "edl_events_total", "generation") == 1
    assert [band.cause for band in GenerationTimeline().with_event(new).bands] == [kind]


def stalls(counts: EventCounts) -> dict[str, tuple[int, float]]:
    found = {}
    for one in counts.samples():
        if one.metric.name == "edl_stall_seconds" and isinstance(one.value, Histogram):
            found[one.labels[0]] = sum(one.value.counts), one.value.sum
    return {kind: seen for kind, seen in found.items() if seen[0]}


def test_a_stall_is_that_of_the_old_worker_that_waited_longest() -> None:
    """As `edl run` says it; a newcomer's time is its own."""
    counts = EventCounts()
    counts.add(event(change(joined=("w2",)), 3))
    old = SwitchParts("old", wait_s=0.05, init_s=0.125, stall_s=0.2)
    workers = {"w0": SwitchParts(stall_s=0.1), "w1": old, "w2": SwitchParts("new", stall_s=9.0)}
    counts.add(event(SwitchDetails(3, workers), 3))
    samples = counts.samples()
    assert stalls(counts) == {"join": (1, 0.2)}
    assert value(samples, "edl_stall_part_seconds_total", "join", "init") == 0.125


def test_a_stall_whose_change_is_not_in_the_log_is_of_an_unknown_kind() -> None:
    """The log keeps the newest events only."""
    counts = EventCounts()
    counts.add(event(SwitchDetails(2, {"w0": SwitchParts(stall_s=1.0)})))
    assert stalls(counts) == {UNKNOWN: (1, 1.0)}


def test_the_first_ring_held_nobody_up() -> None:
    counts = EventCounts()
    counts.add(event(SwitchDetails(1, {"w0": SwitchParts("new", stall_s=1.0)})))
    assert stalls(counts) == {}


def test_all_counters_are_there_before_they_count() -> None:
    """Prometheus' increase() and rate() do not see the first value of a series."""
    samples = EventCounts().samples()
    named = {(one.metric.name, *one.labels): one.value for one in samples}
    for kind in EventKind:
        assert named["edl_events_total", kind] == 0
    for kind in ("join", "leave", "migrate", "crash", "rebuild", UNKNOWN):
        assert isinstance(named["edl_stall_seconds", kind], Histogram)
        for part in ("detect", "wait", "shutdown", "init", "broadcast", "first_step"):
            assert named["edl_stall_part_seconds_total", kind, part] == 0


def member(worker: int, stage: Stage = Stage.ACTIVE) -> Member:
    return Member(worker, "a", worker, "10.0.0.5", 4000 + worker, 100 + worker, "t", stage=stage)


RING = Generation(
    number=4,
    term=1,
    members=(RingMember(0, "a", 0, "10.0.0.5", 4000), RingMember(1, "a", 1, "10.0.0.5", 4001)),
    state_source=0,
    joined=(),
    left=(2,),
    reason="w2 left",
)
STATUS = TrainingStatus(
    step=9, epoch_done=30, epoch_total=120, samples_per_s=8.5, updated_at_s=100.0, quiet_s=2.0
)
HOSTS = (Host("a", 3, "10.0.0.5", metrics_port=9400), Host("b", 1, "10.0.0.6"))
NOW = Snapshot(
    make_job(),
    HOSTS,
    (member(0), member(1), member(2, Stage.PREPARING)),
    generation=RING,
    status=STATUS,
)
FULL = replace(
    job_status(NOW, "zk"),
    max_np=4,
    left=7.0,
    global_batch=64,
    noise_scale=128.0,
    slowest="w1",
    slowest_s=0.5,
    others_s=0.25,
)


def test_a_job_tells_what_its_status_says() -> None:
    status = job_status(NOW, "zk:2181")
    samples = job_samples(status, EventCounts(), True)
    assert value(samples, "edl_job_info", status.job) == 1
    assert value(samples, "edl_job_state", "running") == 1
    assert value(samples, "edl_job_state", "failed") == 0
    assert value(samples, "edl_job_step") == status.step == 9
    assert value(samples, "edl_ring_workers") == status.world_size == 2
    assert value(samples, "edl_samples_per_second") == status.samples_per_s == 8.5
    assert value(samples, "edl_epoch_progress_ratio") == 0.25
    assert value(samples, "edl_last_step_timestamp_seconds") == 98.0
    assert value(samples, "edl_slots") == 4
    stages = Counter(str(one.stage) for one in status.members)
    for stage, count in stages.items():
        assert value(samples, "edl_workers", stage) == count


def test_what_may_fall_is_no_counter() -> None:
    """A leader reports a lower step than before after a return to a checkpoint."""
    status = replace(job_status(NOW, "zk"), untrained=3)
    samples = job_samples(status, EventCounts(), True)
    assert not [one for one in samples if one.metric.type is MetricType.COUNTER and one.value]


def test_while_zookeeper_is_away_no_old_report_is_given_as_new() -> None:
    """The records keep their values, for nobody can write others; events were counted here."""
    counts = EventCounts()
    counts.add(event(change(joined=("w2",))))
    status = replace(FULL, state=JobState.RUNNING)
    samples = job_samples(status, counts, False)
    with_it = {one.metric.name for one in job_samples(status, counts, True)}
    assert with_it - {one.metric.name for one in samples} == {
        *("edl_workers", "edl_slots", "edl_has_leader"),
        *("edl_job_step", "edl_epoch", "edl_epoch_progress_ratio", "edl_remaining_samples"),
        *("edl_untrained_samples", "edl_samples_per_second", "edl_last_step_timestamp_seconds"),
        *("edl_batch_size", "edl_gradient_noise_scale", "edl_straggler_ratio"),
    }
    assert value(samples, "edl_zookeeper_connected") == 0
    assert value(samples, "edl_ring_workers") == 2
    assert value(samples, "edl_job_state", "running") == 1
    assert value(samples, "edl_membership_changes_total", "join") == 1


def test_what_nobody_knows_is_left_out() -> None:
    """Rather than being 0, which would be wrong."""
    names = {one.metric.name for one in job_samples(job_status(NOW, "zk"), EventCounts(), True)}
    assert not names & {
        *("edl_remaining_samples", "edl_batch_size", "edl_gradient_noise_scale"),
        "edl_straggler_ratio",
    }


def test_each_metric_of_a_job_can_have_a_value() -> None:
    """And no metric is given that is not declared."""
    counts = EventCounts()
    counts.add(event(change(joined=("w2",))))
    counts.add(event(SwitchDetails(1, {"w0": SwitchParts(stall_s=1.0)})))
    samples = job_samples(FULL, counts, True)
    assert {one.metric for one in samples} | {BUILD_INFO} == set(JOB_METRICS)
    assert value(samples, "edl_straggler_ratio", "w1") == 2.0
    exposition(samples, OPEN_METRICS)


def test_prometheus_finds_agents_with_a_port_and_all_workers() -> None:
    found = scrape_targets(NOW)
    assert found[0] == {
        "targets": ["10.0.0.5:9400"],
        "labels": {"edl_job": NOW.job.name, "host": "a"},
    }
    assert [one["labels"].get("worker") for one in found] == [None, "w0", "w1", "w2"]
    first = NOW.members[0]
    assert found[1]["targets"] == [f"{first.address}:{first.port}"]
    assert found[1]["labels"]["host"] == first.host
