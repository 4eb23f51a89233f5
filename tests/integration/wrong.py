"""Wrong uses of the API, each run in a process of its own, and what is said of them."""

from __future__ import annotations

import json
from collections.abc import Mapping

import forked
import pytest
from paths import SCRIPTS

Codes = Mapping[str, str]  # by name


def answers_of(snippets: Codes, imports: str, setup: str) -> dict[str, tuple[int, str]]:
    """Exit code and standard error of each snippet."""
    done = forked.python(
        "tensorflow" if "tensorflow" in imports else "torch",
        [SCRIPTS / "wrong_uses.py"],
        580.0,
        json.dumps({"imports": imports, "setup": setup, "snippets": snippets}),
    )
    assert done.returncode == 0, done.stderr
    answers: dict[str, tuple[int, str]] = json.loads(done.stdout.splitlines()[-1])
    return answers


def asked(request: pytest.FixtureRequest, snippets: Codes) -> Codes:
    """Those whose tests run in this session."""
    items = [item for item in request.session.items if item.path == request.path]
    names = {item.callspec.params.get("name") for item in items if hasattr(item, "callspec")}
    return {name: code for name, code in snippets.items() if name in names}


def assert_a_sentence(answer: tuple[int, str], part: str) -> None:
    """One clear sentence and a non-zero exit; no traceback, no hang, and nothing of Keras' own."""
    code, stderr = answer
    assert code != 0
    assert stderr.startswith("edl: "), stderr
    assert part in stderr
    assert "Traceback" not in stderr
    assert "Exception encountered when calling" not in stderr
