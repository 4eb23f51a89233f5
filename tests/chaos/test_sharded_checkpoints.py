"""Workers die while all of them write a checkpoint together; then all die, and the job goes on."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest
from logical_runs import EPOCH, LOGICAL, alone, digests
from test_tensorflow_logical import EPOCH as TF_EPOCH
from test_tensorflow_logical import SCRIPT as TF_LOGICAL
from test_tensorflow_logical import alone as alone_in_tensorflow

from edl.checkpoint import format as files
from edl.testing.job import Job, started
from edl.testing.throttle import Throttle

pytestmark = [pytest.mark.chaos]

START_S = 240.0  # for workers that import TensorFlow, and train
PACE = Throttle(0.2, 100_000)  # in each iteration
WORKERS, LOGICAL_WORKERS = 3, 4


def disturbed(job: Job, script: Path, steps: int, saved: Path) -> int:
    drawn, step, in_parts = random.Random(46), 0, 0
    while step + 14 < steps:
        step = job.wait_for_step(step + drawn.randint(4, 7), START_S)["step"]
        os.kill(drawn.choice(sorted(job.workers(script))), signal.SIGKILL)
        step = job.wait_for_step(step + drawn.randint(4, 7), START_S)["step"]
        before = len(job.events("resumed"))
        for pid in job.workers(script):
            os.kill(pid, signal.SIGKILL)
        left = files.checkpoint_files(saved)[0]
        in_parts += any(one.file.startswith("part-") for one in files.read_records(left).values())
        job.wait(lambda _, seen=before: len(job.events("resumed")) > seen, "it resumes", START_S)
        resumed = job.events("resumed")[-1]
        assert resumed["path"] == str(left), job.describe("it went on from another one")
        step = resumed["step"]
    return in_parts


def survives(directory: Path, zookeeper: str, script: Path, steps: int, *words: str) -> None:
    """Run a job that saves in parts all the time, and kill its workers."""
    saved, out = directory / "saved", directory / "out"
    out.mkdir()
    more = ["--out", out, *words, "--checkpoint", saved, "--every", "0.3", "--sharded"]
    options = ["--logical", str(LOGICAL_WORKERS)]
    with started(
        directory,
        zookeeper,
        *[script, *map(str, more)],
        np=WORKERS,
        max_np=WORKERS,
        options=options,
        throttled=PACE,
    ) as job:
        assert disturbed(job, script, steps, saved) >= 2, job.describe("none was in parts")
        job.hurry()
        assert job.end() == 0, job.describe("it failed")


def test_in_pytorch(tmp_path: Path, zk_hosts: str) -> None:
    epochs = 8
    expected = alone(tmp_path / "alone", LOGICAL_WORKERS, epochs)
    steps = epochs * EPOCH[LOGICAL_WORKERS]
    survives(tmp_path, zk_hosts, LOGICAL, steps, "--epochs", str(epochs))
    assert digests(tmp_path / "out") == expected


@pytest.mark.parametrize("way", ["function", "fit"])
def test_in_tensorflow(way: str, tmp_path: Path, zk_hosts: str) -> None:
    epochs = 16
    expected = alone_in_tensorflow(tmp_path / "alone", way, epochs)
    words = ["--way", way, "--epochs", str(epochs)]
    survives(tmp_path, zk_hosts, TF_LOGICAL, epochs * TF_EPOCH, *words)
    assert digests(tmp_path / "out") == expected
