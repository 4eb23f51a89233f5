"""Write the page of a job into one HTML file that needs no server and no internet.

Scripts, styles and the job's data stand in the file. A module cannot import another one from a file
on disk, so each is a ``data:`` address, which an import map gives a name.
"""

from __future__ import annotations

import base64
import re
from typing import Any

import msgspec

from edl.dashboard.answers import html_page, static_files
from edl.dashboard.job_watcher import JobWatcher
from edl.dashboard.view.events import MAX_EVENTS, EventChoice
from edl.text import json_text

POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; img-src data:"
)
_IMPORTED = re.compile(r'(from ")\./(?:[\w-]+/)*([\w.-]+")')


def report_page(watcher: JobWatcher) -> str:
    events = watcher.events(EventChoice(limit=MAX_EVENTS))
    generations = {event.generation for event in events}
    switches = {number: watcher.switch(number) for number in sorted(generations)}
    report = {
        "page": msgspec.json.decode(watcher.page.patch()),
        "events": events,
        "switches": {str(number): one for number, one in switches.items() if one is not None},
    }
    files = {path: one.content.decode() for path, one in static_files().items()}
    modules = {
        path.rpartition("/")[2]: _data(_IMPORTED.sub(r"\1\2", text), "text/javascript")
        for path, text in files.items()
        if (path.endswith(".mjs") and not path.startswith("cluster"))
        or path == "vendor/htm.module.js"
    }
    icon = _data(files["icon.svg"], "image/svg+xml")
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        f'<link rel="icon" href="{icon}" type="image/svg+xml">',
        f"<style>{files['vendor/uPlot.min.css']}{files['style.css']}</style>",
        f"<script>{files['vendor/uPlot.iife.min.js']}</script>",
        f'<script type="importmap">{_script({"imports": modules})}</script>',
        f'<script type="application/json" id="report">{_script(report)}</script>',
        '<script type="module">import "main.mjs";</script>',
    )
    return html_page(head, "This report needs JavaScript.")


def _data(text: str, media_type: str) -> str:
    return f"data:{media_type};base64,{base64.b64encode(text.encode()).decode()}"


def _script(value: Any) -> str:
    # no text may end the element
    return json_text(value).decode().replace("<", "\\u003c")
