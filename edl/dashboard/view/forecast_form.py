"""Read the form in which a browser asks which slots a job would get."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edl.cluster.manifest import JobManifest, manifest_of_values
from edl.errors import UsageError

NUMBERS = ("np", "min", "max", "priority")
_NAME, _COMMAND = "what-if", ("true",)


def requested_manifest(values: Mapping[str, str]) -> JobManifest:
    """Return the manifest of a job that asks for what a form says."""
    asked: dict[str, Any] = {}
    for name in NUMBERS:
        text = values.get(name, "").strip()
        if not text:
            continue
        try:
            asked[name] = int(text)
        except ValueError:
            raise UsageError(f"{name} is {text[:20]!r}; write a whole number") from None
    least = asked.setdefault("min", min(1, asked.get("np", 1)))
    asked.setdefault("max", asked.get("np", least))
    if queue := values.get("queue", "").strip():
        asked["queue"] = queue
    if labels := values.get("labels", "").strip():
        asked["labels"] = dict(map(_label, filter(None, map(str.strip, labels.split(",")))))
    return manifest_of_values({"name": _NAME, "command": list(_COMMAND), **asked})


def _label(text: str) -> tuple[str, str]:
    """Return the key and the value of a label like "gpu=h100"."""
    key, sign, value = text.partition("=")
    if not sign:
        raise UsageError(f"{text[:40]!r} is no label; write it like gpu=h100")
    return key.strip(), value.strip()
