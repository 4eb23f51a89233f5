"""The Python with Hugging Face's libraries, for tests and for the examples in the docs."""

from __future__ import annotations

from pathlib import Path

from extra_python import python_with

TRANSFORMERS, ACCELERATE, DATASETS = "5.24.0", "1.15.0", "5.2.0"


def huggingface_python() -> Path:
    """Return a Python that has these libraries beside edl; the first call installs them."""
    libraries = {"transformers": TRANSFORMERS, "accelerate": ACCELERATE, "datasets": DATASETS}
    return python_with(
        f"huggingface-{TRANSFORMERS}",
        *(f"{name}=={release}" for name, release in libraries.items()),
        beside_edl=True,
    )
