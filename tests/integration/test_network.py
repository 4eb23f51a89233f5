"""Workers on hosts of their own, and a network that cuts, delays and loses what they say.

ZooKeeper is on a host of its own, so a host that is cut off is cut off from it, too. A cut is
silence: no reset tells anybody that a connection is gone.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hosts import HostsScenario, on_hosts
from net import Net
from scenario import longest_stall

from edl.errors import RingError
from edl.http.client import fetch

pytestmark = [pytest.mark.integration, pytest.mark.slow]
HOSTS = ("a", "b", "c")
SESSION_S = 3.0
SLACK_S = 12.0  # far below the 30 s after which Gloo gives up by itself


@contextmanager
def hosts_that_train(
    directory: Path, session_s: float = SESSION_S, **settings: Any
) -> Iterator[tuple[Net, HostsScenario]]:
    with (
        Net("zk", *HOSTS) as net,
        on_hosts(net, directory, np=1, max_np=3, session_s=session_s, **settings) as job,
    ):
        job.wait_for_step(1)
        job.joined(*HOSTS[1:], np=3)
        yield net, job


def health(net: Net, host: str) -> dict[str, Any]:
    def look() -> dict[str, Any]:
        for address, port in sorted(net.listening(host)):
            with contextlib.suppress(OSError, RingError, ValueError):  # Gloo's speak no HTTP
                _, body = fetch(address, port, "/health", 2.0)
                return dict(json.loads(body))
        raise AssertionError(f"no worker on {host} answers")

    return net.inside(host, look)


CUTS = [
    pytest.param("leader", {}, id="leader-both-ways", marks=pytest.mark.long),
    pytest.param("plain", {"into": False}, id="plain-out", marks=pytest.mark.chaos),
    pytest.param("plain", {"out": False}, id="plain-into", marks=pytest.mark.chaos),
]


@pytest.mark.parametrize(("role", "way"), CUTS)
def test_a_host_that_is_cut_off_does_not_train_and_comes_back(
    role: str, way: dict[str, bool], tmp_path: Path
) -> None:
    with hosts_that_train(tmp_path) as (net, job):
        for host in HOSTS:
            assert {address for address, _ in net.listening(host)} == {net.address(host)}
        name = job.leader() if role == "leader" else job.plain()
        host = job.members(name)[name]["host"]
        net.cut(host, **way)
        now = job.wait(lambda now: now["evicted"], "an eviction")
        assert list(now["evicted"]) == [name]
        assert f"{name} (rank " in now["evicted"][name]
        assert f"host {host}) left ZooKeeper" in now["evicted"][name]
        job.wait(lambda now: now["world_size"] == 2, "a ring of 2")
        job.wait_for_progress()
        stood = health(net, host)
        job.wait_for_progress()
        assert (stood["worker"], stood["step"]) == (name, health(net, host)["step"])
        net.heal()
        job.wait_for_size(3)
        reports = job.prove(workers=3)
        assert f"worker {name} was evicted by the leader" in job.host_output(host)
    stall_s = longest_stall(reports)
    print(f"cut off ({role}, {way}): longest pause {stall_s:.2f} s, session {SESSION_S:g} s")
    assert stall_s < SESSION_S + SLACK_S


@pytest.mark.chaos
def test_a_short_cut_changes_nothing(tmp_path: Path) -> None:
    with hosts_that_train(tmp_path, session_s=20.0) as (net, job):
        before = job.wait_for_progress(1)
        net.cut("b")
        time.sleep(3.0)
        net.heal()
        job.wait_for_progress()
        assert job.status()["generation"] == before["generation"]
        job.prove(workers=3)
        assert not job.events("evicted")


@pytest.mark.chaos
def test_a_slow_network_that_loses_packets(tmp_path: Path) -> None:
    with hosts_that_train(tmp_path, session_s=6.0, samples=240, epochs=6) as (net, job):
        job.end_s = 420.0  # a step takes 2 s where packets are sent again
        net.every_link(delay_s=0.05, loss=0.01)
        job.hurry()
        job.scale(2)
        job.wait_for_size(2)
        job.scale(3)
        job.wait_for_size(3)
        reports = job.prove(workers=3)
        assert not job.events("evicted")
    print(f"50 ms and 1 %: {[len(report['pauses']) for report in reports]} pauses")
