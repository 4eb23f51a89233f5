"""Several optimizers: each counts each sample once, whoever comes, leaves or dies."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from paths import SCRIPTS
from scenario import last_line_of, scenario

from edl.testing.throttle import Throttle

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SCRIPT = SCRIPTS / "counting_several.py"
SLOW = Throttle(0.1)


@pytest.mark.long  # `make test` has deaths on loopback rings: property/
def test_a_join_a_leave_and_a_death_between_two_steps(tmp_path: Path, zk_hosts: str) -> None:
    """The second optimizer has its turn with each third batch only, by the script's own count."""
    settings = {"script": SCRIPT, "samples": 730, "throttled": SLOW}
    more = ("--seldom", "3", "--exchange", "2")
    with scenario(tmp_path, zk_hosts, np=2, max_np=3, more=more, **settings) as job:
        job.join_leave_and_die()
        reports = job.prove(workers=2)
    assert all(0 < report["most"] <= job.epochs for report in reports)


@pytest.mark.long  # `make test` trains the digits alone
def test_the_example_alone() -> None:
    last = last_line_of("torch_gan.py", "--epochs", "5")
    found = re.fullmatch(r"off by (\S+) epochs 5 steps (\d+)", last)
    assert found, last
    assert float(found[1]) < 0.15
    assert int(found[2]) == 5 * 57 * 2, "1,797 digits, 32 in a batch, two steps with each"
