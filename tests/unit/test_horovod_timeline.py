"""The timelines of a job's rings in one file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from edl.cli.main import app
from edl.errors import UsageError
from edl.events import Event, EvictedDetails
from edl.horovod_timeline import RingTimeline, merge_timelines, of_one_run, parse_timeline

HEAD = (
    '[\n{"name": "process_name", "ph": "M", "pid": 0, '
    '"args": {"start_time_since_epoch_in_micros":%d}},\n'
    '{"ph": "i", "name": "CYCLE_START", "ts": 3, "s": "g"},'
)


def of_tensor(pid: int, name: str, *, ends: bool = True) -> str:
    """Return what Horovod writes of one allreduce."""
    lines = [
        {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": name}},
        {"name": "process_sort_index", "ph": "M", "pid": pid, "args": {"sort_index": pid}},
        {"ph": "B", "name": "ALLREDUCE", "ts": 10, "pid": pid},
        {"ph": "X", "name": "1", "ts": 12, "pid": pid, "dur": 8},
    ]
    if ends:
        lines.append({"ph": "E", "ts": 20, "pid": pid})
    return ",\n".join(json.dumps(one) for one in lines)


def written(start_us: int, *tensors: str, end: str = "]") -> str:
    return HEAD % start_us + ",".join(tensors) + end


def timeline(generation: int, start_us: int, *tensors: str) -> RingTimeline:
    found = parse_timeline(generation, written(start_us, *tensors))
    assert found is not None
    return found


def rows(merged: dict[str, Any]) -> dict[int, str]:
    """Return the names of all rows."""
    names = (event for event in merged["traceEvents"] if event.get("name") == "process_name")
    return {event["pid"]: event["args"]["name"] for event in names}


def test_a_tensor_keeps_its_row_whatever_its_number_in_a_ring() -> None:
    first = timeline(1, 1000, of_tensor(1, "a"), of_tensor(2, "b"))
    second = timeline(2, 1500, of_tensor(1, "b"), of_tensor(2, "c"))
    merged = merge_timelines([first, second])
    assert rows(merged) == {0: "edl", 1: "a", 2: "b", 3: "c"}
    begins = [(event["pid"], event["ts"]) for event in merged["traceEvents"] if event["ph"] == "B"]
    assert begins == [(1, 10), (2, 10), (2, 510), (3, 510)]
    rings = [event for event in merged["traceEvents"] if "generation" in event.get("name", "")]
    assert [(one["name"], one["ts"], one["dur"]) for one in rings] == [
        ("generation 1", 0, 20),
        ("generation 2", 500, 20),
    ]


@pytest.mark.parametrize("cut", ["", ",", ',{"ph": "B", "na', "\n"])
def test_the_writer_was_killed(cut: str) -> None:
    """All that it has written counts, and ends with its ring."""
    found = parse_timeline(3, written(1000, of_tensor(1, "a", ends=False), end=cut))
    assert found is not None
    assert not found.whole
    merged = merge_timelines([found])["traceEvents"]
    assert [(event["pid"], event["ts"]) for event in merged if event["ph"] == "E"] == [(1, 20)]


def test_a_file_without_a_beginning_is_none() -> None:
    for text in ("", "[", "[]", "no JSON", '[{"ph": "i", "ts": 1}]', '[{"args": null}]'):
        assert parse_timeline(1, text) is None


@pytest.mark.parametrize(
    "event",
    [
        {"ts": 3},
        {"ph": "B", "pid": 1},
        {"ph": "B", "pid": 1, "ts": "soon"},
        {"ph": "X", "pid": 1, "ts": 3, "dur": "long"},
        {"ph": "M", "name": "process_name", "pid": 1},
        {"ph": "M", "name": "process_name", "pid": 1, "args": {}},
    ],
)
def test_a_file_with_an_event_that_horovod_does_not_write_is_none(event: dict[str, Any]) -> None:
    assert parse_timeline(1, written(1000, json.dumps(event))) is None


def test_files_of_an_earlier_run_are_left_out() -> None:
    old = [timeline(number, 1000 + number) for number in (3, 4)]
    new = [timeline(number, 9000 + number) for number in (2, 1)]
    assert [one.generation for one in of_one_run([*old, *new])] == [1, 2]


def test_the_events_of_the_job() -> None:
    event = Event(0.0015, 2, 40, "w1 was killed", EvictedDetails("w1"))
    (mark,) = [
        one
        for one in merge_timelines([timeline(1, 1000)], [event])["traceEvents"]
        if one.get("name") == "evicted"
    ]
    assert (mark["ts"], mark["args"]["reason"]) == (500, "w1 was killed")


def test_paths_are_printed_as_they_are(tmp_path: Path) -> None:
    """Brackets are no markup of rich, and a long line is not broken."""
    directory = tmp_path / "[exp]" / "run[" / "b]"
    directory.mkdir(parents=True)
    (directory / "timeline.g1.json").write_text(written(9000, of_tensor(1, "a")))
    (directory / "timeline.g3.json").write_text("")
    file = directory / "timeline.json"
    done = CliRunner().invoke(app, ["timeline", str(file)])
    assert done.output.splitlines() == [
        f"{file}: 1 ring; open it in Perfetto or chrome://tracing",
        f"{directory / 'timeline.g3.json'} is left out: it has no timeline of Horovod in it",
    ]


def test_the_verb(tmp_path: Path) -> None:
    for number, start_us in ((1, 9000), (2, 9500), (7, 100)):
        (tmp_path / f"timeline.g{number}.json").write_text(written(start_us, of_tensor(1, "a")))
    (tmp_path / "timeline.g2.json").write_text(written(9500, of_tensor(1, "a"), end=","))
    (tmp_path / "timeline.gold.json").write_text("[]")
    (tmp_path / "timeline.g3.json").write_text("")
    file = tmp_path / "timeline.json"
    done = CliRunner().invoke(app, ["timeline", str(file)])
    assert done.exit_code == 0, done.output
    lines = " ".join(done.output.split())
    assert "2 rings; open it in Perfetto" in lines
    assert "generation 7 is left out: it is of an earlier run" in lines
    assert "timeline.g3.json is left out: it has no timeline of Horovod" in lines
    assert "generation 2 ends where its writer was killed" in lines
    assert rows(json.loads(file.read_text())) == {0: "edl", 1: "a"}


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("none.json", ["there is no timeline", "none.g1.json", "HOROVOD_TIMELINE="]),
        ("nowhere/none.json", ["there is no timeline", "HOROVOD_TIMELINE="]),
        ("empty.json", ["empty.g1.json: there is no timeline of Horovod in it", "again later"]),
        ("empty.g1.json", ["the timeline of one ring; write `edl timeline ", "empty.json`"]),
        ("/", ["/ is a directory; give FILE"]),
    ],
)
def test_without_a_timeline(tmp_path: Path, file: str, said: list[str]) -> None:
    (tmp_path / "empty.g1.json").write_text("")
    done = CliRunner().invoke(app, ["timeline", str(tmp_path / file)])
    assert isinstance(done.exception, UsageError)
    assert all(text in str(done.exception) for text in said)
