"""What `edl-discover` remembers from one call to the next."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from edl.launch.horovodrun.discovery import _file
from edl.launch.horovodrun.launcher import find_launcher


def test_the_last_answer_of_edl_discover_is_found_when_the_clock_was_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = psutil.Process()
    monkeypatch.setattr(psutil.Process, "parents", lambda process: [here])
    monkeypatch.setattr(psutil.Process, "cmdline", lambda process: ["python", "/bin/horovodrun"])
    files = set()
    for clock in (1_000.0, 2_000.0):
        monkeypatch.setattr(psutil.Process, "create_time", lambda process, at=clock: at)
        launcher = find_launcher()
        assert launcher is not None
        files.add(_file(tmp_path, launcher))
    assert len(files) == 1
