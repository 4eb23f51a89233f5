"""A model that changes on one worker only: the job ends with worker, step and part, or heals it."""

from __future__ import annotations

from pathlib import Path

import pytest
from paths import SCRIPTS

from edl.testing.job import started

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SPLIT = SCRIPTS / "split.py"
PARTS = {
    "torch": "model.1.weight",
    "tensorflow": "model.sequential/batch_normalization/gamma",
    "fit": "model.sequential/batch_normalization/gamma",
    "graph": "model.weight:0",
}
STEPS = 4  # of an epoch: 24 samples, 3 workers with 2 each


@pytest.mark.parametrize(
    ("framework", "last"),
    [
        pytest.param("torch", True, marks=pytest.mark.long),
        pytest.param("tensorflow", False, marks=pytest.mark.long),
        ("torch", False),
        pytest.param("fit", False, marks=pytest.mark.long),
        pytest.param("fit", True, marks=pytest.mark.long),
        pytest.param("graph", False, marks=pytest.mark.long),
    ],
)
def test_it_ends_with_its_sentence(
    framework: str, last: bool, tmp_path: Path, zk_hosts: str
) -> None:
    """At the end of the epoch in which it happens, be it the last one."""
    script = [SPLIT, framework, *(["--last"] if last else [])]
    with started(tmp_path, zk_hosts, *script, np=3, max_np=3) as job:
        code = job.end()
        story = job.describe("it ended otherwise")
        events = job.events("state_differs")
        output = job.output()
    step = STEPS * (4 if last else 2)
    if framework == "graph":
        step = events[0]["step"]
    sentence = f"the state of w1 differs from that of w0, w2 after step {step}, first in "
    assert code == 1, story
    assert sentence + PARTS[framework] + ". What all share" in output, story
    assert [event["workers"] for event in events] == [["w1"]], story
    assert events[0]["step"] == step, story
    assert "Traceback" not in output, story


@pytest.mark.parametrize(
    ("framework", "last", "groups"),
    [
        ("torch", False, 3),
        pytest.param("tensorflow", False, 3, marks=pytest.mark.long),
        pytest.param("torch", True, 200, marks=pytest.mark.long),
        pytest.param("fit", False, 200, marks=pytest.mark.long),
        pytest.param("fit", True, 200, marks=pytest.mark.long),
        pytest.param("graph", False, 3, marks=pytest.mark.long),
    ],
)
def test_it_is_healed(
    framework: str, last: bool, groups: int, tmp_path: Path, zk_hosts: str
) -> None:
    """It trains on with the weights and the moments of the others, and all end with the same."""
    script = [SPLIT, framework, *(["--last"] if last else [])]
    options = ["--on-divergence", "resync"]
    environment = {"EDL_STATE_CHECK_STEPS": str(groups)}
    with started(
        tmp_path, zk_hosts, *script, np=3, max_np=3, options=options, environment=environment
    ) as job:
        code = job.end()
        story = job.describe("it ended otherwise")
        events = job.events("state_differs")
        generations = job.events("generation")
        output = job.output()
    assert code == 0, story
    assert [event["workers"] for event in events] == [["w1"]], story
    assert events[0]["resynced_from"] == "w0", story
    assert f"first in {PARTS[framework]}; w1 gets the state of w0. What" in output, story
    finals = [line.partition("final ")[2] for line in output.splitlines() if "final " in line]
    assert len(finals) == 3, story
    assert len({*finals}) == 1, story
    assert len(generations) == 1, story
