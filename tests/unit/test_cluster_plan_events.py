"""What the event log of a cluster says of a plan."""

from __future__ import annotations

from cluster_world import World

from edl.cluster.lifecycle import LifeResult, LifeState
from edl.cluster.plan import PlannedEvent, plan_events
from edl.cluster.records import Goal


def told(world: World) -> list[tuple[str, str, str, str]]:
    """One round of the leader and all others; return its events."""
    world.reads_jobs(world.leader)
    view = world.view(world.leader)
    found: list[PlannedEvent] = plan_events(view, world.plans(world.leader))
    world.round()
    return [(str(one.kind), one.job, one.host, one.reason) for one in found]


def test_the_story_of_slots() -> None:
    world = World(3)
    world.submit("a", max=4)
    story = [told(world) for _ in range(3)]
    why = "has 3 slots, its share among 1 job: it may have 1 to 3"
    assert story[0] == [
        ("state", "a", "", f"queued -> starting: starts (h0: 3): {why}"),
        ("slots", "a", "", f"slots h0: 0, 1, 2: {why}"),
    ]
    world.submit("b", max=1)
    events = [event for _ in range(6) for event in told(world)]
    assert [
        (job, reason.partition(": has")[0]) for kind, job, _, reason in events if kind == "slots"
    ] == [("a", "slots h0: 0, 1 (gives back 2)"), ("a", "slots h0: 0, 1"), ("b", "slots h0: 2")]
    world.want("a", Goal.GONE)
    events = [event for _ in range(6) for event in told(world)]
    assert ("slots", "a", "", "no slots: it is being deleted") in events


def test_hosts_go_and_come_back() -> None:
    world = World(2)
    world.submit("a", max=1)
    world.rounds(5)
    world.offer_ends("h0")
    assert told(world) == [("host", "", "h0", "host h0 offers nothing any more")]
    assert told(world) == []
    world.host_returns("h0")
    assert told(world) == [("host", "", "h0", "host h0 offers 2 slots again")]


def test_what_programs_read_of_an_event() -> None:
    world = World(3)
    world.submit("a", max=2)
    world.reads_jobs(world.leader)
    events = plan_events(world.view(world.leader), world.plans(world.leader))
    assert [(one.state, one.slots) for one in events] == [
        (LifeState.STARTING, None),
        (None, {"h0": 2}),
    ]
    world.rounds(5)
    world.want("a", Goal.GONE)
    ends = []
    for _ in range(6):
        world.reads_jobs(world.leader)
        ends += plan_events(world.view(world.leader), world.plans(world.leader))
        world.round()
    states = [(one.state, one.result) for one in ends if one.state is not None]
    assert states == [(LifeState.HALTING, None), (LifeState.ENDED, LifeResult.DELETED)]
    assert [one.slots for one in ends if one.slots is not None] == [{}]


def test_a_host_on_which_a_job_could_not_start_is_told_once() -> None:
    world = World(2, 4)
    world.machines["h1"].failing = "no GPU driver here"
    world.submit("a", max=4)
    events = [event for _ in range(40) for event in told(world)]
    assert world.state("a") is LifeState.RUNNING
    assert world.machines["h1"].assigned.failures["a"].blamed
    why = "it could not start on host h1, and gets no slots there: no GPU driver here"
    assert [one for one in events if one[0] == "host"] == [("host", "a", "h1", why)]
