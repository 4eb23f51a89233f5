"""The plan of a cluster, as stories: what is written and ordered when what happens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from cluster_world import SETTINGS, Batches, Hints, Run, World, running

from edl.cluster.allocate import KeepAllocation
from edl.cluster.lifecycle import LifeResult, LifeState
from edl.cluster.plan import ClusterPlan, plan
from edl.cluster.records import Goal, HostReport
from edl.cluster.state import Allocation, ClusterState
from edl.cluster.view import AgentView, CreateRun, PlaceRun, StopRun
from edl.records import JobState
from edl.text import CHARS

QUEUED, STARTING, RUNNING = LifeState.QUEUED, LifeState.STARTING, LifeState.RUNNING
HALTING, HALTED, ENDED = LifeState.HALTING, LifeState.HALTED, LifeState.ENDED


def settled(*slots: int, policy: str = "max_min", **jobs: dict[str, object]) -> World:
    world = running(*slots, policy=policy, **jobs)
    world.rounds(3)
    return world


def states(world: World) -> dict[str, LifeState]:
    return {name: world.state(name) for name in world.jobs}


# --- starting


def test_a_job_starts_in_one_transaction() -> None:
    world = World(2, 2)
    world.submit("a", min=3, max=4)
    found = world.turn()
    assert found.lives["a"].state is STARTING
    assert found.lives["a"].reason.startswith("starts (h0: 2, h1: 2): has 4 slots")
    devices = {"h0": (0, 1), "h1": (0, 1)}
    assert {host: one.jobs["a"].devices for host, one in found.assigned.items()} == devices
    assert found.orders == (CreateRun("a", found.lives["a"].run, devices),)
    world.until(lambda: world.state("a") is RUNNING)
    assert world.workers("a") == 4


def test_a_refused_transaction_orders_nothing() -> None:
    world = World(2)
    world.submit("a", max=2)
    leader = world.leader
    world.reads_jobs(leader)
    world.plans(leader)
    world.machines["h0"].version += 1  # somebody has written meanwhile
    assert not world.writes_plan(leader)
    assert world.jobs["a"].run is None
    assert not leader.orders


def test_a_start_that_gets_no_workers_is_taken_back_whole_and_tried_again_later() -> None:
    world = World(4)
    world.machines["h0"].broken_for.add("a")
    world.submit("a", min=2, max=4)
    starts = []
    for _ in range(400):
        before = world.state("a")
        world.round()
        if before is QUEUED and world.state("a") is STARTING:
            starts.append(world.now_s)
    waits = [later - first for first, later in pairwise(starts)]
    assert len(starts) > 4
    assert waits[0] < waits[1] < waits[2] < waits[3], waits
    assert world.jobs["a"].life.failures == 0, "it is not the job's fault"
    world.machines["h0"].broken_for.clear()
    world.until(lambda: world.state("a") is RUNNING, rounds=400)


def test_a_waiting_try_says_so_and_gives_its_slots_to_others() -> None:
    world = World(2)
    world.submit("a", max=2, retries=9)
    world.until(lambda: world.state("a") is RUNNING)
    for _ in range(4):
        world.run_fails("a")
        world.until(lambda: world.state("a") is QUEUED)
        if world.jobs["a"].life.tries < 4:
            world.until(lambda: world.state("a") is RUNNING)
    world.submit("b", max=2)
    world.until(lambda: world.state("b") is RUNNING, rounds=6)
    assert world.state("a") is QUEUED
    assert "s for its next try: its run has failed, 4 of 9 retries used" in world.reasons["a"]


def test_a_job_that_fails_too_often_ends() -> None:
    world = World(2)
    world.submit("a", max=2, retries=1)
    for _ in range(2):
        world.until(lambda: world.state("a") is RUNNING)
        world.run_fails("a", "no such file: data.npz")
        world.round()
    life = world.jobs["a"].life
    assert (life.state, life.result, life.exit_code) == (ENDED, LifeResult.FAILED, 1)
    assert life.reason == "it has failed 2 times, the last time: no such file: data.npz"
    world.until(lambda: not list(world.entries()))


def test_a_long_reason_of_a_run_is_shortened() -> None:
    """A run's own processes write it, as long as they like; the job's record must fit a node."""
    world = World(2)
    world.submit("a", max=2, retries=0)
    world.until(lambda: world.state("a") is RUNNING)
    world.run_fails("a", "x" * 400_000)
    world.round()
    reason = world.jobs["a"].life.reason
    assert world.state("a") is ENDED
    assert reason.startswith("it has failed: xxx")
    assert len(reason) <= CHARS


def test_a_run_is_created_again_by_the_next_leader_and_is_the_same() -> None:
    world = World(2)
    world.submit("a", max=2)
    world.reads_jobs(world.leader)
    first = world.plans(world.leader).orders
    assert world.writes_plan(world.leader)
    world.new_leader()
    assert world.turn().orders == first
    assert world.turn().orders == ()


def test_a_job_starts_with_fewer_slots_where_the_others_do_not_come() -> None:
    """A device of another job is not given back; the new job may start without it."""
    world = settled(4, a={"max": 4})
    world.submit("b", max=2)
    world.turn()
    world.agent_reads("h0", "a")
    world.machines["h0"].workers.discard(("a", world.jobs["a"].life.run, 2))
    world.agent_declares("h0", "a")
    world.machines["h0"].workers.add(("a", world.jobs["a"].life.run, 3))
    run = world.jobs["a"].run
    assert run is not None
    run.agents["h0"] = replace(run.agents["h0"], busy=frozenset({0, 1, 3}))
    for _ in range(5):
        world.turn()
        world.now_s += 1
    assert world.devices("b") == {"h0": (2,)}


@pytest.mark.parametrize(
    ("policy", "request_", "why"),
    [
        ("edl", {}, ""),
        ("edl", {"preemptible": False}, "keeps its slots: it may not be preempted"),
        ("jsa", {"cool_down_s": 40.0}, "keeps its slots for 40 s after a change (cool_down_s)"),
    ],
)
def test_a_job_says_why_it_keeps_its_slots(
    policy: str, request_: dict[str, object], why: str
) -> None:
    world = World(4, policy=policy)
    world.submit("a", max=2, **request_)
    world.turn()
    assert world.state("a") is STARTING
    world.turn()
    assert world.reasons["a"] == "keeps its slots while it starts"
    world.until(lambda: world.state("a") is RUNNING)
    world.rounds(2)
    assert world.reasons["a"] == why or (not why and "starts" not in world.reasons["a"])


# --- changing hands


def test_a_job_keeps_its_devices_where_its_number_stays() -> None:
    world = settled(4, 4, a={"min": 2, "max": 2}, b={"min": 2, "max": 2}, c={"max": 4})
    before = world.devices("a"), world.devices("b")
    world.jobs["c"].left = 0
    world.submit("d", max=4)
    world.rounds(20)
    assert (world.devices("a"), world.devices("b")) == before


def test_a_grown_job_keeps_its_old_devices() -> None:
    world = settled(4, a={"max": 4}, b={"max": 2})
    old = set(world.devices("a")["h0"])
    world.jobs["b"].left = 0
    world.until(lambda: world.slots("a") == 4)
    assert old < set(world.devices("a")["h0"])


def test_a_job_grows_at_once_with_all_its_slots_if_they_come_soon() -> None:
    world = settled(2, 2, 2, a={"max": 6}, b={"max": 2}, c={"max": 2})
    assert world.slots("a") == 2
    world.jobs["b"].left = world.jobs["c"].left = 0
    placed = []
    for _ in range(20):
        found = world.round(seconds=0.5)
        placed += [order for order in found.orders if isinstance(order, PlaceRun)]
    assert world.workers("a") == 6
    assert [sum(map(len, order.devices.values())) for order in placed] == [6]


def test_a_job_gets_what_was_free_already_as_soon_as_it_trains() -> None:
    """A job that starts keeps its slots, and a policy is not asked about them until it trains."""
    world = settled(4, a={"max": 4})
    world.submit("b", max=4)
    world.until(lambda: world.state("b") is STARTING)
    world.want("a", Goal.HALT)
    world.until(lambda: world.slots("b") == 4, rounds=10)


def test_workers_that_the_run_itself_does_without_come_back() -> None:
    world = settled(4, a={"max": 4})
    world.reads_jobs(world.leader)
    view = world.view(world.leader)
    [job] = view.jobs
    assert job.run is not None

    def planned(workers: int, **changes: object) -> tuple[object, ...]:
        agent = replace(job.run.agents["h0"], **changes)
        run = replace(job.run, workers={"h0": workers}, agents={"h0": agent})
        return plan(replace(view, jobs=(replace(job, run=run),)), world.policy, world.now_s).orders

    [order] = planned(3)
    assert isinstance(order, PlaceRun)
    assert order.devices == {"h0": (0, 1, 2, 3)}
    assert planned(4) == planned(3, disabled=1) == planned(3, leaving=True) == ()


def test_a_job_that_takes_long_to_start_has_more_time() -> None:
    world = World(2)
    world.machines["h0"].broken_for |= {"a", "b"}
    world.submit("a", max=1)
    world.submit("b", max=1, start_timeout_s=80.0)
    world.until(lambda: world.state("a") is QUEUED and world.jobs["a"].life.runs == 1)
    began_s = world.jobs["b"].life.since_s
    assert world.now_s - began_s < 65
    world.until(lambda: world.state("b") is QUEUED)
    assert 99 < world.now_s - began_s < 105


def test_once_all_is_done_nothing_is_written_or_ordered() -> None:
    world = settled(4, 2, a={"max": 4}, b={"min": 2, "max": 4}, policy="edl")
    found = world.turn()
    assert not found.acts
    assert found.next_s == world.allocation.at_s + SETTINGS.interval_s


def test_a_lost_order_is_in_the_next_plan_again() -> None:
    world = settled(4, a={"max": 4})
    world.submit("b", min=2, max=2)
    world.reads_jobs(world.leader)
    first = world.plans(world.leader)
    world.writes_plan(world.leader)  # and its order is lost
    world.now_s += 3
    assert world.turn().orders == first.orders
    assert isinstance(first.orders[0], PlaceRun)


def test_a_moved_job_has_its_new_devices_before_it_gives_up_the_old_ones() -> None:
    world = settled(2, 2, a={"min": 2, "max": 2})
    world.machines["h0"].drained = True
    sizes = []
    for _ in range(10):
        found = world.turn()
        for order in found.orders:
            assert isinstance(order, PlaceRun)
            sizes.append({host: len(devices) for host, devices in order.devices.items()})
        world.hosts_work()
        world.now_s += 1
    assert sizes == [{"h0": 0, "h1": 2}]
    assert world.devices("a") == {"h1": (0, 1)}
    assert world.state("a") is RUNNING


def test_two_full_jobs_need_never_swap_their_hosts() -> None:
    """Whatever a policy suggests, a job that runs is not moved to a host that another one has."""

    def swaps(cluster: ClusterState) -> Allocation:
        jobs = [job.name for job in cluster.jobs]
        hosts = ["h1", "h0"] if cluster.present else ["h0", "h1"]
        placements = {job: ((host, 2),) for job, host in zip(jobs, hosts, strict=True)}
        return Allocation(placements, dict.fromkeys(jobs, "is here"))

    world = World(2, 2, policy=swaps)
    world.submit("a", min=2, max=2)
    world.submit("b", min=2, max=2)
    world.rounds(60)
    assert world.devices("a") == {"h0": (0, 1)}
    assert world.devices("b") == {"h1": (0, 1)}


def test_a_report_from_before_the_end_of_a_run_frees_nothing() -> None:
    """It says that nothing lives, and that was so when it was written."""
    world = World(2)
    world.submit("a", max=2)
    world.turn()
    world.host_reads("h0")
    world.host_reports("h0")
    world.host_acts("h0")
    world.host_dies("h0")
    world.agent_reads("h0", "a")
    world.agent_declares("h0", "a")
    world.agent_spawns("h0", "a")
    assert world.workers("a") == 2
    world.run_fails("a")
    world.submit("b", max=2)
    for _ in range(30):
        world.turn()
        world.now_s += 10
    assert len(world.machines["h0"].workers) == 2
    assert world.machines["h0"].assigned.jobs["a"].ends == 1
    assert world.state("b") is QUEUED
    world.host_returns("h0")
    world.until(lambda: world.workers("b") == 1)


def test_an_agent_that_acts_on_an_old_record_is_refused() -> None:
    """It has read that it may use a device, and slept while another job got that device."""
    world = settled(4, a={"max": 4}, b={"max": 2})
    world.jobs["b"].left = 0
    while world.jobs["a"].run is None or len(world.jobs["a"].run.devices["h0"]) < 4:
        world.turn()
        world.host_works("h0", agents=False)
        world.run_steps("b")
    world.agent_reads("h0", "a")  # it may use all four; then it sleeps
    world.submit("c", max=2)
    for _ in range(5):
        world.turn()
        world.host_works("h0", agents=False)
    assert world.slots("c") == 2, "its record has never had the devices"
    world.agent_declares("h0", "a")
    world.agent_spawns("h0", "a")
    assert world.workers("a") == 2


def test_a_job_does_not_start_where_its_last_run_still_has_something() -> None:
    world = settled(2, 2, a={"min": 2, "max": 2})
    (first,) = world.devices("a")
    (other,) = set(world.machines) - {first}
    world.run_fails("a")
    world.host_dies(first)
    for _ in range(5):
        world.turn()
        world.host_works(other)
        world.now_s += 1
    assert set(world.devices("a")) == {other}
    assert world.machines[first].assigned.jobs["a"].run != world.jobs["a"].life.run


# --- silence, loss, drain


def test_a_host_that_is_silent_for_a_moment_changes_nothing() -> None:
    world = settled(2, 2, a={"max": 4})
    world.host_dies("h1")
    world.offer_ends("h1")
    found = world.turn()
    assert not found.orders
    world.now_s += SETTINGS.lost_after_s - 1
    assert not world.turn().orders
    world.host_returns("h1")
    assert not world.turn().orders
    assert world.machines["h1"].assigned.silent_s == 0.0
    assert world.slots("a") == 4


def test_a_job_shrinks_without_its_lost_host_whose_slots_stay_its_own() -> None:
    world = settled(2, 2, a={"max": 4})
    world.machine_dies("h1")
    world.offer_ends("h1")
    world.submit("b", max=2)
    world.rounds(30)
    assert world.jobs["a"].run is not None
    assert world.jobs["a"].run.devices == {"h0": (0,), "h1": ()}
    assert world.machines["h1"].assigned.jobs["a"].devices == (0, 1), "silence frees nothing"
    assert states(world) == {"a": RUNNING, "b": RUNNING}
    world.host_returns("h1")
    world.until(lambda: world.workers("a") + world.workers("b") == 4, rounds=200)


def test_a_job_with_too_few_slots_left_halts_and_starts_elsewhere_on_other_slots() -> None:
    world = settled(4, 4, a={"min": 3, "max": 4}, b={"min": 1, "max": 4})
    at = next(iter(world.devices("a")))
    first = world.jobs["a"].life.run
    world.machine_dies(at)
    world.offer_ends(at)
    world.until(lambda: world.jobs["a"].life.run != first, rounds=60)
    assert set(world.devices("a")) == {"h0", "h1"} - {at}
    assert world.machines[at].assigned.jobs["a"].run == first
    assert "are left without" in " ".join(world.story)
    world.host_returns(at)
    world.round()
    assert world.machines[at].assigned.jobs["a"].ends > 0
    world.until(lambda: world.workers("a") == world.workers("b") == 4)


def test_survivors_are_filled_up_on_free_slots_without_a_halt() -> None:
    world = settled(2, 2, 2, a={"min": 4, "max": 4})
    lost = next(iter(world.devices("a")))
    world.machine_dies(lost)
    world.offer_ends(lost)
    world.until(lambda: world.workers("a") == 4, rounds=30)
    assert world.state("a") is RUNNING
    assert world.jobs["a"].life.runs == 1


def test_a_drained_host_gives_back_its_slots() -> None:
    world = settled(2, 2, a={"max": 4}, b={"min": 2, "max": 2})
    world.machines["h1"].drained = True
    world.until(lambda: not world.machines["h1"].assigned.jobs)
    world.rounds(10)
    assert not world.machines["h1"].assigned.jobs
    world.machines["h1"].drained = False
    world.until(lambda: world.workers("a") + world.workers("b") == 4, rounds=200)


def test_a_host_with_records_of_another_format_gets_nothing() -> None:
    world = World(2)
    world.submit("a", max=2)
    world.reads_jobs(world.leader)
    view = world.view(world.leader)
    offer = view.hosts[0].offer
    assert offer is not None
    other = replace(view, hosts=[replace(view.hosts[0], offer=replace(offer, format=2))])
    assert not plan(other, world.policy, world.now_s).orders


def test_an_agent_that_says_nothing_is_ended_by_its_host() -> None:
    """The run has left the host; its agent is dead and starts no more; the host sees to the end."""
    world = settled(2, 2, a={"max": 4})
    world.machines["h1"].drained = True
    world.turn()
    world.agent_dies("h1", "a")
    world.record_ends("h1", "a")
    run = world.jobs["a"].life.run
    for _ in range(15):
        world.turn()
        world.now_s += 10
    assert world.machines["h1"].assigned.jobs["a"].ends > 0
    assert ("a", run, 0) in world.machines["h1"].workers
    world.hosts_work()
    world.turn()
    assert not world.machines["h1"].assigned.jobs


def test_slots_that_are_not_given_back_do_not_count_any_more() -> None:
    """A policy does not wait for ever for the slots of a host that cannot end its processes."""
    world = settled(4, 2, a={"max": 4}, b={"min": 1, "max": 2})
    world.jobs["a"].left = 0
    world.run_steps("a")
    world.submit("c", min=2, max=4)
    for _ in range(150):  # `edl host` of h0 ends nothing
        world.turn()
        world.now_s += 1
    assert world.machines["h0"].assigned.jobs["a"].ends > 0
    assert world.state("b") is RUNNING
    assert world.reasons["c"].startswith("place 1 of 1 in the queue: it needs 2 slots")
    world.until(lambda: world.workers("c") >= 2)


def test_a_host_where_workers_do_not_live_is_left_for_a_time() -> None:
    world = settled(2, 2, a={"max": 4}, b={"max": 2})
    (free,) = set(world.machines) - set(world.devices("a"))
    world.machines[free].broken_for.add("a")
    world.jobs["b"].left = 0
    world.until(lambda: world.slots("a") == 4)
    world.until(lambda: "a" in world.machines[free].assigned.failures, rounds=100)
    world.until(lambda: world.slots("a") == 2)
    world.submit("c", max=2)
    world.until(lambda: world.workers("c") == 2)
    world.machines[free].broken_for.clear()
    world.jobs["c"].left = 0
    world.until(lambda: world.workers("a") == 4, rounds=400)


def test_a_job_that_started_alone_on_a_host_without_agents_starts_on_another_one() -> None:
    """A host whose state directory is full, say, is as empty as ever, and would be chosen again."""
    world = World(2, 2)
    world.machines["h0"].refuses.add("a")
    world.submit("a", max=2)
    world.turn()
    assert world.devices("a") == {"h0": (0, 1)}
    world.until(lambda: world.state("a") is RUNNING)
    assert world.devices("a") == {"h1": (0, 1)}
    assert world.jobs["a"].life.runs == 2
    assert world.jobs["a"].life.limits["h0"].most == 0


def test_a_job_comes_back_to_its_only_host_when_agents_start_there_again() -> None:
    world = World(2)
    world.machines["h0"].refuses.add("a")
    world.submit("a", max=2)
    world.until(lambda: world.jobs["a"].life.limits != {})
    world.round()
    assert "there are 0 on hosts with its labels on which it may start" in world.reasons["a"]
    world.agents_start("h0", "a")
    world.until(lambda: world.state("a") is RUNNING, rounds=400)


def test_a_worker_that_is_started_again_keeps_its_slot() -> None:
    world = settled(2, a={"max": 2})
    worker = ("a", world.jobs["a"].life.run, 1)
    world.machines["h0"].workers.discard(worker)
    run = world.jobs["a"].run
    assert run is not None
    run.agents["h0"] = replace(run.agents["h0"], busy=frozenset({0}))
    world.turn()
    assert world.machines["h0"].assigned.jobs["a"].idle_s == world.now_s
    world.rounds(3)
    assert world.machines["h0"].assigned.jobs["a"].idle_s == 0
    assert world.slots("a") == 2


# --- halt, resume, delete


def test_a_halted_job_saves_gives_back_all_and_resumes_as_a_new_run() -> None:
    world = settled(4, a={"max": 4})
    first = world.jobs["a"].life.run
    world.want("a", Goal.HALT)
    found = world.turn()
    assert found.orders == (StopRun("a", first, True, "it is being halted"),)
    assert world.slots("a") == 4, "it needs them until it has stopped"
    world.until(lambda: world.state("a") is HALTED)
    assert not list(world.entries())
    world.want("a", Goal.RUN)
    world.until(lambda: world.state("a") is RUNNING)
    assert world.jobs["a"].life.run != first
    assert world.jobs["a"].life.runs == 2


@pytest.mark.parametrize("when", [QUEUED, STARTING, RUNNING, HALTED])
def test_a_job_can_be_deleted_whatever_it_does(when: LifeState) -> None:
    world = World(4)
    world.submit("a", max=4)
    if when is HALTED:
        world.want("a", Goal.HALT)
    if when is not QUEUED:
        world.until(lambda: world.state("a") is when)
    world.want("a", Goal.GONE)
    world.until(lambda: world.state("a") is ENDED)
    assert world.jobs["a"].life.result is LifeResult.DELETED
    world.until(lambda: not list(world.entries()))


def test_a_run_that_does_not_stop_is_ended() -> None:
    world = settled(2, a={"max": 2})
    world.want("a", Goal.HALT)
    for _ in range(int(SETTINGS.halt_timeout_s) + 10):  # its workers do not answer
        world.turn()
        world.hosts_work()
        world.now_s += 1
    assert world.state("a") is HALTED


@pytest.mark.parametrize("goal", [Goal.HALT, Goal.RUN, Goal.GONE])
def test_a_run_whose_processes_die_while_it_stops_is_over_at_once(goal: Goal) -> None:
    world = settled(2, a={"max": 2})
    world.want("a", Goal.HALT)
    world.turn()
    began_s = world.now_s
    world.all_die("h0", "a")
    world.want("a", goal)
    after = {Goal.HALT: HALTED, Goal.RUN: QUEUED, Goal.GONE: ENDED}[goal]
    changed = f"a: halting -> {after}: "
    world.until(lambda: any(line.startswith(changed) for line in world.story), rounds=5)
    assert world.now_s - began_s <= 5 < SETTINGS.halt_timeout_s
    died = "no process of it was left, so its last checkpoint may be missing"
    assert any(died in line for line in world.story) is (goal is not Goal.GONE)


def test_silence_and_old_reports_do_not_say_that_a_run_which_stops_is_dead() -> None:
    """Its agents may live, and save."""
    world = settled(2, 2, a={"max": 4})
    world.want("a", Goal.HALT)
    world.turn()
    world.all_die("h0", "a")
    report = world.machines["h1"].report
    assert report is not None
    no_agents = dict[str, AgentView]()
    for h1 in (
        {"report": report},  # a worker lives
        {"report": None},
        {"report": HostReport(world.machines["h1"].version - 1)},  # it did not know of the run yet
        {"report": HostReport(9), "offer": None},
    ):
        world.reads_jobs(world.leader)
        view = world.view(world.leader)
        job, (host0, host1) = view.jobs[0], view.hosts
        assert job.run is not None
        alone = replace(job, run=replace(job.run, agents=no_agents))
        host0 = replace(host0, report=HostReport(9))
        view = replace(view, jobs=(alone,), hosts=(host0, replace(host1, **h1)))
        assert plan(view, world.policy, world.now_s).orders == (), h1
    dead = replace(view, hosts=(host0, replace(host1, report=HostReport(9))))
    assert len(plan(dead, world.policy, world.now_s).orders) == 1
    assert plan(replace(dead, jobs=(job,)), world.policy, world.now_s).orders == (), "an agent"


def test_a_run_that_a_stranger_stops_is_started_again() -> None:
    world = settled(2, a={"max": 2})
    assert world.jobs["a"].run is not None
    world.jobs["a"].run.state = world.jobs["a"].run.state.STOPPING
    world.until(lambda: world.state("a") is QUEUED)
    assert "and not by the cluster" in world.jobs["a"].life.reason
    assert "`edl halt`" in world.jobs["a"].life.reason
    world.until(lambda: world.state("a") is RUNNING)
    assert world.jobs["a"].life.failures == 0


def test_a_name_that_is_used_again_shares_nothing_with_the_job_before() -> None:
    world = settled(2, 2, a={"min": 4, "max": 4})
    world.want("a", Goal.GONE)
    world.turn()
    world.host_dies("h1")  # and h1 does not hear of it
    world.until(lambda: world.state("a") is QUEUED or world.state("a") is HALTING)
    world.offer_ends("h1")
    world.until(lambda: world.state("a") is ENDED, rounds=30)
    world.forget("a")
    world.submit("a", min=1, max=4)
    world.until(lambda: world.state("a") is RUNNING)
    assert set(world.devices("a")) == {"h0"}
    world.host_returns("h1")
    world.until(lambda: world.workers("a") == 4, rounds=60)


def test_a_job_of_the_same_name_outside_of_the_cluster_is_left_alone() -> None:
    world = World(2)
    world.submit("a", max=2)
    world.jobs["a"].run = Run("a-token-of-edl-run", {}, 1)
    world.submit("b", max=2)
    world.rounds(5)
    assert not world.jobs["a"].run.state.over
    assert (
        "which the cluster has not started, runs; stop it with `edl stop a`" in world.reasons["a"]
    )
    assert world.slots("b") == 2, "nobody waits for it"
    world.jobs["a"].run.state = JobState.STOPPED
    world.until(lambda: world.state("a") is RUNNING)


# --- what policies do not know


def test_only_allowed_sizes_and_what_is_left_goes_to_the_next_size() -> None:
    world = settled(6, a={"max": 4, "sizes": (1, 2, 4)}, b={"max": 4, "sizes": (1, 2, 4)})
    assert (world.slots("a"), world.slots("b")) == (4, 2), "3 and 3 are not allowed"


def test_a_young_job_is_not_halted_for_others_but_may_shrink() -> None:
    world = World(4, policy="tiresias")
    world.submit("a", min=1, max=4, min_run_s=50.0)
    world.until(lambda: world.state("a") is RUNNING)
    began_s = world.jobs["a"].life.since_s
    world.submit("b", min=3, max=3)
    world.want("b", priority=1)
    world.until(lambda: world.workers("b") == 3)
    assert world.workers("a") == 1, "its fewest"
    world.submit("c", min=4, max=4)
    world.want("c", priority=2)
    world.until(lambda: world.state("a") is HALTING, rounds=200)
    assert world.now_s >= began_s + 50


def test_after_a_change_a_job_rests() -> None:
    world = settled(4, a={"max": 4, "cool_down_s": 40.0}, b={"max": 4})
    world.rounds(40)
    world.submit("c", max=4)
    world.until(lambda: world.state("c") is RUNNING)
    sizes = world.slots("a")
    changed_s = world.allocation.changed_s["a"]
    world.jobs["b"].left = world.jobs["c"].left = 0
    world.until(lambda: world.slots("a") != sizes, rounds=100)
    assert world.now_s - changed_s >= 40


def test_after_a_start_a_job_gets_no_more_slots_for_a_time() -> None:
    world = World(4)
    world.submit("b", max=2)
    world.submit("a", max=4, snooze_s=60.0)
    world.until(lambda: world.state("a") is RUNNING)
    began_s = world.jobs["a"].life.since_s
    world.jobs["b"].left = 0
    world.until(lambda: world.slots("a") == 4, rounds=200)
    assert world.now_s - began_s >= 60


def test_a_job_that_may_not_be_preempted_keeps_its_slots() -> None:
    world = settled(4, a={"max": 3, "preemptible": False}, policy="tiresias")
    world.submit("b", min=4, max=4)
    world.want("b", priority=9)
    world.rounds(60)
    assert states(world) == {"a": RUNNING, "b": QUEUED}
    assert world.slots("a") == 3


def test_a_higher_priority_is_served_first_and_takes_free_hosts_first() -> None:
    world = settled(2, 2, 2, low={"min": 2, "max": 2})
    home = world.devices("low")
    world.submit("high", min=4, max=4)
    world.want("high", priority=1)
    world.until(lambda: world.workers("high") == 4)
    assert world.devices("low") == home, "there was room beside it"
    world.submit("higher", min=2, max=2)
    world.want("higher", priority=2)
    world.until(lambda: world.state("higher") is RUNNING)
    assert states(world)["low"] is QUEUED


def test_labels_are_kept_and_do_not_starve_jobs_without() -> None:
    world = World(2, 2)
    world.machines["h1"].labels = {"gpu": "h100"}
    world.submit("any", max=4)
    world.submit("new", max=4, labels={"gpu": "h100"})
    world.submit("none", labels={"gpu": "a100"})
    world.until(lambda: world.state("new") is RUNNING)
    world.rounds(10)
    assert set(world.devices("new")) == {"h1"}
    assert set(world.devices("any")) == {"h0"}
    assert world.reasons["none"] == (
        "place 1 of 1 in the queue: it needs 1 slot, and there are 0 on hosts with its "
        "labels on which it may start, of 4 in the cluster"
    )


def test_a_job_larger_than_the_cluster_waits_and_holds_up_nobody() -> None:
    world = World(4, policy="fifo")
    world.submit("large", min=5, max=8)
    world.submit("small", min=1, max=2)
    world.until(lambda: world.state("small") is RUNNING)
    assert world.reasons["large"] == (
        "place 1 of 1 in the queue: it needs 5 slots, and the cluster has 4; add hosts with "
        "`edl host`"
    )


def test_a_job_that_asks_for_more_than_there_is_starts_with_what_there_is() -> None:
    world = World(4, policy="fifo")
    world.submit("a", min=1, max=16, np=16)
    world.until(lambda: world.workers("a") == 4)


def test_a_job_waits_for_those_that_it_comes_after() -> None:
    world = World(4)
    world.submit("b", max=2, after=("a", "c"), after_failed="wait")
    world.round()
    assert "waits for job a, which is not there" in world.reasons["b"]
    world.submit("a", left=6, max=2)
    world.submit("c", max=2, retries=0)
    world.until(lambda: world.state("a") is ENDED)
    assert "waits for job c, which is running" in world.reasons["b"]
    world.run_fails("c")
    world.rounds(3)
    assert "waits for job c, which is failed" in world.reasons["b"]
    assert world.state("b") is QUEUED


@pytest.mark.parametrize("goal", [Goal.RUN, Goal.HALT])
def test_a_job_that_was_started_waits_for_no_earlier_job_again(goal: Goal) -> None:
    """The records of the earlier job may be gone by now; it has finished once."""
    world = settled(4, a={"left": 6, "max": 2}, policy="fifo")
    world.submit("b", left=1e6, min=2, max=4, after=("a",))
    world.until(lambda: world.state("b") is RUNNING)
    world.forget("a")
    if goal is Goal.HALT:
        world.want("b", Goal.HALT)
        world.until(lambda: world.state("b") is HALTED)
        world.want("b", Goal.RUN)
    else:
        world.run_fails("b")
        world.until(lambda: world.state("b") is QUEUED)
    world.until(lambda: world.state("b") is RUNNING)


def test_a_policy_is_asked_though_its_last_decision_is_in_the_future() -> None:
    world = settled(4, a={"max": 4})
    world.allocation = replace(world.allocation, at_s=world.now_s + 3600.0)
    world.turn()
    assert world.allocation.at_s == world.now_s


def test_the_queue_shows_places_by_priority_and_order() -> None:
    world = settled(1, a={"min": 1, "max": 1})
    for name, priority in (("b", 0), ("c", 1), ("d", 0)):
        world.submit(name, max=1)
        if priority:
            world.want(name, priority=-1)
    world.round()
    places = {name: world.reasons[name].split(":")[0] for name in "bcd"}
    assert places == {
        "b": "place 1 of 3 in the queue",
        "c": "place 3 of 3 in the queue",
        "d": "place 2 of 3 in the queue",
    }


def test_the_policy_chooses_the_batch_where_it_may() -> None:
    hints = Hints(samples_per_s={1: 100.0, 2: 190.0, 4: 350.0})
    world = World(4, policy="jsa_max")
    world.submit("free", max=2, batch=Batches(8, 64), hints=hints)
    world.submit("own", max=2, batch=Batches(8, 64, set_by_policy=False), hints=hints)
    found = world.turn()
    batches = {order.job: order.batch for order in found.orders if isinstance(order, CreateRun)}
    assert batches == {"free": 64, "own": None}


@dataclass(frozen=True)
class Greedy:
    def __call__(self, cluster: ClusterState) -> Allocation:
        return Allocation({cluster.jobs[0].name: (("h0", 99),)}, {})


def test_a_policy_that_breaks_a_rule_changes_nothing() -> None:
    world = settled(4, a={"max": 4}, b={"max": 4})
    before = world.devices("a"), world.devices("b")
    world.policy = Greedy()
    world.submit("c", max=4)
    world.rounds(50)
    assert (world.devices("a"), world.devices("b")) == before
    assert "breaks a rule and is not used: " in world.reasons["c"]


def test_a_job_that_trains_is_not_stopped_for_a_decision_that_is_not_used() -> None:
    world = settled(4, a={"max": 4})
    world.policy = Greedy()
    world.allocation = replace(world.allocation, targets={}, inputs="", problem="it is wrong")
    for _ in range(3):
        assert not world.turn().orders
    assert world.machines["h0"].assigned.jobs["a"].leaving == ()


def test_a_policy_that_cannot_be_asked_leaves_all_as_it_is_and_lets_hosts_be_drained() -> None:
    world = settled(2, 2, a={"max": 2}, b={"max": 2})
    world.policy = KeepAllocation("it is broken")
    world.submit("c", max=2)
    world.rounds(3)
    assert (world.slots("a"), world.slots("b"), world.state("c")) == (2, 2, QUEUED)
    assert world.allocation.held == "it is broken"
    assert world.reasons["c"] == "place 1 of 1 in the queue: it is broken"
    world.machines["h0"].drained = True
    world.until(lambda: not world.machines["h0"].assigned.jobs)
    world.policy = World(policy="max_min").policy
    world.rounds(2)
    assert world.allocation.held == ""


@pytest.mark.parametrize(("slots", "sizes"), [((3, 1, 1), (4,)), ((3, 1), (1, 2, 4))])
def test_why_a_policy_cannot_be_asked_is_told_also_when_a_host_is_lost(
    slots: tuple[int, ...], sizes: tuple[int, ...]
) -> None:
    """A job with too few slots, or a number that it may not have, is no error of the policy."""
    world = settled(*slots, a={"min": sizes[0], "max": 4, "sizes": sizes})
    world.policy = KeepAllocation("it is broken")
    world.submit("b", max=2)
    world.round()
    world.machine_dies("h1")
    world.offer_ends("h1")
    for _ in range(20):
        world.round()
        assert (world.allocation.held, world.allocation.problem) == ("it is broken", "")
        assert world.reasons["b"].endswith("in the queue: it is broken")
    assert world.state("a") is (RUNNING if 1 in sizes else QUEUED)
    why = "a: running -> halting: preempted: has 3 of at least 4 slots, and gets no others: it is"
    assert any(one.startswith(why) for one in world.story) == (sizes == (4,))


def test_many_idle_jobs_change_over_several_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """One transaction has a limit, and submissions have none."""
    monkeypatch.setattr("edl.cluster.plan.MAX_IDLE", 10)
    world = World(2)
    for number in range(25):
        world.submit(f"j{number}", max=2)
    assert [len(world.turn().lives) for _ in range(4)] == [12, 10, 3, 0], "and two start at once"
    for number in range(2, 25):
        world.want(f"j{number}", Goal.GONE)
    ended = [{one.job for one in world.turn().changes} for _ in range(4)]
    assert list(map(len, ended)) == [10, 10, 3, 0]
    assert set.union(*ended) == {f"j{number}" for number in range(2, 25)}


def test_another_policy_is_asked_at_once() -> None:
    world = settled(4, a={"max": 4, "np": 1}, policy="fifo")
    assert world.slots("a") == 1
    world.policy = World(policy="max_min").policy
    world.until(lambda: world.workers("a") == 4, rounds=5)


def test_the_policy_is_not_asked_without_a_cause() -> None:
    world = settled(4, a={"max": 4})
    at_s = world.allocation.at_s
    world.now_s = at_s + SETTINGS.interval_s - 0.5
    assert world.turn() == ClusterPlan(reasons=world.reasons, next_s=at_s + SETTINGS.interval_s)
    world.now_s = at_s + SETTINGS.interval_s
    assert world.turn().allocation is not None


def test_gantt_and_service_can_be_read_from_the_life() -> None:
    world = World(4, policy="fifo")
    world.submit("a", left=40, min=2, max=2)
    submitted_s = world.now_s
    world.until(lambda: world.state("a") is ENDED)
    life = world.jobs["a"].life
    assert life.submitted_s == life.started_s == submitted_s
    assert life.ended_s > life.started_s
    assert life.attained_slot_s == 2 * (life.ended_s - life.started_s)


# --- files that a job needs

DATA = {"/data/": "the job's data /data"}


def test_a_job_goes_where_its_files_are() -> None:
    world = World(2, 2)
    world.machines["h0"].lacks.add("/data/")
    world.submit("a", max=4, required_paths=DATA)
    world.submit("b", max=4)
    world.until(lambda: world.state("a") is RUNNING and world.state("b") is RUNNING)
    assert world.devices("a") == {"h1": (0, 1)}
    assert world.devices("b") == {"h0": (0, 1)}


def test_a_job_whose_files_are_nowhere_fails_with_one_sentence_and_holds_up_nobody() -> None:
    world = World(2, 2, policy="fifo")
    for machine in world.machines.values():
        machine.lacks.add("/data/")
    for name in ("a", "b", "c"):
        world.submit(name, max=4, required_paths=DATA)
    world.submit("d", max=4)
    world.until(lambda: world.state("d") is RUNNING)
    world.until(lambda: world.state("a") is ENDED)
    why = "this host lacks the job's data /data"
    assert world.jobs["a"].life.reason.endswith(why)
    assert not any(machine.assigned.out for machine in world.machines.values())


def test_a_job_that_trains_keeps_its_slots_where_its_files_vanish() -> None:
    world = settled(2, 2, a={"min": 2, "max": 2, "required_paths": DATA})
    (host,) = world.devices("a")
    world.machines[host].lacks.add("/data/")
    world.submit("b", max=2)
    world.rounds(10)
    assert set(world.devices("a")) == {host}
    assert world.state("a") is RUNNING


# --- many jobs


def test_a_policy_chooses_among_the_first_jobs_of_each_priority(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("edl.cluster.candidates.MAX_ASKED", 3)
    asked: list[set[str]] = []

    def policy(cluster: ClusterState) -> Allocation:
        asked.append({job.name for job in cluster.jobs})
        return World(policy="fifo").policy(cluster)

    world = World(2, 2, policy=policy)
    world.machines["h1"].labels = {"gpu": "new"}
    for number in range(6):
        world.submit(f"j{number}", left=9, min=2, max=2)
        world.submit(f"g{number}", left=9, min=2, max=2, labels={"gpu": "new"})
    world.submit("urgent", left=9, max=2)
    world.want("urgent", priority=1)
    world.turn()
    assert asked[:3] == [{"urgent"}, {"g0", "g1", "g2"}, {"j0", "j1", "j2"}]
    assert world.reasons["j3"] == "place 6 of 11 in the queue: 3 jobs like it come first"
    world.until(lambda: all(state is ENDED for state in states(world).values()))


@pytest.mark.parametrize("result", ["failed", "deleted"])
@pytest.mark.parametrize("after_failed", ["end", "wait", "start"])
def test_what_becomes_of_a_job_after_one_that_failed(result: str, after_failed: str) -> None:
    world = World(2)
    world.submit("first", retries=0, max=1)
    world.until(lambda: world.state("first") is RUNNING)
    world.submit("later", max=1, after=("first",), after_failed=after_failed)
    world.rounds(3)
    assert world.state("later") is QUEUED
    if result == "failed":
        world.run_fails("first", "ZeroDivisionError")
    else:
        world.want("first", Goal.GONE)
    world.rounds(20)
    reason = world.jobs["later"].life.reason
    if after_failed == "end":
        assert world.state("later") is ENDED
        assert reason.startswith("job first, which was to finish first (after), ")
        assert ("ZeroDivisionError" in reason) is (result == "failed")
    elif after_failed == "wait":
        assert world.state("later") is QUEUED
        assert f"waits for job first, which is {result}" in world.reasons["later"]
    else:
        assert world.state("later") is RUNNING


def test_the_reason_of_a_job_that_waits_says_who_has_what_it_needs() -> None:
    world = running(2, 1, policy="edl", a={"min": 2, "max": 2}, b={"min": 1, "max": 1})
    world.submit("c", min=2, max=2)
    world.round()
    assert world.reasons["c"].endswith("; a has 2 slots, b has 1 slot")
    assert "to go" not in "".join(world.reasons.values()), "nobody has measured that"
