"""Deaths in the steps of two optimizers in TensorFlow: in a loop, with tf.function, in fit."""

from __future__ import annotations

from pathlib import Path

import pytest
from fault_scenario import even, fault, survives

pytestmark = [pytest.mark.chaos]

POINTS = ("step", "records", "gradient", "averaged", "reduced", "applied")


def faults(role: str) -> list[list[dict[str, object]]]:
    """Return faults an even and an odd number of steps after the one before: in both of a batch."""
    found = []
    for number, point in enumerate((*POINTS, "records", "reduced")):
        missed = {"signal": "MISS"} if point == "averaged" else {}
        found.append([fault(point, role, after=3 + number % 2, size=3) | missed])
    return found


@pytest.mark.parametrize(
    ("mode", "role"),
    [("eager", "plain"), ("function", "leader"), ("tape", "plain"), ("fit", "any")],
)
def test_each_counts_each_sample_once(mode: str, role: str, tmp_path: Path, zk_hosts: str) -> None:
    environment = {"EDL_TEST_SCRIPT": "tf_counting_several.py", "EDL_TEST_MODE": mode}
    settings = {"faults": faults(role), "environment": environment, "throttled": even(0.3)}
    more = () if mode == "fit" else ("--exchange", "2")
    survives(tmp_path, zk_hosts, np=4, max_np=4, more=more, **settings)
