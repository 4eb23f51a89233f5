"""A worker is not left without its daemon."""

from __future__ import annotations

import time
from dataclasses import replace
from unittest.mock import Mock

import pytest

from edl.config import Config
from edl.daemon.daemon import Daemon
from edl.errors import WorkerEvicted
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
