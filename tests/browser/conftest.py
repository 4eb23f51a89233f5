"""A shell for real jobs, as the integration tests have it, and headless Chromium."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))

from cli_shell import shell

__all__ = ["shell"]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium")
    assert path is not None, "there is no chromium; `make browser` installs it"
    with sync_playwright() as playwright:
        # As root, in a container, its sandbox does not work.
        one = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield one
        one.close()
