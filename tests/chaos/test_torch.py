"""Deaths in steps with loss scaling, clipping and overflows: still as one process trains."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from fault_scenario import Fault, even, fault, fault_scenario
from habits import prove_as_one_process

pytestmark = [pytest.mark.chaos]

SCRIPT = {"EDL_TEST_SCRIPT": "torch_habits.py"}
STEPS = 11  # of an epoch with 3 workers
MISSED = fault("averaged", "plain", signal="MISS", size=3)

FAULTS: dict[str, Sequence[Sequence[Fault]]] = {
    # In the first epoch, and in the second, where gradients overflow.
    "missed": [[MISSED], [MISSED | {"after": STEPS}], [fault("gradient", size=3)]],
    "killed": [
        [fault("gradient")],
        [fault("records", size=2)],
        [fault("reduced", "leader", after=STEPS, size=2)],
        [fault("applied", size=2)],
    ],
}


@pytest.mark.parametrize("name", FAULTS)
def test_as_one_process(name: str, tmp_path: Path, zk_hosts: str) -> None:
    settings = {"faults": FAULTS[name], "environment": SCRIPT, "throttled": even(0.4)}
    with fault_scenario(tmp_path, zk_hosts, np=3, max_np=3, epochs=6, **settings) as job:
        job.wait_for_strikes()
        job.hurry()
        assert job.end() == 0, job.describe("it failed")
    rows = prove_as_one_process(job.reports_in, epochs=6)
    if name == "missed":
        missed = [row for row in rows if "counted" not in row]
        assert {row["epoch"] % 2 for row in missed} == {0, 1}, "an overflow was missed, too"
