"""The soaks of clusters that borrow their hosts from a real Slurm and a real Ray, in short.

`make cluster-soak ARGS="--fleet slurm"` does half an hour, `make fleet-outages` ten minutes each.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster_soak import soak
from fleet_outages import outages

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.long]

FLEETS = ("slurm", "ray")


@pytest.mark.parametrize("fleet", FLEETS)
def test_users_and_kills_of_the_engine_too(fleet: str, tmp_path: Path) -> None:
    done = soak(tmp_path, minutes=1.5, seed=1, every_s=1.5, fleet=fleet)
    assert sum(done["kills"].values()) > 5
    assert done["leases"] > 2


@pytest.mark.parametrize("fleet", FLEETS)
def test_no_job_notices_that_the_head_of_the_engine_dies(fleet: str, tmp_path: Path) -> None:
    done = outages(tmp_path, minutes=0.5, fleet=fleet)
    assert done["kills"] > 1
