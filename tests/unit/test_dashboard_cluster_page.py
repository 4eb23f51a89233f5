"""The page of a cluster: its header, hosts, tenants, jobs, events and what a request would get."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from cluster_world import World

from edl.cluster.lifecycle import ClusterEvent, ClusterEventKind, LifeResult, LifeState
from edl.cluster.queues import QueueStatus, queue_statuses
from edl.cluster.records import Goal, LeaseRecord, LeaseState, LeaseTable, QueueRecord
from edl.cluster.status import ClusterJobStatus, ClusterStatus, HostStatus
from edl.dashboard.view.cluster_page import (
    ClusterObservation,
    away_cluster_in_words,
    cluster_header,
    cluster_sections,
    host_views,
    tenant_uses,
)
from edl.dashboard.view.events import ClusterEventView, EventBuffer, EventChoice, cluster_event_view
from edl.dashboard.view.page import JobChoice, chosen_jobs, job_counts


def job(name: str, state: LifeState = LifeState.RUNNING, **changes: Any) -> ClusterJobStatus:
    values: dict[str, Any] = {
        "reason": f"{name} is {state}",
        "wanted": Goal.RUN,
        "result": None,
        "exit_code": 0,
        "slots": 2 if state is LifeState.RUNNING else 0,
        "surplus": 0,
        "min": 1,
        "max": 4,
        "np": 4,
        "priority": 0,
        "queue": "default",
        "submitted_s": 1.0,
        "since_s": 1.0,
        "started_s": 1.0,
        "ended_s": 0.0,
        "runs": 1,
        "failures": 0,
    }
    return ClusterJobStatus(name, state, **(values | changes))


def host(name: str, state: str = "offers", **jobs: int) -> HostStatus:
    return HostStatus(name, state, 4, sum(jobs.values()), jobs, {}, "", "1")


def status(*hosts: HostStatus, **changes: Any) -> ClusterStatus:
    values: dict[str, Any] = {
        "cluster": "lab",
        "leader": "process 7 on a",
        "version": "1",
        "term": 3,
        "waiting": 1,
        "policy": "edl",
        "parameters": {},
        "problem": "",
        "slots": sum(one.slots for one in hosts),
        "used": sum(one.used for one in hosts),
        "jobs": {},
        "hosts": hosts,
        "fleet": "",
        "zookeeper": "here:1",
    }
    return ClusterStatus(**(values | changes))


def observed(now: ClusterStatus | None = None, *jobs: ClusterJobStatus) -> ClusterObservation:
    return ClusterObservation("lab", jobs, "here:1", 100.0, 90.0, now)


@pytest.mark.parametrize(
    ("now", "words", "tone"),
    [
        (status(host("a", j=3)), "3 of 4 slots in use", "good"),
        (status(), "no host offers slots", "warning"),
        (status(host("a"), leader="", problem="x"), "no controller leads", "bad"),
        (status(host("a"), problem="x"), "the policy's decision is not used", "warning"),
    ],
)
def test_the_header_says_in_words_how_the_cluster_is(
    now: ClusterStatus, words: str, tone: str
) -> None:
    header = cluster_header(observed(now, job("j")))
    assert (header["words"], header["tone"]) == (words, tone)
    assert header["controllers"] == 1 + bool(now.leader)
    assert header["jobs"] == {"running": 1}


def test_a_tenant_sees_neither_hosts_nor_queues_nor_who_leads() -> None:
    found = cluster_sections(replace(observed(None, job("ann.j")), viewer="ann"))
    assert (found["hosts"], found["queues"], found["tenants"]) == (None, None, None)
    header = found["header"]
    assert header["words"] == "the jobs of tenant ann"
    assert (header["slots"], header["leader"], header["hosts"]) == (None, "", None)
    assert (header["used"], header["jobs"]) == (2, {"running": 1})


def test_hosts_that_need_a_look_come_first_and_numbers_count_as_numbers() -> None:
    hosts = (host("n10"), host("n9", j=4), host("n11", "silent"), host("n2", "drained"))
    table = LeaseTable(
        "slurm",
        leases={
            "l1": LeaseRecord(4, 0.0, LeaseState.RUNNING, "n9"),
            "l2": LeaseRecord(4, 0.0, LeaseState.ASKED, why="Priority"),
            "l3": LeaseRecord(4, 0.0, LeaseState.ENDED),
        },
    )
    found = host_views(hosts, table)
    assert [one.host for one in found["rows"]] == ["n2", "n11", "n9", "n10", ""]
    assert [one.tone for one in found["rows"]] == ["over", "warning", "good", "good", "warning"]
    assert [one.lease for one in found["rows"][2:]] == ["l1, running", "", "l2: Priority"]
    assert (found["total"], found["leases"]) == (4, 1)


def test_of_a_thousand_hosts_with_many_jobs_a_bounded_number_is_sent() -> None:
    jobs = {f"j{number}": 1 for number in range(50)}
    found = host_views([host(f"n{number}", **jobs) for number in range(1000)], LeaseTable())
    assert (len(found["rows"]), found["total"]) == (200, 1000)
    assert (len(found["rows"][0].jobs), found["rows"][0].more_jobs) == (12, 38)


def test_tenants_are_shown_with_the_slots_and_quotas_of_all_their_queues() -> None:
    queues = tuple(
        QueueStatus(name, quota, 1.0, None, 0, 0, 0, 0, 0, 0)
        for name, quota in (("ops", 1), ("r1", 2), ("r2", 3))
    )
    jobs = (job("own"), job("ann.a"), job("ann.b", LifeState.QUEUED), job("bob.c", slots=3))
    reading = replace(
        observed(status(host("a"), queues=queues), *jobs),
        tenants=("ann", "bob"),
        queue_tenants={"r1": "ann", "r2": "ann"},
    )
    found = {one.tenant: one for one in tenant_uses(reading)}
    assert found["ann"].queues == ("r1", "r2")
    assert (found["ann"].quota, found["ann"].slots) == (5, 2)
    assert (found["ann"].running, found["ann"].waiting) == (1, 1)
    assert (found["bob"].slots, found["bob"].queues) == (3, ())
    assert (found[""].slots, found[""].queues) == (2, ("ops",))
    assert tenant_uses(observed(status())) == ()


def test_jobs_with_slots_come_first_then_the_queue_in_its_order() -> None:
    ended = {"result": LifeResult.FINISHED}
    jobs = (
        job("old", LifeState.ENDED, ended_s=5.0, **ended),
        job("q1", LifeState.QUEUED),
        job("q2", LifeState.QUEUED, priority=9),
        job("held", LifeState.HALTED),
        job("run"),
        job("new", LifeState.ENDED, ended_s=9.0, result=LifeResult.FAILED),
    )
    assert [one.name for one in chosen_jobs(jobs, JobChoice()).jobs] == [
        *("run", "q2", "q1", "held", "new", "old")
    ]
    assert job_counts(jobs) == {"failed": 1, "finished": 1, "halted": 1, "queued": 2, "running": 1}
    page = chosen_jobs(jobs, JobChoice(states=frozenset({"queued", "failed"}), limit=2))
    assert ([one.name for one in page.jobs], page.total) == (["q2", "q1"], 3)
    assert chosen_jobs(jobs, JobChoice(text="IS running")).total == 1
    assert chosen_jobs(jobs, JobChoice(queue="none")).total == 0


def test_events_are_found_by_who_is_behind_them_and_by_words() -> None:
    kept: EventBuffer[ClusterEventView] = EventBuffer()
    logged = [
        ClusterEvent(1.0, ClusterEventKind.SUBMITTED, "job j was submitted", "j", by="ann@a"),
        ClusterEvent(2.0, ClusterEventKind.HOST, "host b has come", host="b"),
        ClusterEvent(
            3.0,
            ClusterEventKind.STATE,
            "it failed",
            "j",
            state=LifeState.ENDED,
            result=LifeResult.FAILED,
        ),
        ClusterEvent(4.0, ClusterEventKind.SLOTS, "slots b: 0", "k", slots={"b": 1}),
    ]
    kept.add(cluster_event_view(number, one) for number, one in enumerate(logged))
    assert kept.counts() == {"bad": 1, "host": 1, "plain": 1, "user": 1}
    assert [one.number for one in kept.chosen(EventChoice())] == [3, 2, 1, 0]
    assert [one.number for one in kept.chosen(EventChoice(text="ANN submitted"))] == [0]
    assert [one.number for one in kept.chosen(EventChoice(frozenset({"bad", "host"})))] == [2, 1]
    assert [one.number for one in kept.chosen(EventChoice(before=2, limit=1))] == [1]


def test_what_cannot_be_read_is_said_with_its_age() -> None:
    assert away_cluster_in_words("no answer", 10.0, 13.2) == (
        "The cluster could not be read for 3 seconds: no answer. The page shows what was known "
        "before; running jobs train on without it."
    )


def live(*slots: int, **jobs: dict[str, object]) -> World:
    world = World(*slots, policy="max_min")
    for name, limits in jobs.items():
        world.submit(name, **limits)
    world.rounds(6)
    world.reads_jobs(world.leader)
    return world


def test_a_queue_has_its_part_while_all_want_all() -> None:
    world = World(4, 4)
    world.queues = {"prod": QueueRecord(2, weight=3.0), "dev": QueueRecord(2)}
    world.reads_jobs(world.leader)
    found = queue_statuses(world.view(world.leader))
    assert {one.queue: one.part for one in found} == {"prod": 5, "dev": 3}
