"""Wrong uses of the API, each run in a process of its own, and what is said of them."""

from __future__ import annotations

import json
from collections.abc import Mapping

import forked
import pytest
from paths import SCRIPTS

Uses = Mapping[str, str | tuple[str, str]]  # name -> code, or code and a part of its sentence


def code_of(use: str | tuple[str, str]) -> str:
    return use if isinstance(use, str) else use[0]


def answers_of(uses: Uses, imports: str, setup: str) -> dict[str, tuple[int, str]]:
    """Exit code and standard error of each use."""
    snippets = {name: code_of(use) for name, use in uses.items()}
    done = forked.python(
        "tensorflow" if "tensorflow" in imports else "torch",
        [SCRIPTS / "wrong_uses.py"],
        580.0,
        json.dumps({"imports": imports, "setup": setup, "snippets": snippets}),
    )
    assert done.returncode == 0, done.stderr
    answers: dict[str, tuple[int, str]] = json.loads(done.stdout.splitlines()[-1])
    return answers


def asked(request: pytest.FixtureRequest, uses: Uses) -> Uses:
    """Those whose tests run in this session."""
    items = [item for item in request.session.items if item.path == request.path]
    names = {item.callspec.params.get("name") for item in items if hasattr(item, "callspec")}
    return {name: use for name, use in uses.items() if name in names}


def assert_a_sentence(answer: tuple[int, str], part: str) -> None:
    """One clear sentence and a non-zero exit; no traceback, no hang, and nothing of Keras' own."""
    code, stderr = answer
    assert code != 0
    assert stderr.startswith("edl: "), stderr
    assert part in stderr
    assert "Traceback" not in stderr
    assert "Exception encountered when calling" not in stderr
