"""The foot of `edl top`: why it shows nothing newer."""

from __future__ import annotations

import pytest

from edl.cli.top import Lines, Screen, _renew
from edl.core.job_screen import TextLine
from edl.errors import CoordinationError


@pytest.mark.parametrize(
    ("connected", "away"),
    [(True, "cannot be read: not a Job"), (False, "ZooKeeper is away: not a Job")],
)
def test_only_a_lost_connection_is_called_one(connected: bool, away: str) -> None:
    def read() -> Lines:
        raise CoordinationError("not a Job")

    screen = Screen()
    _renew(screen, read, lambda: connected)
    assert screen.away == away
    _renew(screen, lambda: lambda _w, _h: [TextLine("new")], lambda: connected)
    assert screen.away == ""
