"""The disk under the state directory is full, where the logs of the workers are."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from scenario import scenario

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a state directory on a disk of 4 MB."""
    state = tmp_path / "state"
    state.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "edl-test", state], check=True)
    try:
        yield state
    finally:
        subprocess.run(["umount", "--lazy", state], check=True)


def test_workers_train_on_and_say_what_is_missing(
    tmp_path: Path, zk_hosts: str, small_disk: Path
) -> None:
    with scenario(tmp_path, zk_hosts, np=2, more=["--talk", "1000"]) as job:
        job.wait_for_step(5)
        before = job.members("w0", "w1")
        filling = small_disk / "filling"
        with contextlib.suppress(OSError), filling.open("wb") as file:
            while True:
                file.write(bytes(4096))
        job.until(lambda: len(job.events("log_failed")) == 2, "word of both logs")
        job.wait_for_progress()
        assert job.members("w0", "w1") == before, job.describe("somebody died")
        filling.unlink()
        logs = small_disk / "edl" / "jobs" / job.name / "logs"
        for name in ("w0", "w1"):
            log = logs / f"{name}.log"
            job.until(lambda log=log: "bytes are left out here" in log.read_text(), f"end of {log}")
        job.until(lambda: len(job.events("log_resumed")) == 2, "word that both go on")
        assert all(event["lost_bytes"] > 0 for event in job.events("log_resumed"))
        job.prove(workers=2)
        failed = {event["worker"]: event for event in job.events("log_failed")}
        assert (failed.keys(), len(job.events("log_failed"))) == ({"w0", "w1"}, 2)
        for name, event in failed.items():
            path = (logs / f"{name}.log").resolve()
            reason = f"{name} trains on without its log: No space left on device: {path}"
            assert (event["path"], event["reason"]) == (str(path), reason)
            assert event["disk"] == str(small_disk.resolve())


def test_a_log_is_bounded(tmp_path: Path, zk_hosts: str) -> None:
    settings = {"EDL_LOG_MB": "1"}
    with scenario(tmp_path, zk_hosts, np=1, environment=settings, more=["--talk", "10000"]) as job:
        job.wait_for_step(5)
        job.prove(workers=1)
        logs = tmp_path / "state" / "edl" / "jobs" / job.name / "logs"
        sizes = {path.name.partition(".")[2]: path.stat().st_size for path in logs.glob("*.log*")}
        assert sizes.keys() == {"log", "log.1"}
        assert 1e6 <= sizes["log.1"] < 5e6, "0.5 s of output beyond the limit"
        shown, steps = job.output(), job.epochs * job.samples // job.batch_size
        assert "nobody read it in time" in shown or shown.count("talks") == steps
