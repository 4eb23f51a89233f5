"""The report of a job: one file that needs no server and leads nowhere."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import pytest
from shown_job import CREATED, NAME, SECRET, ShownStore

from edl.dashboard.job_watcher import JobWatcher
from edl.dashboard.report import report_page, static_files

IMPORT = re.compile(r"""^import (?:.* from )?"(.+)";$""", re.MULTILINE)


@pytest.fixture(scope="module")
def text() -> str:
    store: Any = ShownStore()
    watcher = JobWatcher(store, clock=lambda: CREATED + 600.0)
    watcher.turn()
    return report_page(watcher)


def part(text: str, opening: str) -> Any:
    return json.loads(text.partition(opening)[2].partition("</script>")[0])


def test_all_modules_are_in_it_and_import_only_each_other(text: str) -> None:
    addresses = part(text, '<script type="importmap">')["imports"]
    own = [one for one in static_files() if one.endswith(".mjs") and not one.startswith("cluster")]
    assert len(addresses) == len(own) + 1
    sources = [base64.b64decode(one.partition(",")[2]).decode() for one in addresses.values()]
    imported = {name for source in sources for name in IMPORT.findall(source)}
    assert imported <= addresses.keys()
    assert {"preact.mjs", "htm.module.js", "view.mjs", "report.mjs"} <= imported
    assert IMPORT.findall(text.replace('"module">', '"module">\n').replace(";</s", ";\n</s")) == [
        "main.mjs"
    ]


def test_it_asks_nobody(text: str) -> None:
    assert "connect-src" not in text, "so default-src counts"
    assert not re.findall(r"""(?:src|href)=["'](?!data:)""", text)
    assert "url(" not in text


def test_it_has_the_page_the_events_and_the_switches(text: str) -> None:
    report = part(text, 'id="report">')
    assert report["page"]["sections"]["header"]["job"] == NAME
    numbers = [one["number"] for one in report["events"]]
    assert numbers == sorted(numbers, reverse=True)
    assert report["switches"].keys() <= {str(one["generation"]) for one in report["events"]}
    assert any(one["workers"] for one in report["switches"].values())
    assert SECRET not in text


def test_no_text_of_a_job_ends_its_script(monkeypatch: pytest.MonkeyPatch) -> None:
    store: Any = ShownStore()
    watcher = JobWatcher(store, clock=lambda: CREATED + 600.0)
    watcher.turn()
    evil = "</script><script>alert(1)</script><!--"
    watcher.page = watcher.page.with_sections({"notice": {"tone": "bad", "text": evil}})
    found = report_page(watcher)
    assert evil not in found
    assert part(found, 'id="report">')["page"]["sections"]["notice"]["text"] == evil
