"""A newcomer that does something else, for it counts itself, steps back; the job keeps its size."""

from __future__ import annotations

from pathlib import Path

import pytest
from paths import SCRIPTS

from edl.testing.job import Job, started
from edl.testing.throttle import Throttle

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def _wait_until_gone(job: Job, name: str) -> None:
    job.wait(lambda now: name not in [each["id"] for each in now["members"]], f"{name} gone")


@pytest.mark.parametrize(
    ("framework", "kind"),
    [
        ("torch", "mean"),
        pytest.param("torch", "norm", marks=pytest.mark.long),
        pytest.param("torch", "rate", marks=pytest.mark.long),
        pytest.param("fit", "mean", marks=pytest.mark.long),
        pytest.param("fit", "rate", marks=pytest.mark.long),
    ],
)
def test_it_joins_at_the_start_of_an_epoch(
    framework: str, kind: str, tmp_path: Path, zk_hosts: str
) -> None:
    script = [SCRIPTS / "own_counter.py", framework, kind]
    slowly = Throttle(later_s=0.2)
    with started(tmp_path, zk_hosts, *script, np=2, max_np=3, throttled=slowly) as job:
        job.wait_for_step(3)
        job.scale(3)
        job.wait(lambda now: "steps back" in job.output(), "a newcomer steps back")
        _wait_until_gone(job, "w2")
        job.wait_for_size(3)
        killed = job.plain()
        job.kill(killed)
        _wait_until_gone(job, killed)  # its replacement may be a member before that
        job.wait_for_size(3)
        job.hurry()
        code = job.end()
        story, output = job.describe("it ended otherwise"), job.output()
        joins = job.events("generation")
    assert code == 0, story
    assert "newcomers join this job at the start of an epoch" in output, story
    assert "called edl.mean() at" in output or kind == "rate", story
    assert not job.events("slot_disabled"), story
    finals = [line.partition("final")[2] for line in output.splitlines() if "final" in line]
    assert len(finals) == 3, story
    assert len(set(finals)) == 1, story
    assert sum(bool(each["joined"]) for each in joins) >= 3, story


@pytest.mark.parametrize("framework", ["torch", pytest.param("fit", marks=pytest.mark.long)])
def test_a_count_that_is_never_set_back_costs_no_worker(
    framework: str, tmp_path: Path, zk_hosts: str
) -> None:
    """A newcomer steps back once at most; then each exchange is among those that call it."""
    script = [SCRIPTS / "own_counter.py", framework, "steps"]
    slowly = Throttle(later_s=0.2)
    with started(tmp_path, zk_hosts, *script, np=2, max_np=3, throttled=slowly) as job:
        job.wait_for_step(3)
        job.scale(3)
        for _ in range(2):
            job.wait_for_size(3)
            killed = job.plain()
            job.kill(killed)
            _wait_until_gone(job, killed)
        job.wait_for_size(3)
        job.hurry()
        code = job.end()
        story, output = job.describe("it ended otherwise"), job.output()
    assert code == 0, story
    assert not job.events("slot_disabled"), story
    finals = [line.partition("final")[2] for line in output.splitlines() if "final" in line]
    assert len(finals) == 3, story
    assert len(set(finals)) == 1, story


@pytest.mark.long  # tests/README.md, Time
def test_a_newcomer_that_returns_before_the_others_ends_alone(
    tmp_path: Path, zk_hosts: str
) -> None:
    script = SCRIPTS / "hvd_uneven.py"
    with started(tmp_path, zk_hosts, script, np=2, max_np=3, throttled=Throttle()) as job:
        job.wait_for_step(3)
        job.scale(3)
        job.wait_for_size(3)
        job.hurry()
        code = job.end()
        story, output = job.describe("it ended otherwise"), job.output()
        disabled = job.events("slot_disabled")
    assert code == 0, story
    assert "w2 ended the training: a length that follows from hvd.size()" in output, story
    assert "network" not in output, story
    assert len(disabled) == 1, story
    assert output.count("returned at 900 of 900") == 2, story


@pytest.mark.long  # tests/README.md, Time
def test_the_samplers_of_a_script_follow_the_ring(tmp_path: Path, zk_hosts: str) -> None:
    script = SCRIPTS / "hvd_distributed_sampler.py"
    with started(tmp_path, zk_hosts, script, np=2, max_np=3, throttled=Throttle()) as job:
        job.wait_for_step(3)
        job.scale(3)
        job.wait_for_size(3)
        job.hurry()
        code = job.end()
        story, output = job.describe("it ended otherwise"), job.output()
    assert code == 0, story
    assert all(f"returned: rank {rank} of 3 after 600" in output for rank in range(3)), story
