"""The Python with Lightning, for tests and for the examples in the docs."""

from __future__ import annotations

from pathlib import Path

from extra_python import python_with

RELEASE = "2.6.6"
TORCHMETRICS = "1.9.0"


def lightning_python() -> Path:
    """Return a Python that has Lightning beside edl; the first test that needs it installs it."""
    return python_with(
        f"lightning-{RELEASE}",
        f"lightning=={RELEASE}",
        f"torchmetrics=={TORCHMETRICS}",
        beside_edl=True,
    )
