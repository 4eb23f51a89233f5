"""Generate the JSON schema of job manifests, by which editors complete and check them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import msgspec

from edl.core.cluster.control_characters import CONTROL
from edl.core.cluster.manifest import JobManifest
from edl.core.job_spec import JobSettings

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_AS_WRITTEN = ["string", "number", "boolean"]  # of a text that a user need not quote
_TEXT = f"^[^{CONTROL}]*$"
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


def manifest_schema() -> dict[str, Any]:
    """Return the JSON schema of a job manifest, in the dialect of 2020-12."""
    schema = msgspec.json.schema(JobManifest)
    kinds: dict[str, Any] = schema["$defs"]
    for kind in kinds.values():
        kind["additionalProperties"] = False
        kind.pop("description", None)  # a docstring, for programmers
        for one in kind["properties"].values():
            if "description" in one:
                one["description"] = _without_links(one["description"])
            for inner in (one.get("items"), one.get("additionalProperties")):
                if inner and inner.get("type") == "string" and "pattern" not in inner:
                    inner["type"] = _AS_WRITTEN
            for text in (one, *one.values()):
                if isinstance(text, dict) and "string" in text.get("type", ()):
                    text.setdefault("pattern", _TEXT)
    _describe_settings(kinds["JobSettings"]["properties"])
    manifest = kinds.pop("JobManifest")
    command = manifest["properties"]["command"]
    command["prefixItems"] = [{**command["items"], "minLength": 1}]
    manifest["title"] = "A job of an edl cluster"
    return {"$schema": _DIALECT, **manifest, "$defs": kinds}


def _describe_settings(properties: dict[str, Any]) -> None:
    """Add the meaning and the limits of each setting of a job to its schema in `properties`."""
    del properties["resume"]  # the cluster sets it
    for one in fields(JobSettings):
        about: Mapping[str, Any] = one.metadata
        if one.name in properties:
            schema = properties[one.name]
            schema["description"] = _without_links(about["help"])
            if about["choices"]:
                schema["enum"] = list(about["choices"])
            if about["least"] is not None:
                schema["minimum"] = about["least"]


def _without_links(text: str) -> str:
    return _LINK.sub(r"\1", text)
