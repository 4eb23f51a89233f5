"""What the peers need that is not in `.venv`: torchft, in a folder of edl's cache."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.jobs import BenchmarkError
from edl import config

# torchft has no release that fits today's PyTorch, only builds of each night.
TORCHFT = "torchft-nightly==2026.10.26"
# Its requirements without PyTorch, which `.venv` has.
REQUIREMENTS = ("opentelemetry-sdk>=1.39", "opentelemetry-exporter-otlp-proto-http>=1.39")
INSTALL_S = 600.0


def torchft_folder() -> Path:
    """Return the folder, for PYTHONPATH, with torchft; install it there by pip if it is missing.

    Raises:
        BenchmarkError: pip failed, or has taken ``INSTALL_S``.
    """
    folder = config.cache_dir() / "benchmarks" / TORCHFT.replace("==", "-")
    if folder.is_dir():
        return folder
    fresh = folder.with_name(f"{folder.name}.{os.getpid()}")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(fresh)]
    for arguments in (REQUIREMENTS, ("--no-deps", "--upgrade", TORCHFT)):
        try:
            done = subprocess.run(
                [*pip, *arguments], capture_output=True, text=True, timeout=INSTALL_S
            )
        except subprocess.TimeoutExpired as error:
            raise BenchmarkError(f"pip did not install {arguments} in {INSTALL_S:g} s") from error
        if done.returncode:
            raise BenchmarkError(f"pip did not install {arguments}: {done.stderr.strip()[-500:]}")
    fresh.rename(folder)
    return folder
