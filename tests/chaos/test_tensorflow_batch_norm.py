"""Deaths in the exchanges of synchronized batch normalisation, in forward and backward passes.

The model has two such layers, so a step has four exchanges: two in each pass. After each death each
sample counts once, and the moving statistics are the same on all workers.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from fault_scenario import START_S, even, fault, fault_scenario, training

pytestmark = [pytest.mark.chaos]

FAULTS = [
    [fault("exchange", "plain", size=2)],
    [fault("exchange", "leader", size=2, later=1)],
    [fault("exchange", "plain", size=2, later=2)],
    [fault("exchanged", "leader", size=2, later=3)],
    [fault("exchange", "plain", size=3, later=3)],
    [fault("answered", "plain", signal="MISS", later=1), fault("exchanged", "leader", later=1)],
    [fault("answered", "leader", size=2, signal="MISS", later=2)],
    [fault("gradient", "plain", size=2)],
    [fault("averaged", "leader", size=2, signal="MISS")],
]


@pytest.mark.parametrize("mode", ["function", "fit", "eager"])
def test_deaths_in_passes(mode: str, tmp_path: Path, zk_hosts: str) -> None:
    with fault_scenario(
        tmp_path,
        zk_hosts,
        np=3,
        max_np=4,
        faults=FAULTS,
        environment={**training(mode), "EDL_TEST_SYNC": "1"},
        epochs=4,
        more=(),
        throttled=even(0.3),
        end_s=400.0,
    ) as job:
        job.wait_for_step(3, START_S)
        job.scale(4)
        job.wait_for_strikes()
        job.wait_for_ends()
        job.scale(2)  # no more replacements
        for report in job.prove():
            assert report["averages"]
