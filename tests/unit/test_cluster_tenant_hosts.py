"""Tenants' jobs get slots of the hosts that name a user for them, and of no other."""

from __future__ import annotations

import pytest
from cluster_world import World, running

from edl.cluster.lifecycle import LifeState
from edl.cluster.records import HostOffer

TWO = {"min": 1, "max": 2}


def with_tenants(*slots: int) -> World:
    world = World(*slots)
    world.tenants = frozenset({"ann", "bob"})
    return world


@pytest.mark.parametrize("named", ["ann", ""])
def test_a_tenants_job_waits_for_a_host_that_names_a_user_for_it(named: str) -> None:
    world = with_tenants(2, 2)
    world.machines["h0"].tenants = ("bob",)
    world.submit("ann.x", **TWO)
    world.submit("mine", min=4, max=4, preemptible=False)
    world.until(lambda: world.state("mine") is LifeState.RUNNING)
    assert world.state("ann.x") is LifeState.QUEUED
    assert world.reasons["ann.x"] == (
        "place 1 of 1 in the queue: it needs 1 slot, and there are 0 on hosts that run jobs of "
        "tenant ann; hosts h0, h1 name no user for it: `edl host --user ann=USER`"
    )
    world.machines["h1"].tenants = (named,)
    world.round()
    assert "; mine has 2 slots" in world.reasons["ann.x"], "those of h0 are none of its"
    world.jobs["mine"].left = 0
    world.until(lambda: world.state("ann.x") is LifeState.RUNNING)
    world.rounds(20)
    assert world.devices("ann.x") == {"h1": (0, 1)}


def test_jobs_of_two_tenants_have_different_hosts() -> None:
    world = with_tenants(2, 2)
    world.machines["h0"].tenants = ("ann",)
    world.machines["h1"].tenants = ("bob",)
    for name in ("ann.x", "bob.x"):
        world.submit(name, min=1, max=4)
    world.until(lambda: world.slots("ann.x") == world.slots("bob.x") == 2)
    assert (list(world.devices("ann.x")), list(world.devices("bob.x"))) == (["h0"], ["h1"])


def test_a_job_that_trains_goes_on_where_it_is() -> None:
    """The first tenant was made, or the controller updated, while its host was not."""
    world = running(2, 2, **{"ann.x": {"min": 1, "max": 2}, "ann.alike": {"min": 1, "max": 2}})
    world.tenants = frozenset({"ann"})
    had = world.devices("ann.x"), world.devices("ann.alike")
    world.submit("ann.later", **TWO)
    world.rounds(60)
    assert (world.devices("ann.x"), world.devices("ann.alike")) == had
    assert world.state("ann.later") is LifeState.QUEUED


def test_an_older_host_names_no_tenant() -> None:
    assert HostOffer.from_json({"slots": 2, "version": "0.1.0"}).tenants == ()
