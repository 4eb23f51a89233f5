"""Every kind of event is documented once, written somewhere, and read back as it was written."""

from __future__ import annotations

import ast
import inspect
from dataclasses import fields
from functools import cache
from typing import Annotated, Any, get_origin, get_type_hints

import pytest
from source_trees import ROOT, nodes

from edl.events import (
    DETAILS,
    Details,
    Event,
    EventKind,
    PolicyDetails,
    SlotDisabledDetails,
    StateDiffersDetails,
    SwitchDetails,
    WorkerFailedDetails,
)
from edl.records import SwitchParts


@cache
def written() -> frozenset[str]:
    """Names of classes that some module of edl uses, other than to ask what an event is."""
    found = set()
    for module, all_nodes in nodes().items():
        if module == "events.py":
            continue
        if "edl.events" not in (ROOT / module).read_text(encoding="utf-8"):
            continue
        asked = {
            id(node)
            for call in all_nodes
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "isinstance"
            for node in ast.walk(call)
        }
        names = (node for node in all_nodes if isinstance(node, ast.Name))
        found |= {node.id for node in names if id(node) not in asked}
    return frozenset(found)


@pytest.mark.parametrize("kind", EventKind)
def test_every_kind_is_documented_and_written(kind: EventKind) -> None:
    details = DETAILS[kind]
    assert details.__name__ == "".join(map(str.capitalize, kind.split("_"))) + "Details"
    assert details.writer
    assert "__doc__" in vars(details)
    assert not (inspect.getdoc(details) or "").startswith(details.__name__)  # made by dataclass
    assert details.__name__ in written(), f"nothing writes the event {kind}"


@pytest.mark.parametrize("record", [Event, SwitchParts, *DETAILS.values()])
def test_every_detail_is_documented_and_hides_nothing(record: type) -> None:
    hints = get_type_hints(record, include_extras=True)
    for name in {field.name for field in fields(record)} - {"details"}:
        said = get_origin(hints[name]) is Annotated
        assert said, f"{record.__name__}.{name} says not what it is"
    own = {"kind", *(field.name for field in fields(Event))} if issubclass(record, Details) else ()
    assert not {field.name for field in fields(record)}.intersection(own)


@pytest.mark.parametrize(
    ("kind", "details", "read"),
    [
        ("slot_given_up", {"host": "a", "slot": 1}, SlotDisabledDetails("a", 1)),
        (
            "policy",
            {"np": 2, "wished": 3, "samples_per_s": 4.0, "failed": False},
            PolicyDetails(2, 3, 4.0),
        ),
        (
            "state_differs",
            {"workers": ["w1"], "healed_from": "w0"},
            StateDiffersDetails(("w1",), "w0"),
        ),
        (
            "worker_failed",
            {"worker": "w1", "host": "a", "slot": 0, "exit_code": 1, "last_line": "Boom"},
            WorkerFailedDetails("w1", "a", 0, 1, "Boom"),
        ),
        (
            "switch",
            {"world_size": 1, "workers": {"w0": {"roll_call_s": 0.5}}},
            SwitchDetails(1, {"w0": SwitchParts(survivor_report_s=0.5)}),
        ),
    ],
)
def test_an_event_of_an_older_version_is_read(
    kind: str, details: dict[str, Any], read: Details
) -> None:
    values = {"kind": kind, "time": 1.0, "generation": 2, "step": 3, "reason": "so"}
    assert Event.from_json(values | {"details": details}).details == read


def test_a_very_long_text_is_cut_in_the_middle() -> None:
    """ZooKeeper disconnects who sends it a node of more than 1 MB."""
    long = "begin" + "x" * 3_000_000 + "end"
    details = WorkerFailedDetails(
        worker="w1", host="a", slot=0, exit_code=1, termination_message=long
    )
    read = Event.from_json(Event(0.0, 1, 2, long, details).to_json())
    assert len(str(read.to_json())) < 20_000
    assert isinstance(read.details, WorkerFailedDetails)
    for text in (read.reason, read.details.termination_message):
        assert text.startswith("beginx")
        assert text.endswith("xend")
        assert "[... 2992058 characters ...]" in text
    assert read.to_json() == Event.from_json(read.to_json()).to_json()
