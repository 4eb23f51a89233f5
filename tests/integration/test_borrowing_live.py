"""Idle slots are borrowed by a job, and come back in time, whatever happens meanwhile."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from horovodrun import WORKER, HorovodrunScenario
from paths import SCRIPTS
from scenario import Scenario, scenario

from edl.testing.job import EDL, WAIT_S

pytestmark = [pytest.mark.integration, pytest.mark.slow]

LATE_S = 5.0  # a busy machine may see it so much later than it was

UNDER_HOROVODRUN: dict[str, Any] = {"kind": HorovodrunScenario, "shield": WORKER}


def begin_reclaim(job: Scenario, *words: str) -> subprocess.Popen[bytes]:
    """`edl reclaim` in the background; it is written down."""
    command = [EDL, "reclaim", job.name, *words]
    process = job._spawn(command, job.directory / "reclaim.output")
    job.until(
        lambda: any("edl reclaim" in e["reason"] for e in job.events("desired")),
        "word of the reclaim",
    )
    return process


def ended(job: Scenario, process: subprocess.Popen[bytes]) -> str:
    """Wait for the end of `edl reclaim`, and return what it has printed."""
    assert process.wait(WAIT_S) == 0, job.describe("edl reclaim failed")
    return (job.directory / "reclaim.output").read_text()


@pytest.mark.parametrize(
    ("script", "more"),
    [
        ("counting.py", {"options": ["--slots", "3"]}),
        *(
            pytest.param(script, more, marks=pytest.mark.long)
            for script, more in (
                ("tf_counting.py eager", {"options": ["--slots", "3"]}),
                ("tf_counting.py fit", {"options": ["--slots", "3"]}),
                ("counting.py", UNDER_HOROVODRUN),
            )
        ),
    ],
)
def test_they_come_back_although_the_leader_is_killed(
    script: str, more: dict[str, Any], tmp_path: Path, zk_hosts: str
) -> None:
    script, _, mode = script.partition(" ")
    settings: dict[str, Any] = {"script": SCRIPTS / script, **more}
    settings |= {"more": ["--mode", mode]} if mode else {}
    with scenario(tmp_path, zk_hosts, np=1, max_np=3, **settings) as job:
        job.wait_for_step(3)
        said = job.edl("borrow", "--slots", "5")
        assert "1 -> 3 workers" in said
        now = job.wait_for_size(3)
        assert sum(now["borrowed"].values()) == 2
        job.wait_for_progress(3)
        leader = job.process(job.leader())
        reclaim = begin_reclaim(job, "--within", "60")
        leader.kill()
        assert "has given back 2 slots" in ended(job, reclaim)
        now = job.wait_for_size(1)
        assert (now["borrowed"], now["reclaims"]) == ({}, [])
        (back,) = job.events("reclaimed")
        assert (back["slots"], back["within_s"]) == (2, 60.0)
        assert back["after_s"] < 60.0
        job.prove(workers=1)


@pytest.mark.long  # the membership machine has it at every moment
@pytest.mark.parametrize("more", [{}, UNDER_HOROVODRUN])
def test_who_does_not_leave_in_time_is_given_up(
    more: dict[str, Any], tmp_path: Path, zk_hosts: str
) -> None:
    """A worker's long user code keeps the ring from switching; the others train on without it."""
    within_s = 8.0
    with scenario(tmp_path, zk_hosts, np=2, max_np=3, samples=2400, **more) as job:
        job.wait_for_step(3)
        job.edl("borrow", "--slots", "1")
        job.wait_for_size(3)
        last = next(n for n, m in job.members().items() if m["slot"] == 2)
        process = job.process(last)
        job.stuck.write_text("2")
        job.wait(lambda now: now["quiet_s"] > 1.0, "stand-still")
        reclaim = begin_reclaim(job, "--within", f"{within_s:g}s")
        assert "has given back 1 slot" in ended(job, reclaim)
        assert not process.is_running() or process.status() == "zombie"
        (given_up,) = (e for e in job.events("evicted") if e["worker"] == last)
        assert given_up["reason"].endswith("its slot was to be given back within 8 s")
        (back,) = job.events("reclaimed")
        assert within_s - 2.0 <= back["after_s"] < within_s + LATE_S
        job.stuck.unlink()
        job.wait_for_size(2)
        job.prove(workers=2)


@pytest.mark.long
def test_a_file_and_a_signal_say_it_too(tmp_path: Path, zk_hosts: str) -> None:
    borrowed = tmp_path / "borrowed"
    options = ["--slots", "3", "--borrowed-file", str(borrowed)]

    def write(text: str) -> None:
        new = tmp_path / "new"
        new.write_text(text)
        new.rename(borrowed)

    with scenario(tmp_path, zk_hosts, np=1, max_np=3, options=options, samples=4800) as job:
        job.wait_for_step(3)
        write("many")
        job.until(lambda: "'many', which is not understood" in job.output(), "word of a wrong file")
        write("2")
        job.wait_for_size(3)
        write("1 60")
        job.until(lambda: job.events("reclaimed"), "word of the first")
        job.agent().send_signal(signal.SIGRTMIN)
        now = job.wait_for_size(1)
        assert now["borrowed"] == {}
        job.until(lambda: len(job.events("reclaimed")) == 2, "word of both")
        first, second = job.events("reclaimed")
        assert (first["within_s"], second["within_s"]) == (60.0, 30.0)
        job.prove(workers=1)
