"""`edl top`: the times of events, and the foot: why it shows nothing newer."""

from __future__ import annotations

from datetime import datetime

import pytest

from edl.cli.common import trouble_words
from edl.cli.status import _clock
from edl.errors import CoordinationError


@pytest.mark.parametrize(
    ("connected", "away"),
    [(True, "cannot be read: not a Job"), (False, "ZooKeeper is away: not a Job")],
)
def test_only_a_lost_connection_is_called_one(connected: bool, away: str) -> None:
    assert trouble_words(connected, CoordinationError("not a Job")) == away


def test_an_event_of_another_day_has_its_date() -> None:
    now_s = datetime(2026, 11, 29, 0, 5).timestamp()
    assert _clock(now_s - 240, now_s) == "00:01:00"
    assert _clock(now_s - 600, now_s) == "11-28 23:55:00"
    assert _clock(datetime(2026, 10, 29, 0, 5).timestamp(), now_s) == "10-29 00:05:00"
