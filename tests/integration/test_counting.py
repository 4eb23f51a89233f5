"""Exactly once (docs/explanation/guarantees.md), proven by the model while the job is changed."""

from __future__ import annotations

import json
import random
import tempfile
from itertools import groupby
from pathlib import Path

import pytest
from paths import SCRIPTS

from edl.testing.job import started
from edl.testing.throttle import Throttle

pytestmark = [pytest.mark.integration, pytest.mark.slow]

COUNTING = SCRIPTS / "counting.py"
SAMPLES, EPOCHS = 897, 2
SIZES = (2, 4, 1, 3)


@pytest.mark.parametrize(
    ("num_workers", "template"),
    [
        pytest.param(2, False, id="loaders"),
        pytest.param(2, True, id="loaders-template", marks=pytest.mark.long),
        pytest.param(0, True, id="template", marks=pytest.mark.long),
    ],
)
def test_each_sample_counts_once_an_epoch(
    num_workers: int, template: bool, tmp_path: Path, zk_hosts: str
) -> None:
    """2 -> 4 -> 1 -> 3 workers, asked for at random moments.

    With ``template``, later workers come from the template that users have.
    """
    moments = random.Random(f"moments of {num_workers}")
    script = [COUNTING, "--out", str(tmp_path), "--num-workers", str(num_workers)]
    size = ["--samples", str(SAMPLES), "--epochs", str(EPOCHS), "--batch-size", "4"]
    limits = {"np": SIZES[0], "max_np": max(SIZES)}
    together = tmp_path / "together"  # none is ready before all are known
    script += ["--together", str(together)]
    patience = {"EDL_GATHER_TIMEOUT_S": "120"}  # of newcomers with each other: the machine is busy
    if template:
        patience["EDL_TEMPLATE"] = "1"
    slow = Throttle(0.2, 120, 3.0)
    with (
        tempfile.TemporaryDirectory(prefix="edl-") as temporary,  # short: it has sockets
        started(
            tmp_path,
            zk_hosts,
            *script,
            *size,
            **limits,
            environment={**patience, "TMPDIR": temporary},
            throttled=slow,
        ) as job,
    ):
        now = job.wait_for_step(1)
        if template:
            log = tmp_path / "state/edl/jobs" / job.name / "logs/template.output"
            job.wait(lambda _: log.exists() and "ready" in log.read_text(), "template", 180.0)
        for wanted in SIZES[1:]:
            job.wait_for_step(now["step"] + moments.randrange(20))
            together.touch()
            job.scale(wanted)
            if wanted > now["world_size"]:
                job.wait(lambda now, all=wanted: len(now["members"]) == all, "all newcomers", 180.0)
            together.unlink()
            now = job.wait_for_size(wanted, 180.0)
        job.wait_for_step(now["step"] + moments.randrange(20))
        job.hurry()
        assert job.end() == 0, job.describe("it failed")
        assert not list(Path(temporary).glob("pymp-*"))  # of the loaders' processes
        story = job.describe("the counts are wrong")

    reports = [json.loads(path.read_text()) for path in tmp_path.glob("*.json")]
    assert len(reports) == SIZES[-1], story
    for report in reports:
        assert report["wrong"] == [], story
        assert report["counts"] == {str(EPOCHS): SAMPLES}, story
        for epoch in report["epochs"]:
            assert epoch["counts"] == {str(epoch["epoch"] + 1): SAMPLES}, story
    assert len({report["w_sha256"] for report in reports}) == 1, story
    assert len({report["steps"] for report in reports}) == 1, story
    oldest = max(reports, key=lambda report: len(report["rings"]))
    assert [size for size, _ in groupby(ring["size"] for ring in oldest["rings"])] == list(SIZES)
