"""What the page of a job shows: header, workers, speed, ledger, sizes, events."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import msgspec
import pytest
from shown_job import CREATED, curve, learned, snapshot, story, training

from edl.dashboard.job_watcher import LEARNED_S
from edl.dashboard.report import static_files
from edl.dashboard.view import charts
from edl.dashboard.view.charts import (
    MAX_ROWS,
    SpeedSample,
    ThroughputHistory,
    scaling_curve,
    step_parts,
    worker_table,
)
from edl.dashboard.view.events import (
    EventBuffer,
    EventChoice,
    EventView,
    event_view,
    named_commands,
)
from edl.dashboard.view.page import (
    JobObservation,
    JobTrace,
    LeaderReport,
    ReportAge,
    away_in_words,
    job_header,
    page_sections,
    report_age,
    unreadable_in_words,
)
from edl.event_text import EXPLANATIONS
from edl.events import Event, EventKind, SlotDisabledDetails
from edl.job.policy_loop import KEEP_S
from edl.job.snapshot import Snapshot
from edl.policy.scaling_profile import ScalingProfile
from edl.policy.stragglers import Times
from edl.records import JobState, Stage
from edl.status import job_status
from edl.worker.loader_steps import EVERY, MEDIAN_OF_STEPS

NOW = CREATED + 600.0
FRESH = ReportAge(0.5)


def header_of(found: Snapshot, report: ReportAge = FRESH) -> tuple[str, str]:
    trace = JobTrace().with_events(story(), NOW)
    header = job_header(job_status(found, "zk"), trace.timeline, report, NOW)
    return header.words, header.tone


def test_the_state_in_words() -> None:
    assert header_of(snapshot()) == ("training", "good")
    joins = snapshot((0, 1, 2, 3), stages={3: Stage.READY})
    assert header_of(joins) == ("training; 1 worker joins", "good")
    leaves = snapshot((0, 1, 2), stages={2: Stage.LEAVING})
    assert header_of(leaves) == ("training; 1 worker leaves", "good")
    assert header_of(snapshot(status=training(quiet_s=4.0))) == ("no step for 4 s", "warning")
    assert header_of(snapshot(status=training(quiet_s=40.0))) == ("no step for 40 s", "bad")
    starts = snapshot((0, 1), stages={0: Stage.PREPARING, 1: Stage.PREPARING})
    assert header_of(starts) == ("starting: 2 workers prepare", "warning")
    begins = replace(snapshot((0, 1)), members=starts.members)
    assert header_of(begins) == ("no worker trains; 2 workers prepare", "bad")
    assert header_of(snapshot(state=JobState.FINISHED)) == ("finished", "over")
    assert header_of(snapshot(state=JobState.FAILED)) == ("failed", "bad")
    few = replace(snapshot((0,)), job=snapshot().job)
    spec = replace(few.job.spec, sizes=replace(few.job.spec.sizes, min_np=2))
    few = replace(few, job=replace(few.job, spec=spec))
    assert header_of(few) == ("paused: 1 worker is left, it takes 2", "bad")


def test_an_old_report_of_the_leader_is_no_sign_of_life() -> None:
    unknown = ("the leader has not reported for 60 seconds", "warning")
    old = ReportAge(60.0)
    assert header_of(snapshot(), old) == unknown
    assert header_of(snapshot(status=training(step=0)), old) == unknown
    header = job_header(job_status(snapshot(), "zk"), JobTrace().timeline, old, NOW)
    assert (header.samples_per_s, header.eta_s, header.standing_s) == (None, None, 0.0)
    assert header_of(snapshot(status=training(at_s=0.0)), ReportAge(None)) == ("training", "good")


def test_a_report_ages_by_the_clock_of_its_reader_alone() -> None:
    found = snapshot()
    unseen = LeaderReport().at(0.0, NOW, 50.0)
    assert report_age(found, unseen, 60.0) == ReportAge(None)
    for late_s in (-1000.0, 0.0, 1000.0):  # the leader's clock, relative to the reader's
        first = unseen.at(NOW + late_s, NOW, 60.0)
        assert report_age(found, first, 60.0).age_s == max(0.0, -late_s)
        same = first.at(NOW + late_s, NOW + 7.0, 67.0)
        assert same == first
        new = same.at(NOW + late_s + 9.0, NOW + 9.0, 69.0)
        assert report_age(found, new, 69.0) == ReportAge(0.0)
        assert report_age(found, new, 84.5).is_old
        back = new.at(NOW - 5000.0, NOW + 10.0, 85.0)  # that of the next leader
        assert report_age(found, back, 85.0).is_fresh


def test_a_job_that_reports_seldom_may_be_silent_for_longer() -> None:
    settings = replace(snapshot().job.spec.settings, status_period_s=20.0)
    spec = replace(snapshot().job.spec, settings=settings)
    found = replace(snapshot(), job=replace(snapshot().job, spec=spec))
    newest = LeaderReport().at(NOW, NOW, 0.0)
    assert [report_age(found, newest, at).is_fresh for at in (16.0, 60.0, 61.0)] == [
        True,
        True,
        False,
    ]


def test_the_time_left_is_said_while_the_job_trains() -> None:
    status = job_status(snapshot(), "zk")
    timeline = JobTrace().with_events(story(), NOW).timeline
    assert job_header(status, timeline, FRESH, NOW).eta_s == pytest.approx(571.4)
    stands = job_status(snapshot(status=training(quiet_s=9.0)), "zk")
    header = job_header(stands, timeline, FRESH, NOW)
    assert (header.eta_s, header.samples_per_s, header.standing_s) == (None, 0.0, 9.0)
    assert job_header(replace(status, left=None), timeline, FRESH, NOW).eta_s is None


def test_zookeeper_that_is_away() -> None:
    assert away_in_words("a:2181", 100.0, 107.2) == (
        "ZooKeeper at a:2181 has not answered for 7 s. The page asks it again each second, and "
        "shows what was known before."
    )
    assert "has not answered for 1 h 2 min. The" in away_in_words("a:2181", 100.0, 3821.0)
    assert "shows what was known 7 s ago" in unreadable_in_words("why", 100.0, 107.2)


def test_workers_beside_their_median() -> None:
    table = worker_table(job_status(snapshot(), "zk"), learned().times)
    slow = table.rows[1]
    assert (slow.worker, slow.wait_s, slow.reduce_s) == ("w1", 0.0, pytest.approx(0.02))
    assert slow.speed == pytest.approx(0.16 / 0.252)
    assert (slow.is_slow, slow.note) == (True, "slow: 0.63 of the usual speed")
    assert not table.rows[0].is_slow
    assert table.rows[0].wait_s == pytest.approx(0.1)
    assert table.step_s == pytest.approx(0.272)
    assert (table.own_s, table.rows[0].leads, table.hosts) == (
        pytest.approx(0.16),
        True,
        {"node0": 2, "node1": 1},
    )
    gone = worker_table(job_status(snapshot((0,)), "zk"), learned((7, 8)).times)
    assert (gone.timed, gone.own_s, gone.rows[0].compute_s) == (0, None, None)


def test_the_worker_that_the_others_wait_for_is_marked_before_its_times_are_known() -> None:
    same = tuple(replace(one, compute_s=0.1, data_s=0.0) for one in learned().times)
    now = replace(job_status(snapshot(), "zk"), slowest="w1")
    for times in (same, ()):
        rows = worker_table(now, times).rows
        assert [row.is_slow for row in rows] == [False, True, False]
        assert rows[1].note == "slow: the others wait for it"


def test_the_page_says_how_old_the_times_of_the_workers_are() -> None:
    texts = static_files()
    view, words = (texts[name].content.decode() for name in ("view.mjs", "words.mjs"))
    said = f"Means over {EVERY} steps, up to {KEEP_S + LEARNED_S:.0f} s older than the header"
    assert said in view
    assert f"the median of the last {MEDIAN_OF_STEPS} steps" in words, "a step time of the header"


def test_of_a_thousand_workers_the_unusual_ones_are_shown() -> None:
    many = snapshot(tuple(range(1000)), stages={777: Stage.PREPARING})
    times = [Times(n, "node0", 32.0, 0.1 + 0.001 * (n - 900), 0.0, 0.01) for n in range(980, 1000)]
    table = worker_table(job_status(many, "zk"), times)
    shown = [row.worker for row in table.rows]
    assert (table.total, len(shown)) == (1000, MAX_ROWS)
    assert {"w777", *(f"w{n}" for n in range(980, 1000))} <= set(shown)
    assert len(msgspec.json.encode(table)) < 20_000


def test_the_parts_of_a_step() -> None:
    parts = step_parts(learned().times)
    assert parts is not None
    longest = max(one.own_s + one.reduce_s for one in learned().times)
    assert parts.compute_s + parts.data_s + parts.reduce_s + parts.wait_s == pytest.approx(longest)
    assert step_parts(()) is None


def test_a_week_of_speed_stays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charts, "MAX_PERIODS", 10)
    found = ThroughputHistory()
    for second in range(1000):
        found = found.with_sample(SpeedSample(float(second), 100.0 if second < 512 else 200.0, 2))
    assert len(found.samples) <= 10
    assert (found.period_s, found.samples[0].samples_per_s) == (128.0, 100.0)
    assert found.samples[-1].samples_per_s == 200.0
    assert sum(one.count for one in found.samples) == 1000


def test_no_speed_is_lost_where_clocks_differ() -> None:
    """The leader's clock is ahead by a minute when the ring changes, then ours is set back."""
    (joined,) = [one for one in story() if one.generation == 4 and one.kind is EventKind.GENERATION]
    trace = JobTrace().with_events(story()[:5], NOW)
    for second in range(3):
        reading = JobObservation(snapshot(), learned(), None, "zk", NOW + second, FRESH)
        trace = trace.with_reading(reading)
    trace = trace.with_events([replace(joined, time=NOW + 60.0)], NOW + 3.0)
    times = [one.at_s - NOW for one in trace.speed.samples]
    assert times == [CREATED + 98.0 - NOW, 0.0, 1.0, 2.0, 3.0]
    for second in (4, 5, 2):
        reading = JobObservation(snapshot(), learned(), None, "zk", NOW + second, FRESH)
        trace = trace.with_reading(reading)
    assert [one.at_s - NOW for one in trace.speed.samples[-3:]] == [3.0, 4.0, 5.0]
    assert [one.count for one in trace.speed.samples] == [1, 1, 1, 1, 1, 1, 2]


