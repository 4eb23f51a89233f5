"""The files of the page that are the same for everybody: HTML, styles, scripts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

from edl.dashboard.html_page import cluster_page, job_page

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
    """Return all files of the page, by their path below `static/`."""
    found = {
        "index.html": _static_file(job_page().encode(), TYPES["html"]),
        "cluster.html": _static_file(cluster_page().encode(), TYPES["html"]),
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
