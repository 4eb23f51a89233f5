"""Six things happen to a real job, and its page tells of each once: what, why, and what to do."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_shell import shell_of
from spoiled_job import Shown, SpoiledJob

from edl.testing.zookeeper import ensemble

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    where = tmp_path / "disk"
    where.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "edl-test", where], check=True)
    try:
        yield where
    finally:
        subprocess.run(["umount", "--lazy", where], check=True)


@pytest.fixture
def job(tmp_path: Path, disk: Path) -> Iterator[SpoiledJob]:
    servers = tmp_path / "servers"
    servers.mkdir()
    with ensemble(servers, 1) as (server,), shell_of(tmp_path, server.hosts) as shell:
        one = SpoiledJob(shell, server, disk)
        one.begin()
        yield one
        one.end()


def says(shown: Shown, **words: str | tuple[str, ...]) -> None:
    """Fail unless what the page shows has these words, by part: what, why, advice, since."""
    for part, wanted in words.items():
        for one in (wanted,) if isinstance(wanted, str) else wanted:
            assert one in shown[part], (part, one, shown)


@pytest.mark.long  # `unit/test_incidents.py` has the sentences, from events with values
def test_the_page_tells_of_six_incidents_once_each(job: SpoiledJob) -> None:
    slow = job.slow_worker()
    says(slow, what=("All workers waited for worker", "on host b", "times as long as the others"))
    says(slow, why="Something else ran on host b", advice=("`top`", "`edl drain j "))

    away, back = job.zookeeper_outage()
    says(away, what=("ZooKeeper has not answered this page for", "no worker can join or leave"))
    says(away, why=f"No server ran at {job.server.hosts}", advice="`edl zookeeper status`")
    says(away, since=("of 2 workers", "after the last that ZooKeeper knows"))
    says(back, what="ZooKeeper did not answer for", why="No server ran at", advice="the log of")
    says(back, since=("Training went on meanwhile, from step", "ZooKeeper answered again."))
    assert back["until_s"] > back["at_s"]

    full, free = job.full_disk()
    says(
        full,
        what=(f"The disk at {job.disk} on host ", " ran out of space; "),
        why="No space left on device",
    )
    says(full, advice=(f"`df -h {job.disk}`", "Checkpoints and logs then go on by themselves"))
    says(free, since="The checkpoint of step")

    killed = job.killed_worker()
    says(killed, what="was killed by signal 9 (SIGKILL), after step", why="from outside of edl")
    says(killed, advice=("`dmesg -T | grep -i oom`", "`edl logs j "))
    says(killed, since=("went on from step", "joined"))

    frozen, woken = job.frozen_host()
    says(frozen, what=("on host b", "after step"), why="all of host b was stopped")
    says(frozen, advice=("Look whether host b answers: `ping`", "`kill -CONT`"))
    says(woken, since=("The other worker went on from step", "joined"))

    wrong = job.wrong_learning_rate()
    says(wrong, what="The loss ", why="the learning rate, which rose from 0.05 to 30 at about step")
    says(wrong, advice=("`edl stop j`", "`edl checkpoint list`", "the learning rate of before"))
    assert job.page()["header"]["words"] == "training, with a wrong loss"

    shown = job.page()["incidents"]
    story = json.dumps([*shown, *job.shell.events()], indent=1)
    assert Counter(one["kind"] for one in shown) == Counter(
        [
            "slow_worker",
            "zookeeper_back",
            full["kind"],
            "worker_failed",
            woken["kind"],
            "loss_spike",
        ]
    ), story
    assert [one["tone"] for one in shown] == ["bad", *["over"] * 5], story


@pytest.mark.long  # the start and the end of a job, in `test_cli_jobs.py`
def test_nothing_is_told_of_a_job_that_nothing_happens_to(job: SpoiledJob) -> None:
    job.until_trained(20)
    assert job.page()["incidents"] == []
