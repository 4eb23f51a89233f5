"""TensorFlow on several workers: same gradient, examples, checkpoints, a neighbour in PyTorch."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from paths import ROOT, SCRIPTS
from scenario import scenario
from steplog import read_steps

from edl.testing import throttle
from edl.testing.job import started
from edl.testing.throttle import Throttle

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SAMPLES, EPOCHS, CLIP = 203, 4, 0.3
START_S = 200.0  # TensorFlow takes its time to be imported
TF_COUNTING = SCRIPTS / "tf_counting.py"
SLOW = Throttle(1.0, 30, 8.0)  # a job of 60 to 100 steps


@pytest.mark.long  # tests/README.md, Time
def test_same_gradient_through_a_join(tmp_path: Path, zk_hosts: str) -> None:
    """2 workers, then 3: uneven batches, every dtype, clipping, the schedule, a single trace."""
    out = tmp_path / "out"
    out.mkdir()
    script = [SCRIPTS / "tf_api.py", "--out", str(out)]
    with started(tmp_path, zk_hosts, *script, np=2, max_np=3, throttled=SLOW) as job:
        job.wait_for_step(1, START_S)
        job.scale(3)
        job.wait_for_size(3, START_S)
        job.hurry()
        assert job.end() == 0, job.describe("it failed")

    steps, finals = read_steps(out)
    assert len(finals) == 3
    assert all(final == finals[0] for final in finals)
    assert finals[0]["steps"] == len(steps)
    assert finals[0]["traces"] == 1

    seen: dict[int, list[int]] = defaultdict(list)
    wide, brain, rate = [0.0] * SAMPLES, 1.0, 1.0
    for step in range(len(steps)):
        rows = steps[step]
        assert [row["rate"] for row in rows] == pytest.approx([rate] * len(rows), rel=1e-4), step
        trained = [index for row in rows for index in row["indices"]]
        seen[rows[0]["epoch"]] += trained
        clipped = min(1.0, CLIP / len(trained) ** -0.5)  # the norm of the step's mean gradient
        for index in trained:
            wide[index] -= rows[0]["rate"] * clipped / len(trained)
        brain -= rate
        rate *= 0.99
    assert {epoch: sorted(indices) for epoch, indices in seen.items()} == {
        epoch: list(range(SAMPLES)) for epoch in range(EPOCHS)
    }
    final = finals[0]["final"]
    assert final["wide:0"] == pytest.approx(wide, rel=1e-5, abs=1e-7)
    assert final["unused:0"] == [1.0, 1.0, 1.0]
    assert final["narrow:0"][0] == pytest.approx(1 + (brain - 1) / 4, rel=3e-2)
    assert final["brain:0"][0] == pytest.approx(brain, rel=1e-1)


@pytest.mark.long
def test_all_skip_a_step_that_overflows_on_one(tmp_path: Path, zk_hosts: str) -> None:
    """LossScaleOptimizer: the scale is the same everywhere, on a newcomer too."""
    out = tmp_path / "out"
    out.mkdir()
    script = [SCRIPTS / "tf_uneven.py", "--out", str(out), "--what", "inf"]
    with started(tmp_path, zk_hosts, *script, np=2, max_np=3, throttled=SLOW) as job:
        job.wait_for_step(1, START_S)
        job.scale(3)
        job.wait_for_size(3, START_S)
        job.hurry()
        assert job.end() == 0, job.describe("it failed")

    steps, finals = read_steps(out)
    assert len(finals) == 3
    assert all(final == finals[0] for final in finals)
    assert np.isfinite(finals[0]["final"]).all()
    bad = [step for step, rows in steps.items() if any(row["bad"] for row in rows)]
    assert len(bad) == 4, "once an epoch"
    for step, rows in sorted(steps.items()):
        assert len({row["scale"] for row in rows}) == 1, (step, rows)
        if step in bad and step + 1 in steps:
            assert sum(row["bad"] for row in rows) == 1
            assert steps[step + 1][0]["scale"] == rows[0]["scale"] / 2, (step, rows)


def test_a_gradient_that_only_some_have(tmp_path: Path, zk_hosts: str) -> None:
    """No wait without an end: each worker is output."""
    options = ["--out", str(tmp_path), "--what", "none"]
    script = SCRIPTS / "tf_uneven.py"
    with started(tmp_path, zk_hosts, script, *options, np=2, max_np=2) as job:
        assert job.end(START_S) != 0, job.describe("it ended well")
        output = job.output()
    assert "the same variables must have a gradient on all: here none for sometimes" in output
    assert "the same variables must have a gradient on all: here each has one" in output
    assert "Traceback" not in output, output


def test_all_sessions_stop_where_one_hook_asks(tmp_path: Path, zk_hosts: str) -> None:
    """The last checkpoint is written before they close."""
    script = [SCRIPTS / "tf_stopping.py", "--out", str(tmp_path / "saved")]
    with started(tmp_path, zk_hosts, *script, np=2, max_np=2) as job:
        assert job.end(START_S) == 0, job.describe("it failed")
        output = job.output()
    # A fetch of the step may come before or after the update.
    assert len(re.findall(r"after step (2[12]) with \[0, \1\]", output)) == 2, output


@pytest.mark.chaos
@pytest.mark.parametrize("example", ["listing", "loop", "keras"])
def test_examples_learn_through_changes(example: str, tmp_path: Path, zk_hosts: str) -> None:
    """2 -> 3 -> 1 workers, and one of three killed with -9; 95 % of the held-out digits."""
    script = ROOT / "examples" / f"tensorflow_{example}.py"
    words = [throttle.SCRIPT, str(script), "--epochs", "25"]
    with started(tmp_path, zk_hosts, *words, np=2, max_np=3, throttled=Throttle(0.1)) as job:
        job.environment |= {"TF_CPP_MIN_LOG_LEVEL": "2"}
        job.wait_for_step(5, START_S)
        job.scale(3)
        now = job.wait_for_size(3, START_S)
        victim = next(m for m in now["members"] if m["id"] != now["leader"])
        os.kill(victim["pid"], signal.SIGKILL)
        job.wait(lambda now: now["generation"] > 2, "a repair")
        job.scale(1)
        job.wait_for_size(1, START_S)
        job.hurry()
        assert job.end(300.0) == 0, job.describe("it failed")
        found = re.findall(r"^.*accuracy (0\.\d+) .*steps", job.output(), flags=re.MULTILINE)
        assert found, job.describe("it said nothing")
        assert float(found[-1]) >= 0.95, job.describe("it learned too little")


@pytest.mark.chaos
@pytest.mark.parametrize("mode", ["function", "fit", "graph"])
def test_a_stopped_job_is_resumed(mode: str, tmp_path: Path, zk_hosts: str) -> None:
    """With more workers, at the exact sample."""
    saved = str(tmp_path / "saved")
    environment = {"EDL_TEST_MODE": mode}
    words = ["--checkpoint", saved, "--every", "2"]
    first = tmp_path / "first"
    first.mkdir()
    with scenario(
        first, zk_hosts, np=1, script=TF_COUNTING, more=words, environment=environment
    ) as job:
        job.wait_for_step(20, START_S)
        job.edl("stop")
        assert job.end() == 143, job.describe("it failed")
    second = tmp_path / "second"
    second.mkdir()
    resume = {"options": ["--resume"], "script": TF_COUNTING, "more": words}
    with scenario(second, zk_hosts, np=2, environment=environment, **resume) as job:
        job.wait_for_step(25, START_S)
        reports = job.prove(workers=2)
        assert job.events("resumed")[0]["step"] >= 20
    if mode == "fit":  # metrics are averaged, so all see the same
        mine, theirs = ([epoch["loss"] for epoch in report["epochs"]] for report in reports)
        assert mine == theirs
        assert len(set(mine)) > 1


@pytest.mark.chaos
def test_beside_a_pytorch_job(tmp_path: Path, zk_hosts: str) -> None:
    """Under one ZooKeeper, each unaware of the other; both are changed."""
    with contextlib.ExitStack() as stack:
        jobs = []
        for number, script in enumerate([TF_COUNTING, SCRIPTS / "counting.py"]):
            directory = tmp_path / str(number)
            directory.mkdir()
            job = scenario(directory, zk_hosts, np=1, max_np=2, script=script, samples=480)
            jobs.append(stack.enter_context(job))
        for job in jobs:
            job.wait_for_step(3, START_S)
            job.scale(2)
        for job in jobs:
            job.wait_for_size(2, START_S)
        for job in jobs:
            job.prove(workers=2)
