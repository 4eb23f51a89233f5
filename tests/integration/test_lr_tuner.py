"""A learning rate that is tuned: the same on all workers, whoever comes and goes."""

from __future__ import annotations

from pathlib import Path

import pytest
from churned import agreed_rows, through_a_join_and_a_kill
from paths import SCRIPTS

from edl.testing.job import started
from edl.testing.throttle import Throttle

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.mark.long  # on loopback rings in `make test`
def test_all_tune_alike_through_a_join_a_kill_and_a_restart(tmp_path: Path, zk_hosts: str) -> None:
    script = [SCRIPTS / "lr_tuner.py", "--out", str(tmp_path)]
    with started(tmp_path, zk_hosts, *script, np=2, max_np=3, throttled=Throttle()) as job:
        resumed = through_a_join_and_a_kill(job, 25, restarts=True)
    rows = agreed_rows(tmp_path)
    rates = [row[1] for _, row in rows.items()]
    assert rates[0] == pytest.approx(0.001)  # a tenth of what is given
    assert max(rates) > 0.003
    assert rates[-1] == 0.0
    assert len({row[2] for row in rows.values()}) > 2
    # The checkpoint knew what had been measured.
    assert not [
        where
        for where, row in rows.items()
        if where[0] >= resumed and row[2] == "nothing is measured yet"
    ]
