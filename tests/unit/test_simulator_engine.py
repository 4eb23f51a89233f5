"""How virtual time moves, with times worked out by hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar

import pytest
from clusters import Steps, nodes, result, run, submitted

from benchmarks.published.srtf import Srtf
from edl.cluster.policies.simple import Fifo, MaxMin
from edl.cluster.state import Allocation, ClusterPolicy, ClusterState, Node
from edl.errors import UsageError
from edl.policy.step_time import StepTimeSample
from edl.simulator.costs import (
    Failures,
    ResizeCost,
    SlotChange,
    change_of,
    constant,
    parse_resize_cost,
)
from edl.simulator.engine import Rules
from edl.simulator.results import BatchChange
from edl.simulator.workload import Observation, SubmittedJob


def test_with_an_interval_a_job_waits_for_the_next_decision() -> None:
    # Submitted at 10, seen at 60, 30 s for the start, then 100 s of work: 190.
    job = run(Fifo(), [submitted("a", 10, 100)], nodes(1), 30, interval_s=60)["a"]
    assert (job.start_s, job.end_s, job.jct_s, job.slot_s) == (60, 190, 180, 130)
    # Submitted just at 60 it is seen then; at 61 only at 120. Time begins at 0, the policy at 60.
    assert run(Fifo(), [submitted("a", 60, 1)], nodes(1), interval_s=60)["a"].jct_s == 1
    assert run(Fifo(), [submitted("a", 61, 1)], nodes(1), interval_s=60)["a"].jct_s == 60
    assert run(Fifo(), [submitted("a", 0, 1)], nodes(1), interval_s=60)["a"].start_s == 60


@dataclass
class Asked:
    """A policy that notes when it is asked."""

    rule: ClusterPolicy
    at_s: list[float] = field(default_factory=list)

    def __call__(self, cluster: ClusterState) -> Allocation:
        self.at_s.append(cluster.now_s)
        return self.rule(cluster)


def test_as_in_a_live_cluster_an_interval_begins_with_each_decision() -> None:
    # a has the slot until 105, b from then on until 115; a begins to train at 5, b comes at 10.
    jobs = [submitted("a", 0, 100), submitted("b", 10, 5)]
    asked = Asked(Fifo())
    assert run(asked, jobs, nodes(1), 5, interval_s=30, live=True)["b"].end_s == 115
    assert asked.at_s == pytest.approx([0, 5, 10, 40, 70, 100, 105, 110])
    asked = Asked(Fifo())  # without an interval, on events only
    run(asked, jobs, nodes(1), 5, live=True)
    assert asked.at_s == pytest.approx([0, 5, 10, 105, 110])


def test_as_in_a_live_cluster_a_job_keeps_its_slots_until_it_trains() -> None:
    # b would take the slot at 2; it gets it at 5, when a begins to train, and so ends at 30.
    jobs = [submitted("a", 0, 100), submitted("b", 2, 20)]
    assert run(Srtf(), jobs, nodes(1), 5)["b"].end_s == 27
    done = run(Srtf(), jobs, nodes(1), 5, live=True)
    assert (done["b"].end_s, done["a"].end_s) == pytest.approx((30, 135))


def test_as_in_a_live_cluster_jobs_grow_where_they_are() -> None:
    # a and b get four slots each; when a has ended, b grows to six on both nodes.
    jobs = [
        submitted("a", 0, 10, slots=4),
        submitted("b", 0, 100, slots=4, min_slots=1, max_slots=6),
    ]
    changes = [one.change for one in run(MaxMin(), jobs, nodes(4, 4), live=True)["b"].history]
    assert changes == [SlotChange.START, SlotChange.JOIN]


def test_a_job_trains_while_its_new_workers_start() -> None:
    # a has one slot until b ends at 10, trains with it until the second worker is there at 15,
    # stops for 1 s, and trains the 85 s that are left in 42.5.
    jobs = [submitted("a", 0, 100, max_slots=2), submitted("b", 0, 10)]
    cost = ResizeCost(start=0, join=1, leave=2, prepare=5)
    done = run(MaxMin(), jobs, nodes(2), resize=cost)
    assert done["a"].end_s == pytest.approx(58.5)
    # c takes the second slot again at 12, before its worker is there; a stops for 2 s then.
    done = run(MaxMin(), [*jobs, submitted("c", 12, 1000)], nodes(2), resize=cost)
    assert done["a"].end_s == pytest.approx(102)


def test_some_of_the_new_workers_may_still_come() -> None:
    # a has one slot until b ends at 10, is to have four, and three of them from 12 on, because of
    # c. These train from 15 on, after a stop of 1 s: 85 s of work are left, which take 28.3 s.
    jobs = [
        submitted("a", 0, 100, max_slots=4),
        submitted("b", 0, 10, slots=3),
        submitted("c", 12, 1000),
    ]
    cost = ResizeCost(start=0, join=1, leave=2, prepare=5)
    done = run(MaxMin(), jobs, nodes(4), resize=cost)
    assert done["a"].end_s == pytest.approx(16 + 85 / 3)


def test_its_slots_are_idle_from_its_end_to_the_next_decision() -> None:
    # a ends at 70, and b, which waits, begins at 120.
    jobs = [submitted("a", 0, 10), submitted("b", 0, 10)]
    assert run(Fifo(), jobs, nodes(1), interval_s=60)["b"].start_s == 120
    assert run(Fifo(), jobs, nodes(1))["b"].start_s == 10


def test_ends_are_rounded_to_whole_seconds_as_published() -> None:
    job = submitted("a", 0, 10.4)
    assert run(Fifo(), [job], nodes(1), interval_s=60, whole_seconds=True)["a"].end_s == 70
    assert run(Fifo(), [job], nodes(1), interval_s=60)["a"].end_s == pytest.approx(70.4)
    # 60.4 s are not over at the decision at 120; the 0.4 s that remain then are rounded to none.
    job = submitted("a", 0, 60.4)
    assert run(Fifo(), [job], nodes(1), interval_s=60, whole_seconds=True)["a"].end_s == 120


def test_a_preempted_job_keeps_its_work_and_pays_for_the_restart() -> None:
    # a trains from 5 to 10 and has 95 s left; b needs 20. b pays 5 and ends at 35. Then a pays 5
    # again, and ends at 135.
    jobs = [submitted("a", 0, 100), submitted("b", 10, 20)]
    done = run(Srtf(), jobs, nodes(1), 5)
    assert (done["a"].end_s, done["b"].end_s) == pytest.approx((135, 35))
    assert (done["a"].slot_s, done["b"].slot_s) == pytest.approx((10 + 100, 25))
    changes = [(moment.at_s, moment.change) for moment in done["a"].history]
    assert changes == [(0, SlotChange.START), (10, SlotChange.PREEMPT), (35, SlotChange.RESTART)]
    assert (done["a"].resizes, done["b"].resizes) == (1, 0)
    assert done["a"].history[1].reason == "waits: 95 s remain, needs 1 slot and 0 are left"


def test_each_kind_of_change_has_its_cost() -> None:
    # a has 4 slots and does a quarter of its 40 s in 10. Then b comes, both have 2: a stands still
    # for 0.5 s, b needs 5 s. In the 4.5 s until then a does 4.5 / 80. With 4 slots again, after
    # another 1 s, the rest takes (1 - 0.25 - 0.05625) * 40 = 27.75 s: 15 + 1 + 27.75.
    elastic = {"min_slots": 1, "max_slots": 4}
    jobs = [submitted("a", 0, 40, 4, **elastic), submitted("b", 10, 10, 1, **elastic)]
    cost = ResizeCost(start=0, leave=0.5, join=1)
    done = run(MaxMin(), jobs, nodes(4), resize=cost)
    assert (done["a"].end_s, done["b"].end_s) == pytest.approx((43.75, 15))
    assert done["a"].slot_s == pytest.approx(10 * 4 + 5 * 2 + 28.75 * 4)
    assert [moment.change for moment in done["a"].history] == ["start", "leave", "join"]


def test_a_change_does_not_shorten_the_pause_that_it_falls_into() -> None:
    # a pays 30 s for its start; at 10 b comes and a loses a slot, which costs 1 s: 20 s are left.
    elastic = {"min_slots": 1, "max_slots": 2}
    jobs = [submitted("a", 0, 10, 1, **elastic), submitted("b", 10, 500, 1, **elastic)]
    done = run(MaxMin(), jobs, nodes(2), resize=ResizeCost(start=30, leave=1))
    assert done["a"].end_s == pytest.approx(40)


@pytest.mark.parametrize(
    ("before", "after", "trained", "change"),
    [
        ((), (("a", 1),), False, SlotChange.START),
        ((), (("a", 1),), True, SlotChange.RESTART),
        ((("a", 1),), (), True, SlotChange.PREEMPT),
        ((("a", 1),), (("a", 2),), True, SlotChange.JOIN),
        ((("a", 1),), (("b", 2), ("a", 1)), True, SlotChange.JOIN),
        ((("a", 2), ("b", 1)), (("a", 2),), True, SlotChange.LEAVE),
        ((("a", 2),), (("b", 2),), True, SlotChange.MIGRATE),
        ((("a", 2), ("b", 1)), (("a", 1), ("b", 2)), True, SlotChange.MIGRATE),
    ],
)
def test_kinds_of_change(before, after, trained, change) -> None:
    assert change_of(before, after, trained) is change


def test_costs_as_text() -> None:
    assert parse_resize_cost("0.3") == constant(0.3)
    assert parse_resize_cost("join=0.3, restart=20") == ResizeCost(join=0.3, restart=20)
    assert parse_resize_cost("join=0.3,prepare=12") == ResizeCost(join=0.3, prepare=12)
    for wrong in ("", "thirty", "joins=3", "join=", "30,40"):
        with pytest.raises(UsageError, match="is no cost of a resize; write seconds"):
            parse_resize_cost(wrong)
    for wrong in ("-1", "join=-1", "inf", "nan"):
        with pytest.raises(UsageError, match="a time that is negative or endless"):
            parse_resize_cost(wrong)


def test_spread_jobs_that_share_a_node_slow_each_other_down() -> None:
    # a has n0: 2, n1: 1 and b n2: 2, n1: 1. At half speed a takes 100 s; b has done 50 s by then,
    # and does the rest of its 100 alone.
    jobs = [submitted("a", 0, 50, 3), submitted("b", 0, 100, 3)]
    done = run(Fifo(), jobs, nodes(2, 2, 2), interference=0.5)
    assert (done["a"].end_s, done["b"].end_s) == pytest.approx((100, 150))
    # One that is on one node only disturbs nobody.
    done = run(Fifo(), [jobs[0], submitted("b", 0, 100)], nodes(2, 2), interference=0.5)
    assert (done["a"].end_s, done["b"].end_s) == pytest.approx((50, 100))


def test_a_job_is_as_fast_as_its_slowest_node() -> None:
    machines = [Node("new", 2, "fast"), Node("old", 1, "slow")]
    speeds = {"fast": 2.0, "slow": 0.5}
    jobs = [submitted("a", 0, 60, 2), submitted("b", 1000, 60, 3)]
    done = run(Fifo(), jobs, machines, speeds=speeds)
    assert (done["a"].jct_s, done["b"].jct_s) == pytest.approx((30, 120))


class Once(Failures):
    """The only node fails at 50 and is back at 80."""

    def events(self, nodes) -> Iterator[tuple[float, str, bool]]:
        yield 50.0, "n0", False
        yield 80.0, "n0", True


def test_a_failed_node_costs_a_restart_and_no_work() -> None:
    # 10 s for the start, 40 s of work, 30 s without a node, 10 s for the restart, 60 s: 150.
    job = run(Fifo(), [submitted("a", 0, 100)], nodes(1), 10, failures=Once(1, 1))["a"]
    assert (job.end_s, job.slot_s) == pytest.approx((150, 50 + 70))
    kinds = [moment.change for moment in job.history]
    assert kinds == [SlotChange.START, SlotChange.FAILURE, SlotChange.RESTART]
    # With an interval of 60 s, the node is away at the first decision, and the job starts at 120.
    job = run(Fifo(), [submitted("a", 0, 100)], nodes(1), 10, interval_s=60, failures=Once(1, 1))
    assert job["a"].end_s == pytest.approx(120 + 10 + 100)


def test_failures_are_drawn_by_seed_and_node() -> None:
    def firsts(seed: int, *slots: int) -> list[tuple[float, str, bool]]:
        events = Failures(100, 10, seed).events(nodes(*slots))
        return [next(events) for _ in range(20)]

    assert firsts(1, 4) == firsts(1, 4) != firsts(2, 4)
    assert [up for _, _, up in firsts(1, 4)] == [False, True] * 10
    times = [at_s for at_s, _, _ in firsts(1, 4, 4)]
    assert times == sorted(times)
    of_n0 = [event for event in firsts(1, 4, 4) if event[1] == "n0"]
    assert of_n0 == firsts(1, 4)[: len(of_n0)]  # another node changes nothing for it


def test_what_cannot_run_is_refused_before_it_begins() -> None:
    with pytest.raises(UsageError, match="job a asks for 3 slots, and the cluster has 2 on 2 node"):
        run(Fifo(), [submitted("a", 0, 1, 3)], nodes(1, 1))
    with pytest.raises(UsageError, match="two jobs are named a"):
        run(Fifo(), [submitted("a", 0, 1), submitted("a", 0, 1)], nodes(1))
    with pytest.raises(UsageError, match="the interval is -1 s"):
        Rules(interval_s=-1)
    with pytest.raises(UsageError, match="the interference is 1;"):
        Rules(interference=1)


@pytest.mark.parametrize("interval_s", [0.0, 60.0])
def test_a_policy_that_starts_nobody_ends_the_run(interval_s: float) -> None:
    def idle(cluster: ClusterState) -> Allocation:
        return Allocation({}, {job.name: "waits for better times" for job in cluster.jobs})

    with pytest.raises(UsageError, match=r"lets 1 job wait for ever.*\(a waits for better"):
        run(idle, [submitted("a", 5, 1)], nodes(1), interval_s=interval_s)


def test_a_summary() -> None:
    # a: 0 to 10; b, submitted at 5, waits until 10 and ends at 40; completion times 10 and 35.
    done = result(Fifo(), [submitted("b", 5, 30), submitted("a", 0, 10)], nodes(1))
    assert [job.name for job in done.jobs] == ["b", "a"]
    figures = done.figures(history=True)
    assert (figures["mean_jct_s"], figures["makespan_s"], figures["slot_s"]) == (22.5, 40, 40)
    assert figures["p50_jct_s"] == pytest.approx(22.5)
    assert figures["p99_jct_s"] == pytest.approx(10 + 0.99 * 25)
    (only,) = figures["jobs"][1].pop("history")
    assert figures["jobs"][1].pop("batches") == []
    assert only == {
        "at_s": 0,
        "change": "start",
        "slots": 1,
        "placement": {"n0": 1},
        "reason": "has 1 slot: submitted 0 s ago",
    }
    assert figures["jobs"][1] == {
        "name": "a",
        "kind": "",
        "arrival_s": 0,
        "start_s": 0,
        "end_s": 10,
        "jct_s": 10,
        "slot_s": 10,
        "resizes": 0,
        "finish_time_fairness": pytest.approx(10 / 15),  # alone for 5 s, one of two for 5 s
    }


@dataclass(frozen=True)
class Batched:
    """Progress of 100: 1 a second, 2 with a larger batch."""

    epochs: int = 1

    def end_of(self, epoch: int) -> float:
        return 100.0

    def rate(self, slots: tuple[int, ...], batch: int, epoch: int) -> float:
        return 1.0 if batch == 1 else 2.0

    def model(self, epoch: int, progress: float) -> Steps:
        return Steps()

    def observed(self, slots: tuple[int, ...], batch: int, epoch: int) -> Observation:
        return StepTimeSample(1, 1, batch, 1.0, 1.0), None


def test_another_batch_costs_nothing_and_is_kept() -> None:
    def double_at_60(cluster: ClusterState) -> Allocation:
        jobs, notes = cluster.jobs, cluster.state
        allocation = {job.name: (("n0", 1),) for job in jobs}
        batches = {job.name: 2 for job in jobs if cluster.now_s >= 60}
        # It sees the batch of before, and the ways in which the job has trained.
        seen = [*notes.get("seen", []), *((job.batch, len(job.steps)) for job in jobs)]
        assert seen == [(1, 0), (1, 1), (2, 2)][: len(seen)]
        notes = {"seen": seen}
        return Allocation(allocation, {job.name: "so" for job in jobs}, notes, batches)

    # 10 s for the start at 30, 20 s with one sample; from 60 on 80 are left, at 2 a second.
    job = SubmittedJob("a", 0, Batched(), 1, 1, 1, 1, (1, 2))
    done = run(double_at_60, [job], nodes(1), 10, interval_s=30)["a"]
    assert (done.end_s, done.slot_s) == (100, 70)
    assert (len(done.history), done.batches) == (1, (BatchChange(60, 2),))
    assert done.figures(history=True)["batches"] == [{"at_s": 60, "batch": 2}]


def test_with_drop_a_job_without_slots_is_turned_away_at_once() -> None:
    jobs = [submitted("a", 0, 100), submitted("b", 5, 100), submitted("c", 115, 100)]
    done = result(Fifo(), jobs, nodes(1), interval_s=10, drop=True)
    # a runs from 10 to 110. b is seen at 10, when a has the slot. c has it from 120 on.
    assert [(job.start_s, job.end_s, job.dropped) for job in done.jobs] == [
        (10, 110, False),
        (10, 10, True),
        (120, 220, False),
    ]
    figures = done.figures()
    assert (figures["mean_jct_s"], figures["makespan_s"], figures["dropped"]) == (107.5, 220, 1)
    assert [job.get("dropped", False) for job in figures["jobs"]] == [False, True, False]


def test_with_drop_nobody_who_has_begun_is_turned_away() -> None:
    # b preempts a at 10, and a waits until b has ended.
    jobs = [submitted("a", 0, 100), submitted("b", 10, 20)]
    done = run(Srtf(), jobs, nodes(1), drop=True)
    assert (done["a"].end_s, done["b"].end_s, done["a"].dropped) == (120, 30, False)


def test_with_a_policy_that_only_starts_jobs_few_are_looked_at() -> None:
    class Counting:
        in_order = True
        asked: ClassVar[list[int]] = []

        def __call__(self, cluster: ClusterState) -> Allocation:
            self.asked.append(len(cluster.jobs))
            return Fifo()(cluster)

    # 50 jobs of one slot come at once to 40: 1, 2, 4, 8 and 16 start, and 9 of the last 19. Of the
    # other 10 one starts whenever a slot becomes free.
    jobs = [submitted(f"j{number}", 0, 100 + number) for number in range(50)]
    done = result(Counting(), jobs, nodes(*[4] * 10))
    assert Counting.asked == [1, 2, 4, 8, 16, 19] + [1] * 10
    starts_s = [job.start_s for job in done.jobs[40:]]
    assert starts_s == pytest.approx([100 + number for number in range(10)])
    assert done.makespan_s == pytest.approx(109 + 149)
    assert done.decisions == 50


def test_a_node_that_fails_on_an_idle_cluster_turns_no_clock_back() -> None:
    # Between the ends of a and the submission of b nodes fail; b is seen at 10020.
    jobs = [submitted("a", 0, 10), submitted("b", 10_001, 10)]
    done = run(Fifo(), jobs, nodes(1, 1, 1, 1), interval_s=60, failures=Failures(300.0, 60.0, 2))
    assert (done["b"].start_s, done["b"].jct_s) == (10_020, 29)


@pytest.mark.parametrize("interval_s", [0.0, 60.0])
def test_a_trace_with_the_clock_of_a_computer_ends_as_one_from_zero(interval_s) -> None:
    clock = 1_728_000_000_000  # milliseconds since 1970, a multiple of 60
    jobs = [submitted("a", 600, 10.3), submitted("b", 605, 25.7)]
    late = [replace(job, arrival_s=job.arrival_s + clock) for job in jobs]
    early, done = (run(Fifo(), each, nodes(1), interval_s=interval_s) for each in (jobs, late))
    for name in ("a", "b"):
        assert done[name].arrival_s == clock + early[name].arrival_s
        assert done[name].jct_s == pytest.approx(early[name].jct_s, abs=1e-3)
        assert done[name].slot_s == pytest.approx(early[name].slot_s, abs=1e-9)
    # Far apart, a float cannot tell microseconds from each other any more.
    done = run(Fifo(), [jobs[0], late[1]], nodes(1), interval_s=interval_s)
    assert done["b"].jct_s == pytest.approx(25.7, abs=61)


def test_more_failures_than_can_be_drawn_are_refused() -> None:
    jobs = [submitted("a", 0, 10), submitted("b", 1_764_000_000_000, 10)]
    with pytest.raises(UsageError, match=r"1.76e\+12 s, 1 nodes would fail .* are in seconds"):
        run(Fifo(), jobs, nodes(1), interval_s=60, failures=Failures(300.0, 60.0, 2))
