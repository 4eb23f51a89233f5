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
@pytest.mark.parametrize(
    "script",
    [["lr_tuner.py"], ["keras_lr_tuner.py"], ["keras_lr_tuner.py", "--way", "loop"]],
    ids=["torch", "fit", "loop"],
)
def test_all_tune_alike_through_a_join_a_kill_and_a_restart(
    script: list[str], tmp_path: Path, zk_hosts: str
) -> None:
    name, *way = script
    command = [SCRIPTS / name, "--out", str(tmp_path), *way]
    with started(tmp_path, zk_hosts, *command, np=2, max_np=3, throttled=Throttle()) as job:
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


@pytest.mark.long  # two thirds of a minute; on loopback rings in `make test`
@pytest.mark.parametrize("way", ["fit", "loop"])
def test_who_misses_an_update_has_its_rate_all_the_same(
    way: str, tmp_path: Path, zk_hosts: str
) -> None:
    """Of the optimizer, too: all of the state is compared in each step.

    One that is measured and one that measures another; and on the line to 0, where each update has
    a rate of its own.
    """
    steps = ["40", "41", "300", "301"]
    command = [SCRIPTS / "keras_lr_tuner.py", "--out", str(tmp_path), "--way", way]
    command += ["--miss", *steps]
    compared = {"EDL_STATE_CHECK_STEPS": "1"}
    with started(tmp_path, zk_hosts, *command, np=2, max_np=2, environment=compared) as job:
        assert job.end() == 0, job.describe("it failed")
    rates = [row[1] for row in agreed_rows(tmp_path).values()]
    assert len({path.name for path in tmp_path.glob("missed.*")}) == len(steps)
    assert rates[0] == pytest.approx(0.001)
    assert rates[-1] == 0.0
