"""A job chooses its global batch while it trains, as its policy lets it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from paths import SCRIPTS
from scenario import scenario

from edl.testing.throttle import Throttle

pytestmark = [pytest.mark.integration, pytest.mark.slow]

POLICY = """
[batch]
global_batch = [8, 40]
"""
ALIKE = Throttle(0.1, 10**6)  # each step takes as long, so the largest batch is the best


@pytest.mark.long  # it waits for several choices; tests/README.md, Time
@pytest.mark.parametrize(
    ("script", "mode"),
    [("counting.py", ""), ("tf_counting.py", "eager"), ("tf_counting.py", "fit")],
)
def test_it_grows_on_all_workers_and_outlives_its_leader(
    script: str, mode: str, tmp_path: Path, zk_hosts: str
) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(POLICY)
    settings: dict[str, Any] = {
        "script": SCRIPTS / script,
        "throttled": ALIKE,
        "samples": 4800,
        "options": ["--policy", str(file), "--noise-scale-steps", "5"],
        "more": ["--mode", mode] if mode else [],
        "environment": {"EDL_TEST_SIGNAL": "0.1"},  # a noise scale of 100 samples
    }
    with scenario(tmp_path, zk_hosts, np=2, max_np=3, **settings) as job:
        job.wait_for_step(3)
        assert job.status()["global_batch"] == 8
        job.wait(lambda now: now["global_batch"] == 16, "a larger batch")
        job.process(job.leader()).kill()
        job.wait(lambda now: now["global_batch"] > 16, "a larger one, of another leader")
        job.scale(3)
        now = job.wait_for_size(3)
        assert now["global_batch"] > 16
        first, second = job.events("global_batch")[:2]
        assert (first["before"], first["batch"]) == (8, 16)
        assert first["reason"] == "the global batch becomes 16: one size of it tells nothing"
        assert second["batch"] > 16
        refused = tmp_path / "other.toml"
        refused.write_text(POLICY.replace("40", "80"))
        said = job.try_edl("policy", "set", str(refused))
        assert said.returncode == 2
        assert "has other [batch] or [learning_rate] than the job began with" in said.stderr
        job.prove(workers=3)
