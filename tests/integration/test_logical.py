"""Logical workers with real Horovod: the same bits with any number of workers, through kills."""

from __future__ import annotations

from pathlib import Path

import pytest
from logical_runs import EPOCH, LOGICAL, alone, digests

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
        # All that had samples; the last step of an epoch has those of two.
        audits = [(one["compared"], one["apart"]) for one in job.events("exact_audit")]
        assert audits[0] == (8, 8)
        assert audits[1] in ((8, 8), (2, 2))
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
