"""Spans of a job's switches and checkpoints come out of OpenTelemetry's own SDK, through a kill."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from extra_python import python_with
from paths import DIGITS, ROOT

from edl.testing import throttle
from edl.testing.job import EDL, Job
from edl.testing.throttle import Throttle

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.long]


def spans_in(text: str) -> list[dict[str, Any]]:
    """Return what OpenTelemetry's console exporter has printed among other lines."""
    found, at, decoder = [], 0, json.JSONDecoder()
    while (at := text.find('{\n    "name": "edl.', at)) >= 0:
        span, at = decoder.raw_decode(text, at)
        found.append(span)
    return found


def test_a_join_a_kill_and_checkpoints(tmp_path: Path, zk_hosts: str) -> None:
    python = python_with("opentelemetry-1.45.2", "opentelemetry-sdk==1.45.2", beside_edl=True)
    job = Job(tmp_path, zk_hosts)
    job.environment |= {"OTEL_TRACES_EXPORTER": "console", "PYTHONPATH": str(ROOT)}
    job.throttle(Throttle())
    script = [python, throttle.SCRIPT, DIGITS, "--epochs", "20", "--checkpoint", tmp_path / "kept"]
    try:
        limits = ["-np", "2", "--min-np", "1", "--max-np", "3", "--job", job.name]
        job._begin([EDL, "run", *limits, *map(str, script)])
        job.wait_for_step(2)
        job.scale(3)
        job.wait_for_size(3)
        joined = job.status()["generation"]
        job.kill("w0")
        job.wait(lambda now: now["generation"] > joined, "repair")
        repaired = job.status()["generation"]
        job.wait_for_size(3)
        job.hurry()
        assert job.end(240.0) == 0, job.describe("it failed")
    finally:
        job.close()
    logs = (tmp_path / "state" / "edl" / "jobs" / job.name / "logs").glob("*.log")
    spans = [one for log in logs if not log.is_symlink() for one in spans_in(log.read_text())]
    wholes = defaultdict(list)
    for span in spans:
        if span["name"] in ("edl.switch", "edl.checkpoint"):
            assert span["attributes"]["edl.job"] == job.name
            wholes[span["name"], span["attributes"]["edl.generation"]].append(span)
    join, repair = wholes["edl.switch", joined], wholes["edl.switch", repaired]
    assert {one["attributes"]["edl.worker"] for one in repair} == {"w1", "w2"}
    assert {one["attributes"]["edl.worker"] for one in join} >= {"w1", "w2"}
    for together in (join, repair):
        assert len({one["context"]["trace_id"] for one in together}) == 1
    parts = {one["name"] for one in spans if one["parent_id"] == repair[0]["context"]["span_id"]}
    assert {"edl.switch.wait", "edl.switch.init", "edl.switch.broadcast"} <= parts
    assert any(name == "edl.checkpoint" for name, _ in wholes)
