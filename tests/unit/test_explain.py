"""`edl events --explain`: each kind of event has a meaning, a cause, and something to do."""

from __future__ import annotations

import re

import pytest

from edl.cli.events import explanation_lines, overview_lines
from edl.cli.main import invoke
from edl.cli.verbs import VERBS
from edl.errors import UsageError
from edl.event_text import EXPLANATIONS, Severity
from edl.events import EventKind


@pytest.mark.parametrize("kind", EventKind)
def test_every_kind_is_explained_in_sentences(kind: EventKind) -> None:
    one = EXPLANATIONS[kind]
    for text in (one.meaning, one.why, one.advice):
        assert text[0].isupper() or text[0] == "`"
        assert text.endswith(".")
        verbs = re.findall(r"`edl ([a-z-]+)", text)
        assert set(verbs) <= VERBS.keys(), f"it names a command that there is not: {verbs}"


def test_nobody_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in `edl events --explain all >&-`."""
    monkeypatch.setattr("sys.stdout", None)
    assert invoke(["events", "--explain", "all"]) == 0


def test_there_is_no_explanation_of_anything_else() -> None:
    assert list(EXPLANATIONS) == list(EventKind), "in the order of the kinds"
    assert {one.severity for one in EXPLANATIONS.values()} == set(Severity)


@pytest.mark.parametrize("width", [30, 40, 80])
def test_what_is_printed_fits(width: int) -> None:
    lines = explanation_lines("Worker-Failed", width)
    assert lines[0] == "worker_failed (error)"
    assert [line for line in lines if line and line[0] != " "][1:] == [
        "meaning", "why", "what to do",
    ]  # fmt: skip
    for kind in EventKind:
        assert all(len(line) <= width for line in explanation_lines(kind, width))
    overview = overview_lines(width)
    assert all(len(line) <= max(width, 30) for line in overview)
    assert {f"  {kind}" for kind in EventKind} <= set(overview)


def test_an_unknown_event_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match=r"no event 'worker_faild' \(like it: worker_failed"):
        explanation_lines("worker_faild", 80)
    assert invoke(["events", "--explain", "nonsense"]) == 2
    assert "`edl events --explain all` lists all" in capsys.readouterr().err
    assert invoke(["events", "--explain", "stalled"]) == 0
    assert capsys.readouterr().out.startswith("stalled (error)\n")
