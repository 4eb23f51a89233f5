"""A job with logical workers is preempted again and again, and resumed with other numbers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from logical_runs import LOGICAL, alone, digests
from test_tensorflow_logical import EPOCH, SCRIPT, START_S
from test_tensorflow_logical import alone as alone_in_tensorflow

from edl.job.run import HALTED_EXIT
from edl.testing.job import started
from edl.testing.throttle import Throttle

pytestmark = [pytest.mark.chaos]


MOST = 4  # workers
REST_S = 600.0  # for the steps after the last preemption
PACE = Throttle(0.4, 100_000)  # in each iteration: a step takes 0.8 to 3.2 s


def preempted(
    directory: Path, zookeeper: str, script: Sequence[object], logical: int, times: int
) -> None:
    """Run a script to its end, preempted on the way; each run has another size."""
    drawn, size, step = random.Random(46), 0, 0
    words = [*script, "--checkpoint", str(directory / "saved"), "--sharded"]
    for run in range(times + 1):
        size = drawn.choice([each for each in range(1, MOST + 1) if each != size])
        options = ["--logical", str(logical), *(["--resume"] if run else [])]
        of_run = directory / f"run{run}"
        of_run.mkdir()
        with started(
            of_run, zookeeper, *words, np=size, max_np=MOST, options=options, throttled=PACE
        ) as job:
            if run == times:
                job.hurry()
                assert job.end(REST_S) == 0, job.describe("it failed")
                return
            step = job.wait_for_step(step + drawn.randint(1, 3), START_S)["step"]
            job.edl("preempt", "--within", "60s")
            assert job.end() == HALTED_EXIT, job.describe(f"run {run} was not preempted")


def test_fifty_times(tmp_path: Path, zk_hosts: str) -> None:
    """All steps have the bits of one process that nothing stops; none is made twice or left out."""
    epochs, out = 70, tmp_path / "out"  # 490 steps; preempted fifty times it makes some 130
    expected = alone(tmp_path / "alone", 8, epochs)
    out.mkdir()
    preempted(tmp_path, zk_hosts, [LOGICAL, "--out", str(out), "--epochs", str(epochs)], 8, 50)
    assert digests(out) == expected


def test_fifteen_times_in_tensorflow(tmp_path: Path, zk_hosts: str) -> None:
    epochs, out = 160 // EPOCH, tmp_path / "out"
    expected = alone_in_tensorflow(tmp_path / "alone", "function", epochs)
    out.mkdir()
    words = [SCRIPT, "--out", str(out), "--way", "function", "--epochs", str(epochs)]
    preempted(tmp_path, zk_hosts, words, 4, 15)
    assert digests(out) == expected
