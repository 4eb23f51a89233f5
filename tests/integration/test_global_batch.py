"""A fixed global batch: the same samples in each step, through joins and leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from paths import SCRIPTS
from scenario import scenario

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SAMPLES, EPOCHS, BATCH = 1200, 2, 7  # an epoch has 171 global batches and a half


SIZE = ["--global-batch", str(BATCH)]
TENSORFLOW = [
    ({"script": SCRIPTS / "tf_counting.py"}, [*SIZE, "--mode", mode])
    for mode in ("function", "fit", "graph", "feed", "plain")
]


@pytest.mark.long  # tests/README.md, Time
@pytest.mark.parametrize(
    ("settings", "more"),
    [
        ({}, SIZE),
        ({"num_workers": 2}, SIZE),
        ({"num_workers": 2}, [*SIZE, "--micro-batch", "2"]),
        *TENSORFLOW,
    ],
)
def test_there_are_as_many_steps_as_without_a_change(
    settings: dict[str, Any], more: list[str], tmp_path: Path, zk_hosts: str
) -> None:
    settings = {"samples": SAMPLES, "epochs": EPOCHS, "more": more, **settings}
    with scenario(tmp_path, zk_hosts, np=2, max_np=3, options=["--slots", "3"], **settings) as job:
        job.wait_for_step(5)
        job.scale(3)
        job.wait_for_size(3)
        job.wait_for_progress(5)
        job.scale(1)
        job.wait_for_size(1)
        job.wait_for_progress(5)
        (report,) = job.prove(workers=1)
        assert report["steps"] == EPOCHS * -(-SAMPLES // BATCH)


@pytest.mark.long  # the loopback ring has it at every point
@pytest.mark.parametrize(("settings", "more"), [({}, SIZE), *TENSORFLOW])
def test_a_death_splits_one(
    settings: dict[str, Any], more: list[str], tmp_path: Path, zk_hosts: str
) -> None:
    settings = {"samples": SAMPLES, "epochs": 1, "more": more, **settings}
    with scenario(tmp_path, zk_hosts, np=3, max_np=3, **settings) as job:
        job.wait_for_step(5)
        before = job.wait_for_size(3)["generation"]
        job.process(job.leader()).kill()
        job.wait(lambda now: now["generation"] > before, "a repair")
        job.wait_for_size(3)
        (report, *_) = job.prove(workers=3)
        assert report["steps"] - -(-SAMPLES // BATCH) in (0, 1)
