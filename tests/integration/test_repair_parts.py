"""The event log says where the time of a recovery went."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scenario import Scenario, check_repair, scenario

pytestmark = [pytest.mark.integration, pytest.mark.slow]

OPEN_S = 20.0  # no session ends by itself on a busy machine, and makes somebody else lead


@pytest.mark.long  # Scenario.join_leave_and_die looks at them in `make test`
def test_the_parts_of_a_repair(tmp_path: Path, zk_hosts: str) -> None:
    with scenario(tmp_path, zk_hosts, np=3, session_s=OPEN_S) as job:
        job.wait_for_step(5)
        for role in ("plain", "leader"):
            job.wait_for_size(3)
            before = max(event["generation"] for event in job.events("generation"))
            with contextlib.nullcontext() if role == "plain" else frozen(job.agent_pid):
                job.process(job.leader() if role == "leader" else job.plain()).kill()
                repair, parts_by_worker = repaired(job, before)
            old_term = max(e["term"] for e in job.events("generation") if e["generation"] <= before)
            assert len(parts_by_worker) == 2, repair
            assert repair["failures"].keys() == parts_by_worker.keys(), (
                "each survivor says what it saw"
            )
            assert all(repair["failures"].values()), repair
            for parts in parts_by_worker.values():
                check_repair(parts)
            elections = [parts["election_s"] for parts in parts_by_worker.values()]
            if repair["term"] == old_term:
                assert role == "plain"
                assert elections == [0.0, 0.0]
            else:
                assert max(elections) > 0.0
        job.wait_for_size(3)
        job.prove()


@contextlib.contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Stop the agent, which may see a death before the workers: then another leads at once."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def repaired(job: Scenario, before: int) -> tuple[dict[str, Any], dict[str, dict[str, float]]]:
    """Return the generation after ``before``, and what its workers report of the switch."""
    job.wait(lambda now: now["generation"] > before, "repair")
    repair = next(e for e in job.events("generation") if e["generation"] > before)
    return repair, job.switch_to(repair["generation"])["workers"]
