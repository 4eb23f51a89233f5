"""Write the page of a job into one HTML file, and provide the files that all pages share.

`edl report` does so where the packages that serve a page are not installed. Scripts, styles and the
job's data stand in the file. A module cannot import another one from a file on disk, so each is a
``data:`` address, which an import map gives a name.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import msgspec

from edl.dashboard.job_watcher import JobWatcher
from edl.dashboard.view.events import MAX_EVENTS, EventChoice
from edl.text import json_text

# --- Write the HTML around the scripts of a page: of a job, of a cluster, of a report.


_PAGE = """\
<!doctype html>
<html lang="en">
  <head>
    <meta charset="utf-8">
    <meta name="viewport" content="width=device-width, initial-scale=1">
    <meta name="color-scheme" content="light dark">
    <title>edl</title>
    {head}
  </head>
  <body>
    <div id="page"><p class="loading">{loading}</p></div>
    {rest}
  </body>
</html>
"""
_NO_SCRIPT = '<noscript><p class="loading">This page needs JavaScript. {instead}</p></noscript>'
_ICON = '<link rel="icon" href="/static/icon.svg" type="image/svg+xml">'
_STYLE = '<link rel="stylesheet" href="/static/{path}">'
_MODULE = '<script type="module" src="/static/{path}"></script>'


def html_page(head: Sequence[str], loading: str, rest: str = "") -> str:
    return _PAGE.format(head="\n    ".join(head), loading=loading, rest=rest)


# --- The files of the page that are the same for everybody: HTML, styles, scripts.


TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "mjs": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


@dataclass(frozen=True)
class StaticFile:
    """A file of the page."""

    content: bytes
    media_type: str  # its type, as HTTP has it
    tag: str  # a text that changes with its content, for `ETag`


def static_files() -> Mapping[str, StaticFile]:
    job = html_page(
        (
            _ICON,
            _STYLE.format(path="vendor/uPlot.min.css"),
            _STYLE.format(path="style.css"),
            '<script src="/static/vendor/uPlot.iife.min.js" defer></script>',
            _MODULE.format(path="main.mjs"),
        ),
        "Loading…",
        _NO_SCRIPT.format(
            instead="<code>edl status --watch</code> shows the job in a terminal.",
        ),
    )
    cluster = html_page(
        (_ICON, _STYLE.format(path="style.css"), _MODULE.format(path="cluster.mjs")),
        "Loading…",
        _NO_SCRIPT.format(
            instead="<code>edl list</code> and <code>edl cluster status</code> show the cluster "
            "in a terminal.",
        ),
    )
    found = {
        "index.html": _static_file(job.encode(), TYPES["html"]),
        "cluster.html": _static_file(cluster.encode(), TYPES["html"]),
    }
    static = files("edl.dashboard") / "static"
    for folder in ("", "vendor"):
        for entry in (static / folder if folder else static).iterdir():
            media_type = TYPES.get(entry.name.rpartition(".")[2])
            if media_type is not None and entry.is_file():
                path = f"{folder}/{entry.name}" if folder else entry.name
                found[path] = _static_file(entry.read_bytes(), media_type)
    return found


def _static_file(content: bytes, media_type: str) -> StaticFile:
    return StaticFile(content, media_type, f'"{hashlib.sha256(content).hexdigest()[:16]}"')


# --- The report: all of them in one file, with the data of a job.


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
    texts = {path: one.content.decode() for path, one in static_files().items()}
    modules = {
        path.rpartition("/")[2]: _data(_IMPORTED.sub(r"\1\2", text), "text/javascript")
        for path, text in texts.items()
        if (path.endswith(".mjs") and not path.startswith("cluster"))
        or path == "vendor/htm.module.js"
    }
    icon = _data(texts["icon.svg"], "image/svg+xml")
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        f'<link rel="icon" href="{icon}" type="image/svg+xml">',
        f"<style>{texts['vendor/uPlot.min.css']}{texts['style.css']}</style>",
        f"<script>{texts['vendor/uPlot.iife.min.js']}</script>",
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
