"""Workers move between hosts, and a job is profiled, while each sample counts once an epoch."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from horovodrun import DISCOVER, StandinScenario
from scenario import Scenario, scenario

from edl.testing.job import EDL, Status
from edl.testing.throttle import Throttle

pytestmark = [pytest.mark.integration, pytest.mark.slow]

STEP_S = 0.2
WARM_UP_S = 10.0  # for a test on a busy machine to find a newcomer in it
MOVED_S = 150.0  # for newcomers to import their framework on a busy machine


class Hosts(Scenario):
    """A job on host a, with a second agent on this machine that is called b."""

    options = ("--host", "a", "--slots", "3")
    samples = 1920
    _others: Sequence[subprocess.Popen[str]] = ()
    _agents: Sequence[subprocess.Popen[str]] = ()

    def join(self) -> None:
        words = ["join", "--job", self.name, "--host", "b", "--slots", "3"]
        self._agents = [*self._agents, self.start(*words)]
        self.wait(lambda now: "b" in now["hosts"], "host b")

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start a verb in the background; what it prints can be read."""
        started = subprocess.Popen(
            [EDL, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if words[0] != "join" else subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            env=self.environment,
            cwd=self.directory,
            start_new_session=True,
            text=True,
        )
        self._others = [*self._others, started]
        return started

    def end(self, timeout_s: float = 120.0) -> int:
        """Of host a's agent, which need not be the last: that of b waits for its own workers."""
        for agent in self._agents:
            assert agent.wait(timeout_s) == 0, self.describe("edl join failed")
        return super().end(timeout_s)

    def close(self) -> None:
        super().close()
        for process in self._others:
            process.communicate(timeout=10)

    def migrate(self, *words: str) -> subprocess.Popen[str]:
        options = ("--from", "a", "--to", "b", "--timeout", str(MOVED_S))
        return self.start("migrate", self.name, *options, *words)

    def wait_for_hosts(self, *hosts: str) -> Status:
        """Wait until the ring has one worker for each of ``hosts``, and all are in it."""

        def there(now: Status) -> bool:
            return sorted(m["host"] for m in now["members"]) == list(hosts)

        self.wait(there, f"workers on {hosts}", MOVED_S)
        return self.wait_for_size(len(hosts), MOVED_S)


def answer_of(process: subprocess.Popen[str], job: Scenario) -> str:
    """Return the sentence that a verb has ended with, which must be one of success."""
    text, _ = process.communicate(timeout=MOVED_S + 10)
    assert process.returncode == 0, job.describe(text)
    return text


@pytest.mark.long  # `make test` moves workers in test_client.py
def test_all_workers_move_one_by_one_the_leader_too(tmp_path: Path, zk_hosts: str) -> None:
    """Each migration is one switch in which the others stand still for a moment."""
    with scenario(tmp_path, zk_hosts, np=2, max_np=4, kind=Hosts) as job:
        job.wait_for_step(2)
        job.join()
        before = job.status()["generation"]
        first = answer_of(job.migrate("--np", "1"), job)
        assert f"in one switch (generation {before + 1}); the others stood still for" in first
        job.wait_for_hosts("a", "b")
        assert job.leader() == "w0"
        second = answer_of(job.migrate(), job)
        assert f"moved 1 worker of {job.name} from a to b in one switch" in second
        now = job.wait_for_hosts("b", "b")
        assert now["desired"] == {"a": 0, "b": 2}
        print(first, second)
        job.prove(workers=2)
        stalls = [
            parts["stall_s"]
            for switch in job.events("switch")
            for parts in switch["workers"].values()
            if parts["role"] == "old" and switch["generation"] > before
        ]
    assert len(stalls) >= 2
    assert max(stalls) < 5.0  # nobody waited for a newcomer to start


@pytest.mark.long
def test_several_workers_move_in_one_switch(tmp_path: Path, zk_hosts: str) -> None:
    """Two newcomers that are never ready at the same time, on a machine with little to spare."""
    with scenario(tmp_path, zk_hosts, np=3, max_np=5, kind=Hosts) as job:
        job.wait_for_step(2)
        job.join()
        before = job.status()["generation"]
        text = answer_of(job.migrate("--np", "2"), job)
        assert f"in one switch (generation {before + 1})" in text, job.describe(text)
        job.wait_for_hosts("a", "b", "b")
        print(text)
        job.prove(workers=3)


@pytest.mark.long
@pytest.mark.chaos
@pytest.mark.parametrize("victim", ["w0", "w1", "w2"])
def test_a_whole_job_moves_while_a_worker_is_killed(
    victim: str, tmp_path: Path, zk_hosts: str
) -> None:
    """w0 leads, w1 is to leave, w2 is a newcomer that prepares: it dies in its warm-up."""
    with scenario(tmp_path, zk_hosts, np=2, max_np=4, kind=Hosts) as job:
        job.wait_for_step(2)
        if victim == "w2":
            job.throttle(replace(job.throttled, warm_up_s=WARM_UP_S))
        job.join()
        move = job.migrate()
        job.members("w2")
        killed = job.process(victim)
        killed.suspend()  # it changes no more, and what is read of it is true
        if victim == "w2":
            assert job.members("w2")["w2"]["stage"] == "preparing"
            job.throttle(job.throttled)
        killed.kill()
        text = answer_of(move, job)
        assert f"moved 2 workers of {job.name} from a to b" in text
        now = job.wait_for_hosts("b", "b")
        assert now["desired"] == {"a": 0, "b": 2}
        sizes = [len(event["members"]) for event in job.events("generation")]
        assert min(sizes) >= (2 if victim == "w2" else 1), sizes
        print(text)
        job.prove(workers=2)


@pytest.mark.long
def test_a_job_is_profiled_while_it_trains(tmp_path: Path, zk_hosts: str) -> None:
    """Steps that sleep for a known time: the figures are right, and training is not harmed."""
    even = Throttle(STEP_S, later_s=STEP_S)
    with scenario(tmp_path, zk_hosts, np=2, max_np=3, kind=Hosts, throttled=even) as job:
        job.wait_for_step(2)
        words = ("--np", "1..3", "--steps", "25", "--timeout", str(MOVED_S), "--json")
        printed = answer_of(job.start("profile", job.name, *words), job)  # its log, too
        curve = json.loads(printed.splitlines()[-1])
        points = curve["points"]
        assert [point["np"] for point in points] == [1, 2, 3]
        for point in points:
            assert STEP_S < point["step_s"] < 2 * STEP_S, points
            full = job.batch_size * point["np"] / point["step_s"]
            assert 0.8 * full < point["throughput"] <= 1.001 * full, points
        assert job.wait_for_size(2)["desired"] == {"a": 2}
        print(json.dumps(curve))
        job.prove(workers=2)


@pytest.mark.long  # tests/README.md, Time
def test_with_horovodrun_what_is_desired_moves(tmp_path: Path, zk_hosts: str) -> None:
    """Its driver is asked by `edl-discover`, and keeps one of its hosts."""
    here, there = "127.0.0.1", "localhost"
    discover = (*DISCOVER, f"{here}:2", f"{there}:2")
    with scenario(
        tmp_path, zk_hosts, np=2, max_np=3, kind=StandinScenario, discover=discover
    ) as job:
        now = job.wait(lambda now: now["world_size"] == 2, "2 workers")
        assert now["assigned"] == {here: 2}
        for target, np, why in (
            (there, 2, "the driver of horovodrun wants to keep one of them"),
            ("elsewhere", 1, "let edl-discover offer elsewhere to horovodrun"),
        ):
            words = ("--from", here, "--to", target, "--np", str(np))
            refused = job.try_edl("migrate", *words)
            assert (refused.returncode, why in refused.stderr) == (2, True), refused.stderr
        text = job.edl("migrate", "--from", here, "--to", there, "--np", "1")
        assert text.startswith(f"moved 1 worker of {job.name} from {here} to {there} in one switch")
        assert min(len(e["members"]) for e in job.events("generation")) == 2
        job.wait(lambda now: now["assigned"] == {here: 1, there: 1}, "the driver's word")
        job.wait(
            lambda now: sorted(m["host"] for m in now["members"]) == [here, there],
            "the end of the worker that has left",
        )
        job.edl("stop")
        assert job.end() == 0
