"""A worker dies while others cannot report: they are waited for, and go on."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
from hosts import on_hosts
from net import Net
from scenario import scenario

from edl.testing.job import Status

pytestmark = [pytest.mark.integration, pytest.mark.slow]

BACK_S = 120.0
SWITCH_S = 3.0
OPEN_S = 20.0  # no session ends by itself on a busy machine


@pytest.mark.long  # property/test_membership_machine.py in `make test`
def test_a_death_while_the_sessions_of_all_are_over(tmp_path: Path) -> None:
    """Who comes back first leads, and the others answer on their ports."""
    with (
        Net("zk", "a", "b") as net,
        on_hosts(net, tmp_path, np=2, max_np=4, options=("--slots", "2"), session_s=6.0) as job,
    ):
        job.wait_for_step(1)
        job.join("b", slots=2)
        job.wait(lambda now: len(now["hosts"]) == 2, "host b")
        job.scale(4)
        before = job.wait_for_size(4)
        victim = job.plain()
        process = job.process(victim)
        to_zookeeper = [net.link(*ends) for host in "ab" for ends in ((host, "zk"), ("zk", host))]
        for link in to_zookeeper:
            link.up = False
        job.wait(lambda now: not now["members"], "the end of all sessions", BACK_S)
        process.send_signal(signal.SIGKILL)
        for link in to_zookeeper:
            link.up = True
        job.wait(lambda now: now["generation"] > before["generation"], "repair", BACK_S)
        repair = next(
            event
            for event in job.events("generation")
            if event["generation"] == before["generation"] + 1
        )
        assert repair["left"] == [victim], repair
        job.wait_for_size(4, BACK_S)
        job.prove(workers=4)
        assert [event["worker"] for event in job.events("evicted")] == [victim]


def stands_s(now: Status) -> float:
    """For how long somebody has been in its own code, as the leader says."""
    found = re.search(r"in its own code.* for (\d+) s", now["reason"])
    return float(found[1]) if found else 0.0


@pytest.mark.long  # tests/README.md, Time
def test_a_death_while_another_one_is_in_its_own_code(tmp_path: Path, zk_hosts: str) -> None:
    """For longer than switch_timeout_s."""
    short = {"EDL_SWITCH_TIMEOUT_S": str(SWITCH_S)}
    with scenario(tmp_path, zk_hosts, np=3, environment=short, session_s=OPEN_S) as job:
        job.wait_for_step(3)
        busy, victim = (name for name in ("w0", "w1", "w2") if name != job.leader())
        process = job.process(victim)
        job.stuck.write_text(job.process(busy).environ()["EDL_SLOT"])
        job.wait(lambda now: busy in now["reason"], "word of who is in its own code")
        process.send_signal(signal.SIGKILL)
        job.wait(lambda _: any(e["worker"] == victim for e in job.events("evicted")), "death")
        job.wait(lambda now: stands_s(now) > 10.0 + 3 * SWITCH_S, "a long wait", BACK_S)
        job.stuck.unlink()
        job.wait_for_size(3)
        job.prove(workers=3)
        assert [event["worker"] for event in job.events("evicted")] == [victim]
