"""Runs of scripts/logical.py, the digests of states after each step, and preemptions."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import forked
from paths import SCRIPTS

from edl.testing.job import started
from edl.testing.throttle import Throttle

LOGICAL = SCRIPTS / "logical.py"
EPOCH = {4: 13, 8: 7}  # steps, by the number of logical workers: 200 samples, 4 for each of them


def alone(directory: Path, logical: int, epochs: int, limit_s: float = 240.0) -> dict[int, str]:
    """Return the digests by step of one process without a launcher, which nothing disturbs."""
    directory.mkdir()
    environment = os.environ | {"EDL_LOGICAL": str(logical), "OMP_NUM_THREADS": "1"}
    words = [LOGICAL, "--out", directory, "--epochs", str(epochs)]
    done = forked.python("torch", words, limit_s, env=environment, cwd=directory)
    assert done.returncode == 0, done.stderr
    found = digests(directory)
    assert len(set(found.values())) == len(found) == epochs * EPOCH[logical]
    return found


def digests(directory: Path) -> dict[int, str]:
    """Return the digest after each step; that of all workers that made it must be the same."""
    found: dict[int, str] = {}
    for diary in directory.glob("w*"):
        for line in diary.read_text().splitlines():
            step, _, digest = line.partition(" ")
            if len(digest) < 64:
                continue  # the worker was killed while it wrote
            assert found.setdefault(int(step), digest) == digest, f"{diary.name}, step {step}"
    return found


def preempted(
    directory: Path,
    zookeeper: str,
    script: Sequence[str | Path],
    sizes: Sequence[int],
    options: Sequence[str],
    at_step: Callable[[int], int],
    throttled: Throttle,
    limit_s: float = 120.0,
) -> None:
    """Train on ``sizes`` of workers, one after the other; each but the last run is preempted."""
    for run, size in enumerate(sizes):
        of_run = directory / f"run{run}"
        of_run.mkdir()
        words = [*options, *(("--resume",) if run else ())]
        with started(
            of_run, zookeeper, *script, np=size, max_np=4, options=words, throttled=throttled
        ) as job:
            job.wait_for_step(at_step(run), limit_s)
            if run + 1 < len(sizes):
                job.edl("preempt", "--within", "60s")
                assert job.end(limit_s) == 96, job.describe("it was not preempted")
            else:
                job.hurry()
                assert job.end(limit_s) == 0, job.describe("it failed")
