"""A worker that is slow for long trains less of each batch, and another one takes its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from paths import SCRIPTS
from scenario import Scenario, scenario

from edl.testing.job import Status
from edl.testing.throttle import Throttle

pytestmark = [pytest.mark.integration, pytest.mark.slow]

CARES = """
[stragglers]
patience_steps = 10
"""


class Uneven(Scenario):
    """Each sample takes 10 ms, and four times as long in slot 1 of the first host, if told so."""

    samples = 24000
    epochs = 1
    batch_size = 8
    throttled = Throttle(0.0, 0, 0.0)

    def begin(self, np: int, max_np: int, min_np: int = 1) -> None:
        (self.directory / "policy.toml").write_text(CARES)
        self.pace = self.directory / "pace"
        self.slow(1.0)
        self.more = [*self.more, "--slow", str(self.pace)]
        self.options = [*self.options, "--policy", str(self.directory / "policy.toml")]
        self.environment = {**self.environment, "EDL_HOST": "a"}
        super().begin(np, max_np, min_np)

    def slow(self, factor: float) -> None:
        new = self.directory / "pace.new"
        new.write_text(f"a:1 {factor} 0.01")
        new.rename(self.pace)

    def hurry(self) -> None:
        self.pace.unlink(missing_ok=True)
        super().hurry()

    def said(self) -> list[str]:
        return [event["reason"] for event in self.events("straggler")]

    def wait_for_word(self, text: str) -> None:
        self.until(lambda: any(text in one for one in self.said()), f"word of {text!r}")


def hosts(now: Status) -> dict[str, int]:
    return {host["name"]: host["training"] for host in now["hosts"]}


@pytest.mark.parametrize(
    ("script", "mode"),
    [
        pytest.param("counting.py", "", marks=pytest.mark.long),
        pytest.param("tf_counting.py", "eager", marks=pytest.mark.long),
        pytest.param("tf_counting.py", "fit", marks=pytest.mark.long),
    ],
)
def test_it_loses_its_share_and_then_its_place(
    script: str, mode: str, tmp_path: Path, zk_hosts: str
) -> None:
    settings: dict[str, Any] = {"script": SCRIPTS / script, "kind": Uneven}
    settings |= {"more": ["--mode", mode]} if mode else {}
    settings |= {"options": ["--slots", "4"]}
    with scenario(tmp_path, zk_hosts, np=3, max_np=3, **settings) as job:
        job.wait_for_step(5)
        before = job.members()
        slow = next(name for name, member in before.items() if member["slot"] == 1)
        job.slow(4.0)
        job.wait_for_word(f"{slow} computes at 0.")
        job.wait_for_word(f"{slow} is replaced on host a")
        leader = job.leader()
        job.process(leader).kill()
        job.until(lambda: slow not in job.members(), f"{slow} to leave")
        job.wait_for_size(3)
        answers = {f"{slow} is replaced with the next switch"}
        answers |= {f"{slow} is not training in this job"} if leader == slow else set()
        drained = [e["reason"] for e in job.events("drain") if e["worker"] == slow]
        story = [f"{e['step']} {e['kind']} {e['reason']}" for e in job.events()]
        assert len(drained) == 1, story
        assert answers.issuperset(drained), story
        job.prove(workers=3)