def test_speed_is_known_from_events_before_the_page_was_opened() -> None:
    trace = JobTrace().with_events(story(), NOW)
    assert [(one.samples_per_s, one.np) for one in trace.speed.samples] == [
        (290.0, 2),
        (420.0, 3),
        (285.0, 2),
        (430.0, 3),
    ]


def test_what_another_size_would_bring() -> None:
    found = scaling_curve(snapshot(), learned(), curve())
    assert [one.np for one in found.measured] == [1, 2, 3]
    assert [(one.np, one.samples_per_s) for one in found.profiled] == [(1, 158.0), (4, 520.0)]
    assert [one.np for one in found.fitted] == [1, 2, 3, 4, 5, 6]
    now = next(one for one in found.forecasts if one.np == 3)
    more = next(one for one in found.forecasts if one.np == 4)
    fewer = next(one for one in found.forecasts if one.np == 2)
    assert (now.gain, now.pays_after_s, now.eta_s) == (1.0, None, pytest.approx(571.4))
    assert more.pays_after_s == pytest.approx(420 * 0.9 / (more.samples_per_s - 420), rel=0.01)
    assert (fewer.measured, fewer.pays_after_s, fewer.gain) == (True, None, pytest.approx(0.6952))
    assert found.void == ""
    faster = scaling_curve(snapshot(), learned(), curve(), 600.0)
    times = {one.np: one.eta_s for one in faster.forecasts}
    shorter = 420.0 / 600.0
    assert times[3] == pytest.approx(571.4 * shorter, rel=1e-3), (
        "as in the header, which has the present speed"
    )
    assert fewer.gain is not None
    assert times[2] == pytest.approx(0.9 + 571.4 * shorter / fewer.gain, rel=0.001)
    assert [one.samples_per_s for one in faster.forecasts] == [
        one.samples_per_s for one in found.forecasts
    ], "these are means"
    nothing = scaling_curve(snapshot(), ScalingProfile(), None)
    assert (nothing.measured, nothing.fitted, nothing.forecasts) == ((), (), ())


