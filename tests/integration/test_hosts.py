"""Jobs on several hosts, each with its own address, name and clock: they come, go and vanish.

Host names mean nothing to anybody else here, unless a test says otherwise; see net.py.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hosts import on_hosts
from net import Net
from paths import SCRIPTS

pytestmark = [pytest.mark.integration, pytest.mark.slow]

# As Debian writes it, for the host's own name; and an address that leads nowhere.
CLOCKS = {"a": 7, "b": -8}  # minutes
MISLEADING = "127.0.0.1 localhost\n127.0.1.1 a b c d\n10.99.0.1 zk\n"


@pytest.mark.long  # `make test` has one that leaves for another: test_hosts_alike.py
def test_all_hosts_are_replaced_and_the_one_of_edl_run_leaves_first(tmp_path: Path) -> None:
    """Their clocks differ by a quarter of an hour."""
    with (
        Net("zk", "a", "b", "c") as net,
        on_hosts(net, tmp_path, np=1, max_np=3, clocks=CLOCKS) as job,
    ):
        job.wait_for_step(1)
        refused = job.try_edl("drain", "--host", "a")
        assert (refused.returncode, "0 workers would be left" in refused.stderr) == (2, True)
        job.joined("b", np=2)
        assert "host a has left job" in job.edl("drain", "--host", "a")
        assert job.left("a") == 91
        assert "edl drain: host a leaves the job" in job.host_output("a")
        job.joined("c", np=2)
        job.lose("b")
        job.wait(lambda now: now["world_size"] == 1, "a ring of 1")
        assert "host b has left job" in job.edl("drain", "--host", "b")
        assert job.status()["desired"] == {"a": 0, "b": 0, "c": 1}
        job.prove(workers=1)
        assert f"job {job.name} finished" in job.host_output("c")


@pytest.mark.long
@pytest.mark.parametrize("hosts", ["", MISLEADING], ids=["no-names", "wrong-names"])
def test_all_hosts_are_lost_one_after_another_the_one_of_edl_run_first(
    hosts: str, tmp_path: Path
) -> None:
    with (
        Net("zk", "a", "b", "c", "d", etc={"hosts": hosts}) as net,
        on_hosts(net, tmp_path, np=1, max_np=4, samples=1920) as job,
    ):
        job.wait_for_step(1)
        job.joined("b", np=2)
        for old, new in (("a", "c"), ("b", "d")):
            job.joined(new, np=3)
            job.lose(old)
            job.wait(lambda now: now["world_size"] == 2, "a ring of 2")
            job.edl("drain", "--host", old)
            job.wait_for_progress()
        job.prove(workers=2)
        for host in ("c", "d"):
            assert f"job {job.name} finished" in job.host_output(host)


@pytest.mark.long
@pytest.mark.parametrize("script", ["counting.py", "tf_counting.py"], ids=["torch", "tensorflow"])
def test_ctrl_c_in_edl_join_and_a_drain_of_edl_run_leave_others_in_their_place(
    script: str, tmp_path: Path
) -> None:
    with (
        Net("zk", "a", "b", "c", "d") as net,
        on_hosts(net, tmp_path, np=1, max_np=3, samples=1920, script=SCRIPTS / script) as job,
    ):
        job.wait_for_step(1)
        job.joined("b", np=2)
        job.joined("c", np=3)
        elsewhere = job.try_edl("logs", "w1")
        assert elsewhere.returncode == 1
        assert f"which ran on host b ({net.address('b')}): run `edl logs" in elsewhere.stderr
        assert job.leave("b") == 0
        assert "which ran on host b: run" in job.try_edl("logs", "w1").stderr
        job.edl("drain", "--host", "a")
        assert job.left("a") == 91
        job.joined("d", np=2)
        assert job.leave("c") == 0
        job.wait_for_size(1)
        job.prove(workers=1)
        evicted = job.events("evicted")
        assert not evicted, "\n".join(str(event) for event in evicted)


@pytest.mark.long
def test_a_host_is_replaced_under_its_name(tmp_path: Path) -> None:
    """While the session of the dead one lives, and under the one that lives."""
    with (
        Net("zk", "a", "b", "other", names={"other": "b"}) as net,
        on_hosts(net, tmp_path, np=1, max_np=2, session_s=6.0, samples=1920) as job,
    ):
        job.wait_for_step(1)
        job.joined("b", np=2)
        before = job.status()["generation"]
        job.join("other")
        assert job.agents["other"].wait(30) == 95
        assert f"'b' of job {job.name} belongs to another agent" in job.host_output("other")
        assert net.address("b") in job.host_output("other")
        assert job.status()["generation"] == before
        job.lose("b")
        job.join("other")
        job.wait(
            lambda now: "w2" in {member["id"] for member in now["members"]}, "a worker on the other"
        )
        job.wait_for_size(2)
        assert "waiting for the end of the session of agent" in job.host_output("other")
        assert job.members("w2")["w2"]["host"] == "b"
        job.prove(workers=2)


@pytest.mark.long
def test_a_host_that_was_replaced_under_its_name_comes_back(tmp_path: Path) -> None:
    """It was cut off, and nobody could know that it lives."""
    with (
        Net("zk", "a", "b", "other", names={"other": "b"}) as net,
        on_hosts(net, tmp_path, np=1, max_np=2, apart=("b", "other"), samples=1920) as job,
    ):
        job.wait_for_step(1)
        job.joined("b", np=2)
        net.cut("b")
        job.wait(lambda now: "w1" in now["evicted"], "w1 evicted")
        job.join("other")
        job.wait(lambda now: "w2" in {m["id"] for m in now["members"]}, "a worker on the other")
        job.wait_for_size(2)
        net.heal()
        assert job.left("b") == 95
        assert "belongs to another agent" in job.host_output("b")
        job.wait_for_progress()
        # w1 has gone with the machine of its agent, and its session ends after that.
        job.wait(lambda now: {m["id"] for m in now["members"]} == {"w0", "w2"}, "the end of w1")
        job.prove(workers=2)


@pytest.mark.long  # `make test` has unit/test_interface.py
def test_the_interface_that_was_chosen_is_used_by_all(tmp_path: Path) -> None:
    """ZooKeeper is on one network, the workers reach each other on another one only."""
    with Net("zk", "a", "b", interfaces=("edl0", "edl1")) as net:
        second = {host: net.alias(host, "edl1") for host in ("a", "b")}
        options = ["--network-interface", "edl1", "--address", second["a"]]
        for pair in (("a", "b"), ("b", "a")):
            net.link(*pair, "edl0").up = False
        with on_hosts(net, tmp_path, np=1, max_np=2, options=options) as job:
            job.wait_for_step(1)
            wrong = job.try_join("b", "--network-interface", "eth9")
            assert wrong.returncode == 2
            said = wrong.stderr.splitlines()[-1]  # above it is the log
            assert "there is no network interface eth9 with an IPv4 address on this host" in said
            assert f"edl1 ({net.address('b', 'edl1')}, {second['b']})" in said
            job.join_options = ("--address", second["b"])
            job.join("b", EDL_NETWORK_INTERFACE="edl1")
            job.wait(lambda now: "b" in now["hosts"], "host b")
            job.scale(2)
            job.wait_for_size(2)
            of_the_ring = set()
            for host, worker in (("a", "w0"), ("b", "w1")):
                assert {address for address, _ in net.listening(host)} == {second[host]}
                both = {end for ends in net.connected(host) if ends[1][1] != 2181 for end in ends}
                of_the_ring |= {address for address, _ in both}
                assert job.process(worker).environ()["NCCL_SOCKET_IFNAME"] == "edl1"
            assert all(address.startswith("10.77.1.") for address in of_the_ring)
            assert of_the_ring & set(second.values())  # where Gloo was called
            job.prove(workers=2)


@pytest.mark.long
def test_clocks_that_differ_by_minutes(tmp_path: Path) -> None:
    """A host that is cut off and given up, a killed leader, a killed agent: all by other clocks."""
    with (
        Net("zk", "a", "b", "c") as net,
        on_hosts(net, tmp_path, np=1, max_np=3, clocks=CLOCKS, samples=1920) as job,
    ):
        job.wait_for_step(1)
        job.joined("b", "c", np=3)
        name = next(m["id"] for m in job.status()["members"] if m["host"] == "b")
        net.cut("b")
        job.wait(lambda now: name in now["evicted"], f"{name} evicted")
        job.wait(lambda now: now["world_size"] == 2, "a ring of 2")
        net.heal()
        job.wait_for_size(3)
        leader = job.leader()
        job.process(leader).kill()
        job.wait(lambda now: leader not in {m["id"] for m in now["members"]}, f"end of {leader}")
        job.wait_for_size(3)
        told = [datetime.fromisoformat(event["time"]) for event in job.events()]
        assert max(told) - min(told) > timedelta(minutes=6)  # the clocks were wrong
        job.prove(workers=3)
