"""The fits of a script: what newcomers and resumed jobs pass over, and what is refused."""

from __future__ import annotations

import json
from datetime import date
from pathlib import PurePosixPath
from typing import Any

import pytest

from edl.checkpoint.format import Manifest
from edl.job.script import (
    ALIKE_IN_FITS,
    DoneFit,
    ScriptFits,
    as_json,
    ended_before,
    fits_of,
    json_value,
    why_unfit,
)
from edl.step.batching import Batching
from edl.step.source import Source
from edl.worker.progress import LoaderProgress, Receive

FIRST = DoneFit(2, [0, 1], {"loss": [0.5, 0.25]})
SECOND = DoneFit(5, [2, 3, 4], {"loss": [0.2, 0.1, 0.1]})


def progress(worker: int, *fits: DoneFit) -> LoaderProgress:
    one = LoaderProgress()
    one.enter((0, 1))
    one.attach(Source(12, Batching(2), True, 7, 0), worker)
    one.fits = fits
    return one


def test_they_travel_as_json() -> None:
    said = json.loads(json.dumps(as_json([FIRST, SECOND])))
    assert fits_of(said) == (FIRST, SECOND)
    assert ScriptFits(fits_of(said), 3) == ScriptFits((FIRST, SECOND), 3)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0.5, 0.5),
        (True, True),
        (None, None),
        ("text", "text"),
        ([1, (2, [3])], [1, [2, [3]]]),
        (date(2026, 11, 21), "2026-11-21"),
        (b"x", "b'x'"),
        ({"at": PurePosixPath("/a"), 3: [1j]}, {"at": "/a", "3": ["1j"]}),
    ],
)
def test_any_value_of_a_history_travels_as_json(value: object, said: Any) -> None:
    """A newcomer and a checkpoint get the text of what JSON has no form for."""
    assert json.loads(json.dumps(json_value(value))) == said


def test_a_checkpoint_knows_the_fits_before_its_own() -> None:
    assert progress(0, FIRST).place.fits == as_json([FIRST])


def test_why_a_fit_was_stopped_is_in_its_checkpoint_and_reaches_all_that_get_the_state() -> None:
    root, other = progress(0), progress(1)
    ledger, why = progress(0).ledger.snapshot(), "w0 wants to stop"
    before = Manifest("j", "r1", 4, 0, "tensorflow", {}, ledger, samples=8, fit_stopped=why)
    root.resume(before)
    assert root.place.fit_stopped == "w0 wants to stop"
    other.take_over(json.loads(json.dumps(root.header())), Receive.ALL)
    assert other.place.fit_stopped == "w0 wants to stop"


@pytest.mark.parametrize("mine", [0, 1, 2])
def test_who_is_before_the_fit_of_a_checkpoint_passes_over(mine: int) -> None:
    """All answer alike, so that none goes on alone; and each knows what it passes over."""
    done = (FIRST, SECOND)
    root = progress(0, *done)
    one = progress(1, *done[:mine])
    header = json.loads(json.dumps(root.header()))
    counts = [b"2", str(mine).encode()]
    for each in (root, one):
        assert each.passes_over(header, lambda _: counts) is (mine < 2)
    assert root.later_fits == ()
    assert one.later_fits == (done if mine < 2 else ())
    assert json.loads(json.dumps(one.header()))["fits"] == as_json(done), "it may be the root next"


def test_a_job_that_begins_asks_nobody() -> None:
    one = progress(0)

    def unasked(_: bytes) -> list[bytes]:
        raise AssertionError

    assert not one.passes_over(one.header(), unasked)


def test_a_break_between_two_fits_leaves_each_worker_in_its_own() -> None:
    """One has begun the next fit, and another has not heard of the end of the one before."""
    ahead, behind = progress(0, FIRST), progress(1)
    for one in (ahead, behind):
        one.has_state = True
    for root in (ahead, behind):
        for one in (ahead, behind):
            one.take_over(json.loads(json.dumps(root.header())), Receive.NOTHING)
    assert (ahead.fits_done, behind.fits_done) == (1, 0)


def test_the_sentences() -> None:
    assert ended_before(3, 1, 2) == (
        "w3 cannot join: its script ended after 1 fit, and the job is in fit 2; all workers must "
        "call fit as often, whatever the numbers that they see"
    )
    mine = {"model/a": "(1,)"}
    assert why_unfit(mine, {**mine, "optimizer/a": "(1,)"}, ALIKE_IN_FITS) == (
        f"the job's model has optimizer/a, and this newcomer's has not; {ALIKE_IN_FITS}"
    )
