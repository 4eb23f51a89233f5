"""`edl explain`: each kind of event has a meaning, a cause, and something to do."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from edl.cli.explain import explanation_lines, overview_lines
from edl.cli.main import VERBS, invoke
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
    """As in `edl explain >&-`."""
    monkeypatch.setattr("sys.stdout", None)
    assert invoke(["explain"]) == 0


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
    assert invoke(["explain", "nonsense"]) == 2
    assert "`edl explain` lists all" in capsys.readouterr().err
    assert invoke(["explain", "stalled"]) == 0
    assert capsys.readouterr().out.startswith("stalled (error)\n")


def test_it_needs_neither_zookeeper_nor_rich() -> None:
    code = (
        "import sys\n"
        "from edl.cli.main import invoke\n"
        "assert invoke(['explain', 'paused']) == 0\n"
        "print([one for one in sys.modules if one.partition('.')[0] in ('kazoo', 'rich')])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout.splitlines()[-1] == "[]"
