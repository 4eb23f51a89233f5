"""Texts with a byte that is not UTF-8, such as a file name in a command, in pages and answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from edl.dashboard.answers import json_answer
from edl.dashboard.job_watcher import PublishedPage
from edl.dashboard.report import _script

COMMAND = ["python", "/data/jos\udce9/train.py"]


@pytest.mark.parametrize("value", [{"command": COMMAND}, {"\udce9": COMMAND, "step": 7}])
def test_such_a_byte_is_shown_as_unknown(value: dict[str, Any]) -> None:
    shown = json.loads(json.dumps(value).replace("\\udce9", "\\ufffd"))
    page = PublishedPage().with_sections({"job": value})
    assert json.loads(page.patch())["sections"]["job"] == shown
    assert json.loads(_script(value)) == shown
    assert json.loads(bytes(json_answer(value).body)) == shown


def test_other_texts_stay_as_they_are() -> None:
    assert json.loads(_script({"text": ["é 😀", None, 1.5]})) == {"text": ["é 😀", None, 1.5]}
