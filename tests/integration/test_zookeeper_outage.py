"""ZooKeeper restarts, loses a server, is frozen, ends our sessions, is away when a worker dies.

The ring trains on, nothing is lost, and nobody leaves or joins because of it.
"""

from __future__ import annotations

import contextlib
import json
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from scenario import Scenario, scenario

from edl.errors import RingError
from edl.http.client import fetch
from edl.testing.zookeeper import ensemble

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.chaos]


def health(process: psutil.Process) -> dict[str, Any]:
    for connection in process.net_connections(kind="tcp"):
        if connection.status == psutil.CONN_LISTEN:
            with contextlib.suppress(OSError, RingError, ValueError):  # Gloo's speak no HTTP
                _, body = fetch(connection.laddr.ip, connection.laddr.port, "/health", 2.0)
                return dict(json.loads(body))
    raise AssertionError(f"process {process.pid} does not answer")


def train_on(job: Scenario, process: psutil.Process, steps: int = 5) -> None:
    before = int(health(process)["step"])
    job.until(lambda: int(health(process)["step"]) >= before + steps, f"{steps} more steps")


def nothing_changed(job: Scenario, before: dict[str, Any]) -> None:
    """ZooKeeper is back: the same ring trains, with the same processes."""
    job.wait(lambda now: not now["away"] and now["step"] > before["step"], "ZooKeeper back")
    after = job.wait(lambda now: len(now["members"]) == len(before["members"]), "all members")
    assert after["generation"] == before["generation"]
    pids = [{m["id"]: m["pid"] for m in now["members"]} for now in (before, after)]
    assert pids[0] == pids[1]


def test_a_standalone_server_restarts(tmp_path: Path) -> None:
    with ensemble(tmp_path, 1) as (server,), scenario(tmp_path, server.hosts, np=2) as job:
        job.wait_for_step(5)
        before = job.wait(lambda now: len(now["members"]) == 2, "2 members")
        process = job.process("w0")
        server.kill()
        job.until(lambda: "ZooKeeper is away" in job.output(), "word of it")
        job.wait(lambda now: now["away"], "edl status to say that ZooKeeper is away")
        train_on(job, process)
        server.start()
        nothing_changed(job, before)
        job.until(lambda: "ZooKeeper is back" in job.output(), "word of its return")
        job.until(lambda: job.events("zookeeper_back"), "an event")
        job.prove(workers=2)
        [event] = job.events("zookeeper_back")
        assert event["away_s"] >= 1.0
        assert 0 < event["from_step"] < event["step"], "it trained meanwhile"
        assert event["reason"] == f"ZooKeeper is back after {event['away_s']:.1f} s"


def test_one_of_three_servers_dies(tmp_path: Path) -> None:
    with ensemble(tmp_path, 3) as servers:
        hosts = ",".join(server.hosts for server in servers)
        with scenario(tmp_path, hosts, np=2) as job:
            job.wait_for_step(5)
            before = job.wait(lambda now: len(now["members"]) == 2, "2 members")
            process = job.process("w0")
            next(server for server in servers if server.leads).kill()
            train_on(job, process)
            nothing_changed(job, before)
            job.prove(workers=2)


@pytest.mark.chaos
@pytest.mark.parametrize("size", [1, 3])
def test_all_servers_are_frozen_for_longer_than_the_sessions(size: int, tmp_path: Path) -> None:
    with ensemble(tmp_path, size) as servers:
        hosts = ",".join(server.hosts for server in servers)
        with scenario(tmp_path, hosts, np=3) as job:
            job.wait_for_step(5)
            before = job.wait(lambda now: len(now["members"]) == 3, "3 members")
            process = job.process("w0")
            for server in servers:
                server.freeze()
            time.sleep(20.0)
            train_on(job, process)
            for server in servers:
                server.thaw()
            nothing_changed(job, before)
            job.prove(workers=3)
            assert not job.events("evicted")


def test_a_worker_dies_while_zookeeper_is_away(tmp_path: Path) -> None:
    """The survivors wait for longer than switch_timeout_s, which does not count meanwhile."""
    short = {"EDL_SWITCH_TIMEOUT_S": "4"}
    with (
        ensemble(tmp_path, 1) as (server,),
        scenario(tmp_path, server.hosts, np=3, environment=short) as job,
    ):
        job.wait_for_step(5)
        process = {name: job.process(name) for name in ("w0", "w1", "w2")}
        server.kill()
        job.until(lambda: "ZooKeeper is away" in job.output(), "word of it")
        process["w1"].send_signal(signal.SIGKILL)
        time.sleep(8.0)
        stood = health(process["w0"])["step"]
        assert process["w0"].is_running()
        assert process["w2"].is_running()
        assert health(process["w2"])["step"] == stood
        server.start()
        train_on(job, process["w0"])
        job.wait_for_size(3)
        job.prove(workers=3)
