"""The sizes that a job has had, from its event log."""

from __future__ import annotations

from pathlib import Path

import pytest

from edl.cli.sizing import draw_history
from edl.client.job import History, HistoryMark, SizeSpan, history
from edl.events import (
    DesiredDetails,
    Details,
    Event,
    GenerationDetails,
    JobFinishedDetails,
    PolicyDetails,
    StragglerDetails,
)


def event(at_s: float, details: Details, reason: str = "why") -> Event:
    return Event(1000.0 + at_s, 1, 0, reason, details)


def ring(at_s: float, np: int, rate: float = 0.0) -> Event:
    members = tuple(f"w{n}" for n in range(np))
    return event(at_s, GenerationDetails(1, members, (), (), False, samples_per_s=rate))


def test_each_ring_is_a_span_with_what_was_said_last_of_its_throughput() -> None:
    found = history(
        "digits",
        [
            event(0.0, DesiredDetails("launcher", {}, {"a": 1})),
            ring(2.0, 1),
            event(8.0, PolicyDetails(1, 2, 90.0), "policy: tries 2"),
            event(8.0, DesiredDetails("policy", {"a": 1}, {"a": 2}), "policy: tries 2: 1 -> 2"),
            ring(10.0, 2, 100.0),
            event(20.0, PolicyDetails(2, 2, 180.0)),
            event(21.0, StragglerDetails(("w1",), "", "computes", 0.5), "w1 computes"),
            event(30.0, JobFinishedDetails()),
        ],
    )
    assert found.spans == (SizeSpan(2.0, 10.0, 1, 100.0), SizeSpan(10.0, 30.0, 2, 180.0))
    assert found.marks == (
        HistoryMark(0.0, "launcher", "why"),
        HistoryMark(8.0, "policy", "policy: tries 2: 1 -> 2"),
        HistoryMark(21.0, "straggler", "w1 computes"),
    )


def test_what_nobody_has_said_is_not_known_and_an_end_is_no_size() -> None:
    found = history("digits", [ring(0.0, 2), ring(5.0, 0, 40.0), ring(6.0, 0)])
    assert found.spans == (SizeSpan(0.0, 5.0, 2, 40.0),)
    assert history("digits", [ring(0.0, 2), ring(5.0, 3)]).spans[0].samples_per_s is None
    assert history("digits", []) == History("digits", (), ())


@pytest.mark.parametrize("name", ["a.png", "a.svg"])
def test_it_is_drawn(name: str, tmp_path: Path) -> None:
    events = [
        event(0.0, DesiredDetails("person", {}, {"a": 1})),
        ring(1.0, 1),
        event(8.0, PolicyDetails(1, 2, 90.0)),
        ring(9.0, 2),
        event(12.0, JobFinishedDetails()),
    ]
    draw_history(history("digits", events), tmp_path / name)
    draw_history(history("digits", []), tmp_path / f"nothing-{name}")
    assert (tmp_path / name).stat().st_size > 1000
