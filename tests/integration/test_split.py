"""A model that changes on one worker only ends the job, with worker, step and part named."""

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
