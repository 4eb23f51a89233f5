"""Who waits for a worker whose script has ended."""

from __future__ import annotations

from typing import Any

import pytest

from edl.job.script import waits_for_ended
from edl.job.stall import FOR_COLLECTIVE, FOR_GRADIENTS, FOR_NUMBERS, FOR_RECORDS, IN_USER_CODE

RING, STEP, EXCHANGES = 6, 1729, 3  # of the worker whose script has ended


def report(
    doing: str, step: int = STEP, exchanges: int = EXCHANGES, ring: int = RING, updates: int = 0
) -> Any:
    inner = {"generation": ring, "exchanges": exchanges, "updates": updates}
    return {"step": step, "ring": inner, "activity": {"doing": doing}}


@pytest.mark.parametrize(
    ("said", "waits_for"),
    [
        (report(FOR_GRADIENTS, STEP), FOR_GRADIENTS),
        (report(FOR_GRADIENTS, STEP - 1), ""),  # of the last step
        (report(FOR_NUMBERS, exchanges=EXCHANGES + 1), FOR_NUMBERS),
        (report(FOR_NUMBERS, exchanges=EXCHANGES), ""),  # all have sent theirs
        (report(FOR_NUMBERS, exchanges=EXCHANGES + 1, ring=RING + 1), ""),
        (report(FOR_RECORDS), ""),
        (report(IN_USER_CODE), ""),
        ({}, ""),  # it has not answered
    ],
)
def test_it_is_waited_for_in_what_it_has_not_completed(said: Any, waits_for: str) -> None:
    assert waits_for_ended(said, RING, STEP, EXCHANGES) == waits_for


def test_an_elastic_script_is_waited_for_once_the_others_have_made_as_many_updates() -> None:
    for made, waits_for in ((599, ""), (600, FOR_COLLECTIVE), (601, FOR_COLLECTIVE)):
        said = report(FOR_COLLECTIVE, updates=made)
        assert waits_for_ended(said, RING, STEP, EXCHANGES, 600) == waits_for
        said = report(FOR_GRADIENTS, updates=made)
        assert waits_for_ended(said, RING, STEP, EXCHANGES, 600) == waits_for
