"""The Python with WebDataset, for tests and for the examples in the docs."""

from __future__ import annotations

from pathlib import Path

from extra_python import python_with

RELEASE = "1.0.2"


def webdataset_python() -> Path:
    """Return a Python that has WebDataset beside edl; the first call installs it."""
    return python_with(f"webdataset-{RELEASE}", f"webdataset=={RELEASE}", beside_edl=True)
