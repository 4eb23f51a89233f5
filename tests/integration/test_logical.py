"""Logical workers with real Horovod: the same bits with any number of workers, through kills."""

from __future__ import annotations

from pathlib import Path

import pytest
from horovodrun import HOROVODRUN, WORKER, HorovodrunScenario
from logical_runs import EPOCH, LOGICAL, alone, digests
from scenario import scenario

from edl.testing.job import started
from edl.testing.throttle import Throttle

pytestmark = pytest.mark.integration

SLOW = Throttle(0.3, 40, 10.0)  # in each iteration, of which a worker has several in a step
OPTIONS = {logical: ("--logical", str(logical)) for logical in EPOCH}


def test_a_join_and_a_kill_change_no_bit(tmp_path: Path, zk_hosts: str) -> None:
    """Two workers, then three that share eight logical workers, then two."""
    expected = alone(tmp_path / "alone", 8, 3)
    out = tmp_path / "out"
    out.mkdir()
    script = [LOGICAL, "--out", str(out), "--epochs", "3"]
    options = [*OPTIONS[8], "--exact-audit", "1"]
    with started(
        tmp_path, zk_hosts, *script, np=2, max_np=3, options=options, throttled=SLOW
    ) as job:
        job.wait_for_step(2)
        job.scale(3)
        job.wait_for_size(3)
        # Its step is trained twice by each; w0 must not die before all have reported that.
        job.wait(lambda _: len(job.events("exact_audit")) == 2, "audit of the join")
        job.kill("w0")
        job.hurry()
        assert job.end() == 0, job.describe("it failed")
        assert [audit["apart"] for audit in job.events("exact_audit")][:2] == [8, 8]
    assert digests(out) == expected


@pytest.mark.long
@pytest.mark.parametrize("logical", EPOCH)
def test_any_number_of_workers(tmp_path: Path, zk_hosts: str, logical: int) -> None:
    """Also with processes that load the samples."""
    expected = alone(tmp_path / "alone", logical, 2)
    for size in (1, 2, 3, 4):
        out = tmp_path / f"out{size}"
        out.mkdir()
        script = [LOGICAL, "--out", str(out), "--loaders", str(size % 2)]
        options = OPTIONS[logical]
        with started(out, zk_hosts, *script, np=size, max_np=size, options=options) as job:
            assert job.end() == 0, job.describe("it failed")
        assert digests(out) == expected


@pytest.mark.long
def test_a_preempted_job_goes_on_with_other_workers(tmp_path: Path, zk_hosts: str) -> None:
    """Three times: 2, 3, 4 workers and 1; the bits are those of a run that nothing stopped."""
    expected = alone(tmp_path / "alone", 8, 4)
    out, saved = tmp_path / "out", tmp_path / "saved"
    out.mkdir()
    script = [LOGICAL, "--out", str(out), "--epochs", "4", "--checkpoint", str(saved)]
    for run, size in enumerate((2, 3, 4, 1)):
        options = [*OPTIONS[8], *(("--resume",) if run else ())]
        directory = tmp_path / f"run{run}"
        directory.mkdir()
        with started(
            directory, zk_hosts, *script, np=size, max_np=4, options=options, throttled=SLOW
        ) as job:
            job.wait_for_step(5 * run + 3)
            if size > 1:
                job.edl("preempt", "--within", "60s")
                assert job.end() == 96, job.describe("it was not preempted")
            else:
                job.hurry()
                assert job.end() == 0, job.describe("it failed")
    assert digests(out) == expected


class UnderHorovodrun(HorovodrunScenario):
    """The script of logical workers under an unmodified elastic `horovodrun`."""

    script = LOGICAL
    epochs = 4
    throttled = SLOW

    def words(self) -> list[str]:
        return ["--out", str(self.reports_in), "--epochs", str(self.epochs)]


@pytest.mark.long
def test_under_horovodrun(tmp_path: Path, zk_hosts: str) -> None:
    """It starts two workers, one dies, and a third one comes: the settings are variables there."""
    expected = alone(tmp_path / "alone", 8, UnderHorovodrun.epochs)
    settings = {"environment": {"EDL_LOGICAL": "8"}, "shield": WORKER, "driver": HOROVODRUN}
    job_directory = tmp_path / "job"
    job_directory.mkdir()
    with scenario(job_directory, zk_hosts, np=2, max_np=4, kind=UnderHorovodrun, **settings) as job:
        job.wait_for_size(2, 180.0)
        job.process("w1").kill()
        job.wait_for_eviction()
        job.scale(3)
        job.wait_for_size(3, 180.0)
        job.hurry()
        assert job.end(180.0) == 0, job.describe("it failed")
    assert digests(job.reports_in) == expected
