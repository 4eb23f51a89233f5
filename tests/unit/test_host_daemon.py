"""What ends one job, or one turn, does not end the host."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from edl.cluster.host.daemon import HostDaemon
from edl.cluster.host_jobs import HostDecision


def test_a_job_that_no_process_can_have_is_told() -> None:
    failed: list[tuple[str, str, str, float]] = []

    def start(run: SimpleNamespace) -> None:
        raise ValueError("embedded null byte")

    def note(job: str, run: str, error: Exception, now_s: float) -> None:
        failed.append((job, run, str(error), now_s))

    agents = SimpleNamespace(start=start, failed_to_start=note)
    daemon = cast(HostDaemon, SimpleNamespace(_agents=agents))
    starts: Any = {"j": SimpleNamespace(run="r1")}
    HostDaemon._act(daemon, HostDecision((), ("j",), {}), starts, frozenset(), 5.0)
    assert failed == [("j", "r1", "embedded null byte", 5.0)]


class Daemon(SimpleNamespace):
    """Raises an error in its first turns; ``told``: so many turns later it is told to leave."""

    def __init__(self, failing: int, told: int | None = None) -> None:
        self.turns, self.failing, self.told = 0, failing, told
        self.waits: list[float] = []
        self.ended = False
        self._wake = SimpleNamespace(wait=self.waits.append)

    def _turn(self, now_s: float) -> float | None:
        self.turns += 1
        if self.turns <= self.failing:
            raise OSError(116, "Stale file handle")
        return None

    def _begins_to_leave(self, now_s: float) -> bool:
        return self.told is not None and self.turns >= self.told

    def _is_late(self, now_s: float) -> bool:
        return True

    def _end_all(self) -> None:
        self.ended = True


def test_an_error_in_a_turn_is_logged_once_and_the_next_turn_comes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    daemon = Daemon(failing=2)
    with caplog.at_level(logging.ERROR):
        HostDaemon._loop(cast(HostDaemon, daemon))
    assert (daemon.waits, daemon.ended) == ([1.0, 1.0], False)
    assert caplog.messages == ["the host could not do all of its work; it tries again"]


def test_a_host_that_fails_in_each_turn_leaves_in_time() -> None:
    daemon = Daemon(failing=1000, told=3)
    HostDaemon._loop(cast(HostDaemon, daemon))
    assert (daemon.turns, daemon.ended) == (3, True)
