"""What went wrong where the size of a job was the quota of another scheduler, as nine tests.

Each is a defect of Kueue's elastic jobs ("workload slices"), by its number there.
"""

from __future__ import annotations

from cluster_world import World, running

from edl.cluster.lifecycle import LifeState


def test_slots_are_not_counted_twice_while_a_job_grows_kueue_9322() -> None:
    """Growing from 2 to 4 of 4 slots takes 2 free ones, not 4, and 2 to 4 is never 6."""
    world = running(4, a={"max": 4}, b={"max": 2})
    assert (world.slots("a"), world.slots("b")) == (2, 2)
    world.jobs["b"].left = 0
    for _ in range(20):
        world.round()
        assert world.jobs["a"].life.slots == world.slots("a") <= 4
    assert world.workers("a") == world.slots("a") == 4


def test_no_more_workers_than_slots_while_an_agent_is_slow_kueue_11977() -> None:
    """The old job's agent does not hear that it is to shrink; the new job's workers wait."""
    world = running(4, a={"max": 4})
    world.submit("b", max=2)
    for _ in range(30):
        world.turn()
        world.host_reads("h0")
        world.host_acts("h0")
        if "b" in world.machines["h0"].agents:
            world.agent_reads("h0", "b")
            world.agent_declares("h0", "b")
            world.agent_spawns("h0", "b")
        world.host_reports("h0")
        world.now_s += 1
        assert len(world.machines["h0"].workers) <= 4
    assert world.state("b") is LifeState.QUEUED
    assert "being given back" in world.reasons["b"]
    world.until(lambda: world.workers("b") == 2)


def test_no_slot_is_lost_when_a_job_ends_while_it_shrinks_kueue_11195() -> None:
    """Its slots come back once each, those that it was to give back and those that it kept."""
    world = running(4, a={"max": 4})
    world.submit("b", min=2, max=4)
    world.turn()  # a is told to shrink
    world.jobs["a"].run.state = world.jobs["a"].run.state.FINISHED
    world.jobs["a"].left = 0
    world.until(lambda: world.workers("b") == 4)
    assert list(world.entries()) == [("h0", "b")]


def test_a_job_has_never_two_runs_kueue_11553() -> None:
    """Leaders die at each point of a start: one run, with one token, and nothing is left over."""
    world = World(2)
    world.submit("a", left=20, max=2)
    for _ in range(5):  # each leader plans the start; none but the first one's is written
        leader = world.new_leader()
        world.reads_jobs(leader)
        world.plans(leader)
        world.writes_plan(leader)  # the leader dies before it creates the run
    world.until(lambda: world.state("a") is LifeState.ENDED)
    assert world.jobs["a"].tokens == [world.jobs["a"].life.run]
    world.until(lambda: not list(world.entries()))


def test_what_is_assigned_is_never_below_what_runs_kueue_12958() -> None:
    """A job is to shrink, and its processes take their time: until then it has their slots."""
    world = running(4, a={"max": 4})
    world.submit("b", min=2, max=2)
    for _ in range(20):
        world.turn()
        world.now_s += 1
    assert world.workers("a") == world.slots("a") == 4
    assert world.machines["h0"].assigned.jobs["a"].leaving == (2, 3)
    assert world.jobs["a"].life.slots == 4, "and they count as its service"


def test_a_slot_is_not_given_away_while_its_process_lives_kueue_15661() -> None:
    """Not by quota, not by time, not by silence: only by proof about the device itself."""
    world = running(4, a={"max": 4})
    world.submit("b", min=2, max=2)
    world.turn()
    assert world.jobs["a"].run is not None
    assert world.jobs["a"].run.devices == {"h0": (0, 1)}, "a was told"
    world.agent_reads("h0", "a")  # its agent knows, and its workers still live
    world.agent_dies("h0", "a")
    world.record_ends("h0", "a")
    for _ in range(100):
        world.turn()
        world.now_s += 10
    assert world.state("b") is LifeState.QUEUED
    world.until(lambda: world.workers("b") == 2)
    assert world.workers("a") == 2


def test_a_job_that_is_preempted_while_it_grows_comes_back_kueue_15399() -> None:
    """It has been given further slots and has not taken them; then it loses all, and returns."""
    world = running(2, 2, a={"min": 1, "max": 4}, b={"min": 2, "max": 2})
    assert (world.slots("a"), world.slots("b")) == (2, 2)
    world.jobs["b"].left = 0
    world.until(lambda: world.slots("a") == 4)
    assert world.workers("a") == 2, "it has not taken them yet"
    world.submit("c", left=8, min=4, max=4)
    world.want("c", priority=1)
    world.until(lambda: world.state("c") is LifeState.RUNNING)
    world.until(lambda: world.state("a") is LifeState.RUNNING)
    world.until(lambda: world.workers("a") == 4)


def test_freed_slots_are_noticed_without_an_event_kueue_6384() -> None:
    """No watch fires; the plan says when to look again, and then it sees what is free."""
    world = running(2, a={"max": 2})
    world.submit("b", min=2, max=2)
    world.jobs["a"].left = 0
    looks = 0
    while world.state("b") is not LifeState.STARTING:
        looks += 1
        assert looks < 10
        world.turn()
        world.hosts_work()
        world.run_steps("a")
        assert world.next_s > world.now_s
        world.now_s = world.next_s


def test_growth_preempts_kueue_6969() -> None:
    """A job of a higher priority grows onto the slots of a lower one, not only onto free ones."""
    world = running(2, 2, a={"max": 4}, b={"max": 4})
    assert (world.slots("a"), world.slots("b")) == (2, 2)
    world.want("a", priority=5)
    world.until(lambda: world.workers("a") == 4)
    assert world.state("b") is LifeState.QUEUED
    assert world.reasons["b"].startswith("place 1 of 1 in the queue: ")