@pytest.mark.parametrize(
    ("rate", "slowest", "is_void"),
    [
        (121.0, "w1", True),
        (121.0, None, True),
        (300.0, None, False),
        (300.0, "w1", True),
        (410.0, "w1", False),
        (700.0, None, True),
        (0.0, None, False),
        (None, "w1", False),
    ],
)
def test_no_size_is_advised_while_the_present_speed_is_far_from_its_mean(
    rate: float | None, slowest: str | None, is_void: bool
) -> None:
    """Else the table of a job that a slow worker holds up says that a drain costs speed."""
    now = snapshot(status=training(slowest=slowest))
    found = scaling_curve(now, learned(), curve(), rate)
    others = [one for one in found.forecasts if one.np != 3]
    told = [(one.gain is None, one.eta_s is None) for one in others]
    assert set(told) == {(is_void, is_void)}
    assert not (is_void and any(one.pays_after_s for one in others))
    assert next(one.eta_s for one in found.forecasts if one.np == 3) is not None
    assert bool(found.void) == is_void


def test_why_no_size_is_advised_is_said() -> None:
    now = snapshot(status=training(slowest="w1"))
    assert scaling_curve(now, learned(), curve(), 121.0).void == (
        "the job makes 121 samples/s, while all wait for w1, and 420 is the mean of 3 workers"
    )


