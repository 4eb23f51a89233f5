"""What ends one job, or one turn, does not end the host."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from edl.core.cluster.host_jobs import HostDecision
from edl.scheduler.host.keeper import HostKeeper


def test_a_job_that_no_process_can_have_is_told() -> None:
    failed: list[tuple[str, str, str, float]] = []

    def start(run: SimpleNamespace) -> None:
        raise ValueError("embedded null byte")

    def note(job: str, run: str, error: Exception, now_s: float) -> None:
        failed.append((job, run, str(error), now_s))

    agents = SimpleNamespace(start=start, failed_to_start=note)
    keeper = cast(HostKeeper, SimpleNamespace(_agents=agents))
    starts: Any = {"j": SimpleNamespace(run="r1")}
    HostKeeper._act(keeper, HostDecision((), ("j",), {}), starts, frozenset(), 5.0)
    assert failed == [("j", "r1", "embedded null byte", 5.0)]


def test_an_error_in_a_turn_is_logged_and_the_next_turn_comes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    turns = iter([OSError(116, "Stale file handle"), None])

    def turn(now_s: float) -> float | None:
        if (found := next(turns)) is not None:
            raise found
        return None

    waits: list[float] = []
    keeper = cast(HostKeeper, SimpleNamespace(_turn=turn, _wake=SimpleNamespace(wait=waits.append)))
    with caplog.at_level(logging.ERROR):
        HostKeeper._loop(keeper)
    assert waits == [1.0]
    assert "the host could not do all of its work; it tries again" in caplog.text
