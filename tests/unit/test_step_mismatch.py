"""Who leaves when the rows of one table show workers at different points of the script."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edl.step.record import PAYLOAD_BYTES, StepRecord, StepRecords, Stop
from edl.step.state_check import APART, Mismatch, find_mismatch, why_mismatch

ROW = StepRecord(1, 40, 0, 2, 8, 0, 0, 1, 0)
MEAN: dict[str, Any] = {"exchange": 7 + APART, "site": 70}
GATHER: dict[str, Any] = {"exchange": 8, "site": 80}
NEW: dict[str, Any] = {"joined": 31, "inside": 1}
AT_EPOCH: dict[str, Any] = {"joined": 31}
OVER: dict[str, Any] = {"stop": Stop.ENDED}


def rows(*fields: dict[str, Any]) -> StepRecords:
    return StepRecords.of([replace(ROW, worker=at, **each) for at, each in enumerate(fields)])


@pytest.mark.parametrize(
    ("table", "found"),
    [
        ([{}, {}, NEW], None),
        ([MEAN, MEAN, MEAN | NEW], None),
        ([{}, {}, MEAN | NEW], Mismatch((2,), back=True)),
        ([MEAN, MEAN, NEW], Mismatch((2,), back=True)),
        ([MEAN, MEAN, GATHER | NEW], Mismatch((2,), back=True)),
        # A second time it stays, and exchanges apart.
        ([{}, {}, MEAN | AT_EPOCH], Mismatch(apart=True)),
        ([MEAN, MEAN, AT_EPOCH], Mismatch(apart=True)),
        ([MEAN, MEAN, AT_EPOCH | {"epoch": 3}], Mismatch(apart=True)),  # at the next one's start
        ([MEAN, MEAN, AT_EPOCH | OVER], Mismatch(apart=True)),
        ([OVER, OVER, MEAN | AT_EPOCH], Mismatch(apart=True)),
        ([MEAN, MEAN, AT_EPOCH | {"epoch": 4}], Mismatch((2,))),
        ([MEAN, MEAN, GATHER | AT_EPOCH], Mismatch(apart=True)),  # then all gather
        ([{}, {}, GATHER | AT_EPOCH], Mismatch((2,))),
        ([MEAN, AT_EPOCH, NEW], Mismatch((2,), back=True)),  # one of them may join again
        ([{}, MEAN], Mismatch()),  # the script is wrong
        ([{}, MEAN, NEW], Mismatch()),
        ([NEW, MEAN | {"joined": 12, "inside": 1}], Mismatch((0,), back=True)),  # the later one
        ([{"epoch": 3}, {"epoch": 3}, NEW], Mismatch((2,), back=True)),  # a `break` by its count
        ([OVER, OVER, NEW], Mismatch((2,), over=True)),
        ([OVER, OVER, MEAN | NEW], Mismatch((2,), over=True)),
        ([{}, {}, OVER | NEW], Mismatch((2,), ended=True)),
        ([OVER, {}], Mismatch()),
        ([OVER, OVER | {"epoch": 3}], None),
        ([MEAN, MEAN | NEW | {"exchange": 7 + APART + (24 << 33)}], Mismatch((1,), back=True)),
        (
            [MEAN, MEAN | {"exchange": 7 + APART + (24 << 33)}, MEAN | NEW],
            None,
        ),  # it is told so later
        # Lines count only where workers have called together before.
        ([MEAN, MEAN, MEAN | NEW | {"site": -71}], Mismatch((2,), back=True)),
        ([MEAN | {"site": -70}, MEAN | NEW | {"site": -71}], None),
        ([MEAN, MEAN | {"site": -71}], None),
    ],
)
def test_those_that_joined_first_are_right(
    table: list[dict[str, Any]], found: Mismatch | None
) -> None:
    assert find_mismatch(rows(*table)) == found


def test_the_sentence_says_who_does_what_and_what_follows() -> None:
    records = rows({}, {}, MEAN | NEW)
    doing = dict.fromkeys((0, 1), "went on to a batch of epoch 2 at train.py:12")
    doing[2] = "called edl.mean() at train.py:17"
    said = why_mismatch(Mismatch((2,), back=True), records, doing)
    assert said.startswith(
        "w2 joined after step 30, and after step 40 w0, w1 went on to a batch of epoch 2 at "
        "train.py:12 while w2 called edl.mean() at train.py:17: "
    )
    assert "loader.batch_index" in said
    assert "w2 steps back; from now on newcomers join this job at the start of an epoch" in said
    assert "w2 ends, and the others train on" in why_mismatch(Mismatch((2,)), records, doing)
    assert "trained to its end" in why_mismatch(Mismatch((2,), over=True), records, doing)
    assert "hvd.size()" in why_mismatch(Mismatch((2,), ended=True), records, doing)
    assert "wait for each other for ever" in why_mismatch(Mismatch(), records, doing)


@pytest.mark.parametrize("longest", [0, 24, PAYLOAD_BYTES, PAYLOAD_BYTES + 1])
def test_a_short_message_is_in_its_row(longest: int) -> None:
    sent = [b"x" * longest, b"", b"abc"]
    table = [replace(ROW, payload_bytes=len(one)).encode(one) for one in sent]
    found = StepRecords(np.concatenate(table))
    assert found.payloads() == (sent if longest <= PAYLOAD_BYTES else None)
