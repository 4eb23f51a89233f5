"""A process beside a controller is started again, also if it cannot be started at first."""

from __future__ import annotations

import errno
import subprocess
import threading
from typing import Any

import pytest

from edl.cluster.controller import policy_runner
from edl.cluster.controller.policy_runner import BackgroundProcess


def test_a_start_that_fails_is_told_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    started, ended = threading.Event(), threading.Event()
    starts = iter([BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), None])

    class Process:
        def __init__(self, *_: Any, **__: Any) -> None:
            if (error := next(starts)) is not None:
                raise error
            started.set()

        def wait(self, timeout: float | None = None) -> int:
            assert ended.wait(30.0)
            return 0

        def terminate(self) -> None:
            ended.set()

    monkeypatch.setattr(subprocess, "Popen", Process)
    monkeypatch.setattr(policy_runner, "FIRST_PAUSE_S", 0.0)
    one = BackgroundProcess(["host"], "edl host", said.append)
    one.start()
    assert started.wait(30.0)
    one.end()
    assert said[0] == (
        "edl host cannot be started: [Errno 11] Resource temporarily unavailable; it is started "
        "again in 0 s"
    )
