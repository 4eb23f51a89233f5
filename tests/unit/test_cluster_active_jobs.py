"""Which jobs a policy may give slots to, and where: what is the same for many is found once."""

from __future__ import annotations

import pytest
from cluster_world import World, running

from edl.cluster.candidates import ActiveJob, find_active_jobs
from edl.cluster.lifecycle import HostLimit
from edl.cluster.view import DeviceTable


def active(world: World) -> dict[str, ActiveJob]:
    world.reads_jobs(world.leader)
    view = world.view(world.leader)
    found, _ = find_active_jobs(view, DeviceTable(view.hosts, world.now_s))
    return {one.job.name: one for one in found}


def test_jobs_that_can_use_the_same_hosts_share_one_object() -> None:
    """A thousand jobs on two hundred hosts have one table of their hosts, also if they train."""
    world = running(2, 2, 2, a={"max": 1}, b={"max": 2}, c={"max": 3})
    world.submit("d")
    found = active(world)
    assert {id(one.limits) for one in found.values()} == {id(found["a"].limits)}
    assert found["a"].limits == {"h0": 2, "h1": 2, "h2": 2}
    assert {one.labels for one in found.values()} == {""}


def test_a_job_with_a_limit_of_its_own_has_other_hosts_than_those_like_it() -> None:
    world = running(2, 2, a={"max": 1}, b={"max": 1})
    job = world.jobs["a"]
    host = next(iter(world.devices("a")))
    other = "h1" if host == "h0" else "h0"
    limits = {other: HostLimit(1, world.now_s + 60.0), host: HostLimit(0, world.now_s - 1.0)}
    job.life = job.life.__class__(**{**vars(job.life), "limits": limits})
    found = active(world)
    assert found["a"].limits == {host: 2, other: 1}
    assert found["b"].limits == {"h0": 2, "h1": 2}


@pytest.mark.parametrize("labelled", [False, True])
def test_a_silent_host_counts_for_the_jobs_that_are_there(labelled: bool) -> None:
    """Its labels are not known: only a job that has slots there, or needs none, may use it."""
    labels = {"gpu": "a"} if labelled else {}
    world = World(2, 2)
    for machine in world.machines.values():
        machine.labels = labels
    for name in ("a", "b"):
        world.submit(name, max=1, labels=labels)
    world.until(lambda: all(world.devices(name) for name in ("a", "b")))
    world.submit("c", max=1, labels=labels)
    host = next(iter(world.devices("a")))
    world.host_dies(host)
    world.offer_ends(host)
    found = active(world)
    assert host in found["a"].limits
    assert (host in found["c"].limits) is not labelled


def test_a_policy_knows_of_a_job_that_waits_whether_it_may_be_preempted_later() -> None:
    """While a job that is due waits, the policy edl starts none that may not be preempted later."""
    world = running(2, 1, 1, rigid={"max": 4, "preemptible": False})
    world.until(lambda: world.slots("rigid") == 4)
    world.submit("waits", max=1, preemptible=False)
    world.submit("other", max=1)

    def preemptible() -> dict[str, bool]:
        return {n: one.cluster_job(world.now_s).preemptible for n, one in active(world).items()}

    assert preemptible() == {"rigid": False, "waits": False, "other": True}
    world.machines["h2"].drained = True
    assert preemptible() == {"rigid": True, "waits": False, "other": True}


def test_a_host_that_offers_fewer_slots_takes_them_from_the_last_jobs() -> None:
    world = running(4, a={"max": 2}, b={"max": 2})
    world.machines["h0"].slots = 3
    found = active(world)
    assert {name: one.present for name, one in found.items()} == {"a": {"h0": 2}, "b": {"h0": 1}}
