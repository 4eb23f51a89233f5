"""TensorFlow with logical workers: the same bits after each step, whatever happens to workers."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import forked
import pytest
from logical_runs import digests, preempted
from paths import SCRIPTS

from edl.testing.job import Job, started
from edl.testing.throttle import Throttle

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SCRIPT = SCRIPTS / "tf_logical.py"
START_S = 200.0  # TensorFlow takes its time to be imported
WAYS = ("eager", "function", "fit", "mixed")
EPOCH = 4  # steps: 46 samples, 3 for each of four logical workers
SLOW = Throttle(0.5, 50, 4.0)


def alone(directory: Path, way: str, epochs: int, limit_s: float = START_S) -> dict[int, str]:
    """Return the digests by step of one process without a launcher."""
    directory.mkdir()
    arguments = [SCRIPT, "--out", directory, "--way", way, "--epochs", str(epochs)]
    environment = os.environ | {"EDL_LOGICAL": "4"}
    done = forked.python("tensorflow", arguments, limit_s, env=environment, cwd=directory)
    assert done.returncode == 0, done.stderr
    found = digests(directory)
    assert len(found) == epochs * EPOCH
    assert len({*found.values()}) > len(found) / 2  # LossScaleOptimizer skips its first updates
    return found


@contextlib.contextmanager
def training(
    directory: Path, zk_hosts: str, np: int, *arguments: str, slow: bool = False
) -> Iterator[Job]:
    """Start a job of four logical workers on ``np`` workers, and yield it."""
    out = directory / "out"
    out.mkdir(parents=True)
    command = [SCRIPT, "--out", str(out), *arguments]
    throttled = SLOW if slow else None
    with started(
        directory,
        zk_hosts,
        *command,
        np=np,
        max_np=4,
        options=["--logical", "4", "--exact-audit", "1"],
        throttled=throttled,
    ) as job:
        yield job


def test_a_death_in_a_step_changes_no_bit(tmp_path: Path, zk_hosts: str) -> None:
    """One of two workers dies when it has received the sums of a step, and the other has not."""
    expected = alone(tmp_path / "alone", "function", 2)
    with training(tmp_path, zk_hosts, 2, "--epochs", "2", "--die", "averaged") as job:
        assert job.end(START_S) == 0, job.describe("it failed")
    assert digests(tmp_path / "out") == expected


@pytest.mark.long  # tests/README.md, Time
@pytest.mark.parametrize("point", ["accumulated", "records", "gradient", "reduced", "applied"])
def test_a_death_at_each_point(point: str, tmp_path: Path, zk_hosts: str) -> None:
    expected = alone(tmp_path / "alone", "eager", 2)
    with training(tmp_path, zk_hosts, 3, "--epochs", "2", "--way", "eager", "--die", point) as job:
        assert job.end(START_S) == 0, job.describe("it failed")
        assert len(job.events("generation")) > 1, "nobody died"
    assert digests(tmp_path / "out") == expected


@pytest.mark.long  # tests/README.md, Time
@pytest.mark.parametrize("way", WAYS)
def test_any_number_of_workers(way: str, tmp_path: Path, zk_hosts: str) -> None:
    expected = alone(tmp_path / "alone", way, 2)
    for np in (1, 2, 3, 4):
        with training(tmp_path / str(np), zk_hosts, np, "--way", way) as job:
            assert job.end(START_S) == 0, job.describe("it failed")
        assert digests(tmp_path / str(np) / "out") == expected


@pytest.mark.long  # tests/README.md, Time
@pytest.mark.parametrize("way", WAYS)
def test_through_deaths_and_joins(way: str, tmp_path: Path, zk_hosts: str) -> None:
    """Three workers, of which two are killed, the leader, too; their replacements, and one more."""
    arguments = ("--way", way, "--epochs", "15")
    with training(tmp_path, zk_hosts, 3, *arguments, slow=True) as job:
        job.wait_for_step(2, START_S)
        job.kill(job.plain())
        job.wait_for_step(4, START_S)
        job.wait_for_size(3, START_S)
        job.kill(job.leader())
        job.scale(4)
        job.wait_for_size(4, START_S)
        job.hurry()
        assert job.end(START_S) == 0, job.describe("it failed")
    assert digests(tmp_path / "out") == alone(tmp_path / "alone", way, 15)


@pytest.mark.long  # tests/README.md, Time
@pytest.mark.parametrize("way", ["function", "fit"])
def test_a_preempted_job_goes_on_with_other_workers(
    way: str, tmp_path: Path, zk_hosts: str
) -> None:
    expected = alone(tmp_path / "alone", way, 5)
    out, saved = tmp_path / "out", tmp_path / "saved"
    out.mkdir()
    script = [SCRIPT, "--out", str(out), "--way", way, "--epochs", "5", "--checkpoint", str(saved)]
    options = ["--logical", "4"]
    preempted(
        tmp_path, zk_hosts, script, (2, 3, 1), options, lambda run: 5 * run + 3, SLOW, START_S
    )
    assert digests(out) == expected
