"""The counting model in TensorFlow, in all three ways to train: the same deaths as PyTorch's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from ordeal import Fault, fault, ordeal

pytestmark = [pytest.mark.chaos]

MODES = ("function", "fit", "graph")
GROUPS: dict[str, Sequence[Sequence[Fault]]] = {
    "early in a step": [[fault(point, size=2)] for point in ("boundary", "step", "gradient")],
    "late in a step": [[fault(point, size=2)] for point in ("records", "reduced", "applied")],
    "newcomers": [[fault("gradient")], *([fault(p, "new")] for p in ("rehearsed", "built"))],
    "leader, newcomer, worker": [
        [fault("reduced", "leader")],
        [fault("broadcast", "new")],
        [fault("gradient", "plain")],
    ],
    "at the update, two at once": [
        [fault("applied", "plain")],
        [fault("records", "leader", size=3), fault("records", "plain", size=3)],
    ],
    "in the repair of another": [
        [fault("gradient", "plain", size=3)],
        [fault("built", "leader", after=0)],
    ],
    "frozen": [[fault("gradient", "plain", signal="STOP")]],
    "leaves": [[fault("gradient", "leader", signal="TERM")]],
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("group", GROUPS)
def test_deaths(mode: str, group: str, tmp_path: Path, zk_hosts: str) -> None:
    with ordeal(
        tmp_path,
        zk_hosts,
        np=3,
        max_np=3,
        faults=GROUPS[group],
        environment={"EDL_TEST_SCRIPT": "tf_counting.py", "EDL_TEST_MODE": mode},
        end_s=400.0,
    ) as job:
        job.wait_for_step(3, 200.0)  # TensorFlow takes its time to be imported
        job.wait_for_strikes(300.0)
        job.prove()
