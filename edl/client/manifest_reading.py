"""Read the manifest of a job, which describes a job for a cluster, from a file."""

from __future__ import annotations

from pathlib import Path

from edl import config
from edl.core.cluster.manifest import JobManifest
from edl.core.cluster.manifest_file import MOST_BYTES, decoded_manifest, parse_manifest
from edl.errors import ManifestError


def read_job_manifest(path: str | Path) -> JobManifest:
    """Return the manifest in the YAML file at ``path``, with absolute paths.

    A relative ``cwd`` begins at the working directory of this process, and ``~`` is the home of
    this user.

    Raises:
        ManifestError: the file cannot be read, or is not a manifest.
        ConfigError: a path begins with ``~``, and this user has no home directory.
    """
    source = str(path)
    try:
        with Path(path).open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        what = f"it cannot be read: {error.strerror}"
        raise ManifestError(source, 0, f"{what}; name the file of a job's manifest") from None
    manifest = parse_manifest(decoded_manifest(data, source), source)
    return manifest.with_absolute_paths(str(Path.cwd()), config.home_dir)