def test_events_are_chosen_by_tone_and_words() -> None:
    found: EventBuffer[EventView] = EventBuffer()
    found.add(event_view(number, one) for number, one in enumerate(story()))
    assert found.counts() == {"bad": 1, "change": 12, "plain": 1, "warning": 2}
    bad = found.chosen(EventChoice(frozenset({"bad"})))
    assert [one.kind for one in bad] == ["worker_failed"]
    assert "edl logs JOB" in bad[0].advice
    assert found.chosen(EventChoice(text="switch"))[0].advice == ""

    assert [one.number for one in found.chosen(EventChoice(text="W2 SIGKILL"))] == [8]
    assert [one.number for one in found.chosen(EventChoice(before=3, limit=2))] == [2, 1]
    assert found.chosen(EventChoice(text="switch"))[0].cost.startswith("stall w0 80 ms")


def test_the_whole_page_is_json() -> None:
    reading = JobObservation(snapshot(), learned(), curve(), "zk", NOW, FRESH)
    trace = JobTrace().with_events(story(), NOW).with_reading(reading)
    sections = json.loads(msgspec.json.encode(page_sections(reading, trace)))
    names = "header incidents learning ledger scaling speed timeline workers"
    assert sorted(sections) == names.split()
    assert sections["speed"]["samples_per_s"][-1] == 420.0
    assert sections["ledger"]["work"] == {
        "saved": 1,
        "saved_at_s": CREATED + 150.0,
        "capture_s": 0.012,
        "bytes": 5_200_000,
        "resumed": 0,
        "lost_steps": 0,
    }
    del sections["ledger"]["work"]
    assert sections["ledger"] == {  # and no claim of which nothing here can tell
        "epoch": 3,
        "done": 36_000,
        "total": 60_000,
        "untrained": 0,
        "left": 240_000.0,
        "saved_step": 400,
    }


def test_the_commands_of_an_advice_name_the_job_and_the_worker() -> None:
    failed = next(one for one in story() if one.kind is EventKind.WORKER_FAILED)
    assert "`edl logs digits w2`" in event_view(1, failed, "digits").advice
    disabled = Event(0.0, 1, 1, "invented", SlotDisabledDetails("a", 0))
    assert "(`edl logs digits`)" in event_view(2, disabled, "digits").advice
    for kind, known in EXPLANATIONS.items():
        assert "WORKER" not in named_commands(known.advice, failed, "digits"), kind
        assert not re.search(r"\bJOB\b", named_commands(known.advice, disabled, "digits")), kind


def test_no_line_is_drawn_through_a_time_that_nobody_observed() -> None:
    history = ThroughputHistory()
    for at_s in (1.0, 2.0, 3.0, 60.0, 61.0):
        history = history.with_sample(SpeedSample(at_s, 10.0, 2))
    columns = history.columns()
    assert columns["at_s"] == [1.0, 2.0, 3.0, 4.0, 60.0, 61.0]
    assert columns["samples_per_s"] == [10.0, 10.0, 10.0, None, 10.0, 10.0]
    assert {len(column) for column in columns.values()} == {6}
