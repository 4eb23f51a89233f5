"""Read the manifest of a job, as `edl submit` and programs give it: :func:`job_manifest`."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any, BinaryIO

from edl import config
from edl.cluster.manifest import (
    MAX_BYTES,
    JobManifest,
    decoded_manifest,
    manifest_of_values,
    parse_manifest,
)
from edl.errors import ManifestError

AnyManifest = JobManifest | Mapping[str, Any] | str | PathLike[str]
"""A manifest; its values by key; its text, which has several lines; or the path of its file."""


def job_manifest(given: AnyManifest) -> JobManifest:
    """Return the manifest that `given` is or names, with absolute paths."""
    if isinstance(given, JobManifest):
        manifest = given
    elif isinstance(given, Mapping):
        manifest = manifest_of_values(given)
    elif isinstance(given, str) and "\n" in given:
        manifest = parse_manifest(given, "the manifest")
    else:
        return read_job_manifest(fspath(given))
    return manifest.with_absolute_paths(str(Path.cwd()), config.home_dir)


def read_job_manifest(path: str | Path) -> JobManifest:
    source = str(path)
    try:
        with Path(path).open("rb") as file:
            return manifest_in(file, source)
    except OSError as error:
        what = f"it cannot be read: {error.strerror}"
        raise ManifestError(source, 0, f"{what}; name the file of a job's manifest") from None


def manifest_in(file: BinaryIO, source: str) -> JobManifest:
    """Return the manifest in an open file or pipe, of which no more is read than one may have."""
    data = file.read(MAX_BYTES + 1)
    manifest = parse_manifest(decoded_manifest(data, source), source)
    return manifest.with_absolute_paths(str(Path.cwd()), config.home_dir)
