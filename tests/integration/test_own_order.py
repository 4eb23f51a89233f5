"""A data set that the script orders itself is the same on all workers, or the job ends."""

from __future__ import annotations

from pathlib import Path

import pytest
from paths import SCRIPTS

from edl.testing.job import started

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def test_all_draw_one_order(tmp_path: Path, zk_hosts: str) -> None:
    with started(tmp_path, zk_hosts, SCRIPTS / "own_order.py", "shuffle", np=2, max_np=2) as job:
        code, output = job.end(), job.output()
    assert code == 0, output
    assert output.count("counted [0, 0, 0, 96]") == 2, output


@pytest.mark.long
def test_orders_by_rank_are_refused_at_the_epoch_s_start(tmp_path: Path, zk_hosts: str) -> None:
    with started(tmp_path, zk_hosts, SCRIPTS / "own_order.py", "rank", np=2, max_np=2) as job:
        code, output = job.end(), job.output()
        differing = job.events("state_differs")
    assert code != 0, output
    assert [event["step"] for event in differing] == [12], output  # no step of epoch 1 was made
    assert "w1 has another sample" in output, output
