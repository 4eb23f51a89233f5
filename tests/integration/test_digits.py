"""The digits example as a job: equal weights, true answers of `edl status`, leaving in peace."""

from __future__ import annotations

import os
import re
import signal
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import forked
import pytest
from paths import DIGITS

from edl.testing import throttle
from edl.testing.job import Job, Status, started
from edl.testing.throttle import Throttle

pytestmark = [pytest.mark.integration, pytest.mark.slow]

STEP_S = 0.1


@pytest.mark.long  # `make test` counts samples instead: test_counting.py
def test_digits_while_workers_leave_and_join(tmp_path: Path, zk_hosts: str) -> None:
    """3 workers; SIGTERM to a follower, SIGTERM to the leader, then `edl scale` to 4 and to 3."""
    digests = tmp_path / "digest"
    words = [throttle.SCRIPT, str(DIGITS), "--epochs", "20", "--digest", str(digests)]
    with started(tmp_path, zk_hosts, *words, np=3, max_np=4, throttled=Throttle(STEP_S)) as job:
        now = true_status(job, 3)
        followers = [worker for worker in now["members"] if worker["id"] != now["leader"]]
        os.kill(followers[-1]["pid"], signal.SIGTERM)
        now = true_status(job, 2)
        (leader,) = [worker for worker in now["members"] if worker["id"] == now["leader"]]
        os.kill(leader["pid"], signal.SIGTERM)
        true_status(job, 1)
        job.scale(4)
        true_status(job, 4)
        job.scale(3)
        true_status(job, 3)
        job.hurry()
        assert job.end() == 0, job.describe("it failed")

        assert accuracy(job) >= 0.95
        complaint = re.search(r"traceback|error|exception|warning", job.output(), re.IGNORECASE)
        assert complaint is None, job.describe(f"it says {complaint}")
        assert not job.events("worker_failed")
        left = [worker for event in job.events("generation") for worker in event["left"]]
        assert len(left) == 3, left
        switches = job.events("switch")
    assert [event["world_size"] for event in switches][:2] == [2, 1]
    assert switches[-1]["world_size"] == 3
    equal_weights(digests, [event["generation"] for event in switches])
    for event in switches:
        check_parts(event)


@pytest.mark.parametrize("num_workers", ["0", pytest.param("2", marks=pytest.mark.long)])
def test_digits_are_learned_without_a_launcher(num_workers: str) -> None:
    words = [DIGITS, "--epochs", "8", "--num-workers", num_workers]
    done = forked.python("torch", words, 300.0)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    assert float(done.stdout.splitlines()[-1].split()[1]) >= 0.95, done.stdout


def true_status(job: Job, size: int) -> Status:
    """Wait for ``size`` workers; then the status must name them, and one of them as leader."""
    job.wait_for_size(size)
    # A worker that has left the job still needs a moment to end its process.
    now = job.wait(
        lambda now: {member["pid"] for member in now["members"]} == job.workers(DIGITS),
        f"status that names the {size} living workers",
        timeout_s=15.0,
    )
    assert sorted(member["rank"] for member in now["members"]) == list(range(size))
    assert now["leader"] in [member["id"] for member in now["members"]]
    assert f"{now['leader']} on " in job.edl("status")
    return now


def equal_weights(prefix: Path, generations: Sequence[int]) -> None:
    """At the first batch of each generation, and at the end, all its workers logged one sha256."""
    weights = defaultdict(list)  # (generation, step) -> (size of the ring, sha256 of the weights)
    for path in prefix.parent.glob(f"{prefix.name}.*"):
        for line in path.read_text().splitlines():
            generation, step, _rank, size, sha256 = line.split()
            weights[int(generation), int(step)].append((int(size), sha256))
    assert set(generations) <= {generation for generation, _ in weights}
    for (generation, step), answers in weights.items():
        where = f"generation {generation}, step {step}: {answers}"
        assert len(answers) == answers[0][0], where
        assert len(set(answers)) == 1, where


def check_parts(event: dict[str, Any]) -> None:
    """Assert that a switch event has where each old worker's time went."""
    old = [parts for parts in event["workers"].values() if parts["role"] == "old"]
    assert old, event
    for parts in old:
        inner = sum(parts[f"{part}_s"] for part in ("wait", "shutdown", "init", "broadcast"))
        assert 0 < inner <= parts["stall_s"] + 1e-4, parts
        assert parts["median_step_s"] > STEP_S, parts


def accuracy(job: Job) -> float:
    last = re.search(r"accuracy (0\.\d+) epochs", job.output())
    assert last is not None, job.describe("it did not end with its accuracy")
    return float(last[1])
