"""`edl top`: the times of events, and the foot: why it shows nothing newer."""

from __future__ import annotations

from datetime import datetime

import pytest
from rich.console import Console

from edl.cli.common import trouble_words
from edl.cli.status import Lines, Screen, _clock
from edl.errors import CoordinationError, UnknownJob
from edl.status import TextLine


@pytest.mark.parametrize(
    ("connected", "away"),
    [(True, "cannot be read: not a Job"), (False, "ZooKeeper is away: not a Job")],
)
def test_only_a_lost_connection_is_called_one(connected: bool, away: str) -> None:
    assert trouble_words(connected, CoordinationError("not a Job")) == away


def test_why_nothing_newer_is_shown_is_said_until_there_is() -> None:
    """A read that fails leaves the last screen as it is; one that succeeds ends the reason."""
    answers: list[str | Exception] = ["step 1"]
    is_connected = True

    def read() -> Lines:
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return lambda _width, _height: [TextLine(found)]

    def shown() -> tuple[str, str]:
        line, foot = screen.text(Console(width=72, height=9)).plain.splitlines()
        return line, foot

    screen = Screen(read, lambda: is_connected)
    assert shown()[0] == "step 1"
    assert shown()[1].endswith("Ctrl-C leaves")
    for answers_now, why in (
        (False, "ZooKeeper is away: it is gone"),
        (True, "cannot be read: not a Job"),
        (True, "cannot be read: not a Job"),
    ):
        is_connected = answers_now
        answers.append(CoordinationError(why.partition(": ")[2]))
        screen.renew()
        assert shown()[0] == "step 1"
        assert shown()[1].endswith(f"s old: {why}")
    answers.append("step 9")
    screen.renew()
    assert shown()[0] == "step 9"
    assert shown()[1].endswith("Ctrl-C leaves")
    answers.append(UnknownJob("digits"))
    with pytest.raises(UnknownJob):  # a job that is removed does not come back
        screen.renew()


def test_an_event_of_another_day_has_its_date() -> None:
    now_s = datetime(2026, 11, 29, 0, 5).timestamp()
    assert _clock(now_s - 240, now_s) == "00:01:00"
    assert _clock(now_s - 600, now_s) == "11-28 23:55:00"
    assert _clock(datetime(2026, 10, 29, 0, 5).timestamp(), now_s) == "10-29 00:05:00"
