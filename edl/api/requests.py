"""Read what the body of a request has: a manifest, or a small record."""

from __future__ import annotations

from typing import Any, TypeVar

from fastapi import Request

from edl.api.answers import JSON, HttpError
from edl.cluster.manifest import JobManifest, decoded_manifest, manifest_of_values, parse_manifest
from edl.core.record import Record
from edl.errors import ManifestError, UsageError
from edl.http.sent_json import decoded_json

YAML = "application/yaml"
SOURCE = "the manifest"  # in messages

R = TypeVar("R", bound=Record)
T = TypeVar("T")


def sent_manifest(request: Request) -> JobManifest:
    """Return the manifest in the body of `request`, in JSON or in YAML."""
    body: bytes = request.state.body
    kind = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
    if kind == YAML:
        manifest = parse_manifest(decoded_manifest(body, SOURCE), SOURCE)
    else:
        manifest = manifest_of_values(_json(request, dict[str, Any]))
    if not manifest.cwd.startswith("/"):
        what = f"cwd is {manifest.cwd!r}" if manifest.cwd else "there is no cwd"
        # The API's own working directory and home mean nothing to the sender.
        raise ManifestError("", 0, f"{what}; over HTTP it must be an absolute path", "cwd")
    return manifest.with_absolute_paths("/", _no_home)


def sent_record(request: Request, kind: type[R]) -> R:
    """Return the record of type `kind` in the body of `request`, which is JSON."""
    return _json(request, kind)


def _json(request: Request, kind: type[T]) -> T:
    """Return the JSON value in the body of `request`, which must be of type `kind`."""
    media = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
    if media != JSON:
        raise HttpError(422, "UsageError", f"the body is of type {media!r}; send {JSON}")
    try:
        return decoded_json(request.state.body, kind)
    except UsageError as error:
        raise HttpError(422, "UsageError", f"the body is not what is expected: {error}") from None


def _no_home() -> str:
    raise ManifestError("", 0, "a path begins with ~; over HTTP write absolute paths")
