"""A worker is not left without its daemon."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from unittest.mock import Mock

import pytest

from edl.config import Config
from edl.errors import UnknownJob, WorkerEvicted
from edl.job.daemon import Daemon
from edl.records import JobState
from edl.ring.ring import Ring
from edl.worker.shared_state import SharedState


def test_a_worker_whose_daemon_fails_leaves_the_ring_and_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = replace(Config(), job="digits", zookeeper="127.0.0.1:1", secret="0" * 64)
    shared, ring = SharedState(), Mock(spec=Ring)
    daemon = Daemon(config, shared, ring)
    monkeypatch.setattr(daemon, "_turn", Mock(side_effect=ZeroDivisionError("a bug")))
    daemon.wake.set()
    daemon._run()
    ring.break_.assert_called_once_with()
    with pytest.raises(WorkerEvicted, match=r"its daemon has failed: .*a bug"):
        shared.wait_for_generation(0, time.monotonic())
    assert "please report" in caplog.text


@pytest.mark.parametrize("over", [False, True])
def test_a_worker_whose_job_was_replaced_goes_on_only_if_the_job_was_over(
    monkeypatch: pytest.MonkeyPatch, over: bool
) -> None:
    config = replace(Config(), job="digits", zookeeper="127.0.0.1:1", secret="0" * 64)
    shared, ring = SharedState(), Mock(spec=Ring)
    daemon = Daemon(config, shared, ring)
    monkeypatch.setattr(daemon, "_turn", Mock(side_effect=UnknownJob("digits")))
    shared.job_is(JobState.FINISHED if over else JobState.RUNNING)
    daemon.wake.set()
    daemon._run()  # ends: this worker follows no other start of the job
    if over:  # its script may still evaluate, with the other members of its ring
        ring.break_.assert_not_called()
        shared.check()
    else:
        ring.break_.assert_called_once_with()
        with pytest.raises(WorkerEvicted, match="its job is gone"):
            shared.check()


def test_a_leader_whose_time_limit_ends_soon_decides_again_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = replace(Config(), job="digits", zookeeper="127.0.0.1:1", secret="0" * 64)
    daemon = Daemon(config, SharedState(), Mock(spec=Ring, membership=(0, ()), is_building=False))
    least_s, usual_s = daemon._limits.breaking_period_s, daemon._limits.period_s
    for due_s, waits_s in (
        (math.inf, usual_s),
        (0.125, 0.125),
        (0.0001, least_s),  # also while ZooKeeper is away then
        (math.inf, usual_s),
    ):
        monkeypatch.setattr(daemon._candidate, "turn", Mock(return_value=due_s))
        daemon._break_ring_of(frozenset())
        daemon._elect()
        assert daemon._period_s == waits_s
