"""The scripts of docs/guides/metrics.md train as they are written, and leave what it says."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from paths import ROOT

from edl.testing.job import EDL, Job

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.long]

PAGE = (ROOT / "docs" / "guides" / "metrics.md").read_text("utf-8")


def script_of(framework: str) -> str:
    """Return the script of the page for a framework."""
    found = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return next(text for text in found if f"import edl.{framework}" in text)


def train(text: str, directory: Path, zk_hosts: str) -> None:
    """Run a script on two workers; the ring writes Horovod's timeline."""
    script = directory / "train.py"
    script.write_text(text)
    job = Job(directory, zk_hosts)
    job.environment["HOROVOD_TIMELINE"] = "timeline.json"
    try:
        job._begin([EDL, "run", "-np", "2", "--job", job.name, sys.executable, script])
        assert job.end(240.0) == 0, job.describe("it failed")
    finally:
        job.close()
    assert "NEGOTIATE_ALLREDUCE" in (directory / "timeline.g1.json").read_text()


def test_pytorch(tmp_path: Path, zk_hosts: str) -> None:
    train(script_of("torch"), tmp_path, zk_hosts)
    traces = sorted(tmp_path.glob("trace-w*.json"))
    assert [one.name.split("-")[1] for one in traces] == ["w0", "w1"]
    for one in traces:
        names = {event.get("name") for event in json.loads(one.read_text())["traceEvents"]}
        assert "aten::mse_loss" in names


def test_tensorflow(tmp_path: Path, zk_hosts: str) -> None:
    train(script_of("tensorflow"), tmp_path, zk_hosts)
    (plane,) = (tmp_path / "profile").rglob("*.xplane.pb")
    assert plane.stat().st_size > 0
