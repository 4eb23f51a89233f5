"""Our own policy: prices, goodput, what a resize repays, and who is due, worked out by hand."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from clusters import Steps, decide, job, nodes, sizes

from edl.cluster.policies.edl import EdlPolicy, curve
from edl.cluster.policies.registry import policy_named
from edl.cluster.state import EXACT, Node, StepTimeError
from edl.simulator.costs import parse_resize_cost

RULE = EdlPolicy(patience=1000.0)  # nobody is due
PRICES = "; price"


def short(second_s: float = 0.5, **changes):
    """100 slot-seconds; a step takes 1 s, on two slots ``second_s``."""
    return job("short", max_slots=2, model=Steps(100, {1: 1.0, 2: second_s}), **changes)


def long(left: float = 300, **changes):
    return job("long", max_slots=2, model=Steps(left, {1: 1.0, 2: 1.0}), **changes)


# W of short: 1/2 + 300 / 400 = 1.25, of long: 1/2 + 100 / 400 = 0.75; their roots: 1.118 and 0.866.
# The second slot goes to short if (s(2) - 1) * 1.118 > 0.866, which is s(2) > 1.775.
@pytest.mark.parametrize(
    ("second_s", "expected"),
    [
        (0.5, {"short": 2}),  # s(2) = 2
        (0.55, {"short": 2}),  # 1.818
        (0.6, {"short": 1, "long": 1}),  # 1.667
    ],
)
def test_the_shorter_one_has_more_if_it_can_use_it(second_s: float, expected) -> None:
    assert sizes(decide(RULE, [short(second_s), long()], nodes(2))) == expected
    assert sizes(decide(RULE, [long(), short(second_s)], nodes(2))) == expected
    assert sizes(decide(RULE, [short(second_s), long()], nodes(1))) == {"short": 1}


def test_with_an_exponent_of_0_only_throughput_counts() -> None:
    by_throughput = replace(RULE, exponent=0.0)
    both = decide(by_throughput, [short(0.55), long()], nodes(2))  # 1 + 1 > 1.818
    assert sizes(both) == {"short": 1, "long": 1}


def test_a_heavy_job_counts_as_several() -> None:
    # One slot. Equal weights: see above. With weight 4 long has y = 75: W of long is
    # 4 / 2 + 100 / 175 = 2.571, W of short 1/2 + 4 * 75 / 175 = 2.214.
    decision = decide(RULE, [short(), long(weight=4.0)], nodes(1))
    assert sizes(decision) == {"long": 1}
    assert decision.reasons == {
        "short": f"waits: about 1 min 40 s to go on its fewest slots{PRICES} 1.49",
        "long": f"has 1 slot: about 5 min to go{PRICES} 1.60",
    }


@pytest.mark.parametrize(
    ("left", "resize_s", "slots"),
    [
        (100, 30.0, 1),  # with two 83 s would be left: 1.2 * (1 - 30 / 83) = 0.77 is below 1
        (100, 5.0, 2),  # 1.2 * (1 - 5 / 83) = 1.13
        (1000, 30.0, 2),  # 833 s, of which 600 count: 1.2 * (1 - 30 / 600) = 1.14
        (1000, 120.0, 1),  # 1.2 * (1 - 120 / 600) = 0.96
    ],
)
def test_a_change_has_to_repay(left: float, resize_s: float, slots: int) -> None:
    one = job("one", max_slots=2, model=Steps(left, {1: 1.0, 2: 1 / 1.2}))
    rule = replace(RULE, resize_s=resize_s)
    assert sizes(decide(rule, [one], nodes(2), {"one": (("n0", 1),)})) == {"one": slots}
    assert sizes(decide(rule, [one], nodes(2))) == {"one": 2}  # its start costs in any case


@pytest.mark.parametrize(("left", "horizon_s"), [(0, 600.0), (100, 0.0)])
def test_a_change_that_costs_nothing_needs_no_time_to_repay(left: float, horizon_s: float) -> None:
    """Neither a job whose last step is done nor a horizon of 0 makes it 0 / 0."""
    one = job("one", max_slots=2, model=Steps(left, {1: 1.0, 2: 1 / 1.2}))
    rule = replace(RULE, resize_s=0.0, horizon_s=horizon_s)
    assert sizes(decide(rule, [one], nodes(2), {"one": (("n0", 1),)})) == {"one": 2}


@pytest.mark.parametrize("setting", [{"resize_s": 600.0}, {"horizon_s": 30.0}])
def test_a_change_that_never_repays_changes_nothing(setting: dict[str, float]) -> None:
    """A job cannot have the size 1 here: its value stays minus infinity, and is no 0 * infinity."""
    one = job("one", 2, min_slots=2, max_slots=4, model=Steps(1000))
    rule, present = replace(RULE, **setting), {"one": (("n0", 2),)}
    assert decide(rule, [one], nodes(4), present).placements == present


@pytest.mark.parametrize(
    ("left", "who"),
    [
        # Who runs has 300 s left: to stop it costs a tenth of its price, 30 s of 300.
        (200, "new"),  # W = 1.1 and 0.9, prices 1.049 and 0.949: 1.049 - 0.095 > 0.949
        (250, "long"),  # W = 1.045 and 0.955, prices 1.022 and 0.977: 1.022 - 0.098 < 0.977
    ],
)
def test_who_runs_is_stopped_only_for_a_clearly_shorter_one(left: float, who: str) -> None:
    new = job("new", max_slots=2, model=Steps(left, {1: 1.0, 2: 1.0}))
    assert sizes(decide(RULE, [long(), new], nodes(1), {"long": (("n0", 1),)})) == {who: 1}


def test_who_is_due_goes_first_and_keeps_its_minimum() -> None:
    # long came at 0 and is due after a quarter of 300 s; short came at 90: at 90 + 25 = 115.
    rule = EdlPolicy(patience=0.25, wide_patience=0.25, quantum_s=50.0, rest_weight=0.25)
    jobs = [long(), short(arrival_s=90.0)]
    decision = decide(rule, jobs, nodes(1))
    waits = {"long": [50.0, 75.0, False], "short": [15.0, None, False]}
    assert decision.state == {"at_s": 100.0, "waits": waits, "readings": {}}
    assert sizes(decision) == {"long": 1}
    assert decision.reasons["long"].endswith("; 25 s past its fair wait")
    # At 120 s both are due. The deadlines are 75 + 300 / 4 and 115 + 100 / 4 s; nearly done, that
    # of long is 75 + 1 / 4 s.
    nearly_done = [long(left=1), short(arrival_s=90.0)]
    later = decide(rule, nearly_done, nodes(1), decision.placements, decision.state, 120.0)
    assert sizes(later) == {"long": 1}
    assert later.state["waits"] == {"long": [30.0, 75.0, False], "short": [50.0, 115.0, False]}
    both = decide(rule, jobs, nodes(1), decision.placements, decision.state, 120.0)
    assert sizes(both) == {"short": 1}
    assert sizes(decide(rule, jobs, nodes(3), state=decision.state)) == {"long": 1, "short": 2}
    # At 160 s the turn of long is over, and short is due.
    over = decide(rule, jobs, nodes(1), decision.placements, decision.state, 160.0)
    assert sizes(over) == {"short": 1}
    assert over.state["waits"]["long"] == [75.0, None, True]


def test_of_rigid_jobs_the_shorter_one_counts_most() -> None:
    # W is 1.25 and 0.75. With only rigid jobs p is 1; if a quarter of the work is not, 0.875.
    rigid = job("rigid", max_slots=1, model=Steps(300, {1: 1.0}))
    other = job("other", max_slots=1, model=Steps(100, {1: 1.0}))
    told = decide(RULE, [rigid, other], nodes(1)).reasons
    assert told["other"].endswith(f"{PRICES} 1.25")
    told = decide(RULE, [rigid, short()], nodes(1)).reasons
    assert told["short"].endswith(f"{PRICES} {1.25**0.875:.2f}")


def test_of_rigid_jobs_of_the_same_work_the_narrower_counts_most() -> None:
    # Both have 100 slot-seconds. Counted once a slot: 200 for wide; W: 1/2 + 200 / 300 for narrow.
    wide = job("wide", 2, min_slots=2, max_slots=2, model=Steps(100))
    narrow = job("narrow", max_slots=1, model=Steps(100, {1: 1.0}))
    told = decide(RULE, [wide, narrow], nodes(2)).reasons
    assert told["narrow"].endswith(f"{PRICES} 1.17")
    assert told["wide"].endswith(f"{PRICES} 0.83")


@pytest.mark.parametrize(
    ("arrival_s", "first"),
    [
        (80.0, "short"),  # due at 80 + 10 s, the deadline is 90 + 0.5 * 100
        (99.0, "short"),  # 109 + 50, before that of long
        (109.0, "long"),  # 119 + 50 is after it
    ],
)
def test_a_short_job_passes_a_long_one_that_is_due_for_a_time(arrival_s: float, first: str) -> None:
    # long is due at 0 + 0.1 * 300 s. Of what is left of it 270 s count: 30 + 0.5 * 270 = 165 s.
    rule = EdlPolicy(patience=0.1, wide_patience=0.1, rest_weight=0.5, rest_most_s=270.0)
    jobs = [long(), short(arrival_s=arrival_s)]
    assert sizes(decide(rule, jobs, nodes(1), now_s=120.0)) == {first: 1}


@pytest.mark.parametrize(("deviation", "slots"), [(0.0, 2), (0.1, 1), (0.05, 2)])
def test_a_change_has_to_be_better_than_the_error(deviation: float, slots: int) -> None:
    # With two slots 1.2 times as fast, a change is worth 1.14 (above): 0.14 is less than sqrt(2)
    # times 0.1, and more than sqrt(2) times 0.05. Three measurements err together.
    model = Steps(1000, {1: 1.0, 2: 1 / 1.2}, StepTimeError(deviation, 3))
    one = job("one", max_slots=2, model=model)
    assert sizes(decide(RULE, [one], nodes(2), {"one": (("n0", 1),)})) == {"one": slots}
    assert sizes(decide(RULE, [one], nodes(2))) == {"one": 2}


def test_times_that_err_by_themselves_are_averaged_over_decisions() -> None:
    model = Steps(100, {1: 1.0, 2: 0.5}, StepTimeError(0.1))
    first = decide(RULE, [short(), job("one", max_slots=2, model=model)], nodes(4))
    assert first.state["readings"] == {
        "one": {"1 1": [0.0, 1.0], "2 1": [pytest.approx(-0.693, abs=0.001), 1.0]}
    }
    again = curve(job("one", max_slots=2, model=model), 0, 4, 4, first.state["readings"]["one"])
    assert again.readings["1 1"] == [0.0, 2]
    assert again.deviation == pytest.approx(0.1 / 2**0.5)


FAST_AND_SLOW = [Node("n0", 2, "slow"), Node("n1", 2, "fast")]


@pytest.mark.parametrize("machines", [FAST_AND_SLOW, FAST_AND_SLOW[::-1]])
def test_the_fastest_nodes_go_where_they_are_worth_most(machines: list[Node]) -> None:
    rule = replace(RULE, speeds="fast=4")
    jobs = [long(), short()]
    placed = decide(rule, jobs, machines).placements
    assert placed == {"short": (("n1", 2),), "long": (("n0", 1),)}
    # When short has ended, long moves: 4 (1 - 30 / 75) is more than 1. With 8 s left it is not.
    here = {"long": (("n0", 1),)}
    assert decide(rule, [long()], machines, here).placements == {"long": (("n1", 1),)}
    assert decide(rule, [long(left=8)], machines, here).placements == here
    # Without speeds nodes are alike.
    assert decide(RULE, [long()], machines, here).placements == here


def test_while_one_that_is_due_waits_nobody_starts_who_could_not_be_stopped() -> None:
    # wide is due at 0 + 0.25 * 50 s, and of two slots one may not be taken.
    wide = job("wide", 2, min_slots=2, max_slots=2, model=Steps(100))
    firm = job("firm", max_slots=1, preemptible=False, model=Steps(1000))
    present = {"firm": (("n0", 1),)}
    rule = EdlPolicy(patience=0.25, wide_patience=0.25)
    other = job("other", max_slots=1, arrival_s=99.0)
    assert sizes(decide(rule, [firm, wide, other], nodes(2), present)) == {"firm": 1, "other": 1}
    held = replace(other, preemptible=False)
    assert sizes(decide(rule, [firm, wide, held], nodes(2), present)) == {"firm": 1}


def test_it_is_held_too_if_a_due_job_fits_into_no_pool_of_one_speed() -> None:
    # Of two pools of 4 slots each has 3 free, and wide needs 4. It is due for 87.5 s, early for 99,
    # late for 37.5; the deadlines are 12.5 + 50 s for wide, 1 + 4 for early, 62.5 + 50 for late.
    machines = [Node("n0", 4, "slow"), Node("n1", 4, "fast")]
    firm = [job(name, max_slots=1, preemptible=False, model=Steps(1000)) for name in ("f0", "f1")]
    present = {"f0": (("n0", 1),), "f1": (("n1", 1),)}
    rule = EdlPolicy(patience=0.25, wide_patience=0.25, speeds="fast=2", rest_weight=1.0)
    wide = job("wide", 4, min_slots=4, max_slots=4, model=Steps(200))
    early = job("early", max_slots=1, preemptible=False, model=Steps(4))
    late = job("late", max_slots=1, preemptible=False, arrival_s=50.0, model=Steps(50))
    other = job("other", max_slots=1, arrival_s=99.0, model=Steps(50))
    fresh = replace(other, name="fresh", preemptible=False)
    jobs = [*firm, wide, early, late, other, fresh]
    found = sizes(decide(rule, jobs, machines, present))
    assert found == {"f0": 1, "f1": 1, "early": 1, "other": 1}
    # Without f0 there is a pool for wide, and nobody is held.
    there = {"f1": (("n1", 1),)}
    found = sizes(decide(rule, [*firm[1:], wide, late, fresh], machines, there))
    assert found == {"f1": 1, "wide": 4, "late": 1, "fresh": 1}


def test_a_job_that_no_node_can_hold_waits() -> None:
    large = job("large", 4, min_slots=4)
    decision = decide(RULE, [large, short()], nodes(2))
    assert sizes(decision) == {"short": 2}
    assert decision.reasons["large"] == "waits: it needs 4 slots, and there are fewer"


@dataclass(frozen=True)
class Ranged:
    error: StepTimeError = EXACT

    def step_s(self, slots: tuple[int, ...], batch: int) -> float:
        return 1 + batch / (8 * sum(slots))

    def efficiency(self, batch: int) -> float:
        return {8: 1.0, 16: 0.9, 32: 0.5}[batch]

    def steps_left(self, batch: int) -> float:
        return 100.0


def test_each_number_of_slots_has_the_batch_with_the_largest_goodput() -> None:
    # Samples a second by what they are worth, with 8, 16 and 32:
    #   1 slot   8 / 2 = 4        14.4 / 3 = 4.8     16 / 5 = 3.2
    #   2 slots  8 / 1.5 = 5.33   14.4 / 2 = 7.2     16 / 3 = 5.33
    #   4 slots, each at least 8 samples: 32 only, 16 / 2 = 8
    one = job("one", max_slots=4, batch=8, batches=(8, 32), local_batches=(8, 64), model=Ranged())
    found = curve(one, 0, 4, 4)
    assert [found.batches[slots] for slots in (1, 2, 4)] == [16, 16, 32]
    assert found.speeds[[1, 2, 4]] == pytest.approx([1, 1.5, 8 / 4.8])
    assert found.left_s[[1, 2, 4]] == pytest.approx([300, 200, 180])  # 100 steps of 16, each 3 s
    assert decide(RULE, [one], nodes(1)).batches == {"one": 16}
    assert decide(RULE, [one], nodes(4)).batches == {"one": 32}


def test_beyond_a_node_whole_nodes_are_tried() -> None:
    one = job("one", max_slots=11)
    tried = np.flatnonzero(np.isfinite(curve(one, 0, 4, 16).speeds))
    assert tried.tolist() == [0, 1, 2, 3, 4, 8, 11]
    tried = np.flatnonzero(np.isfinite(curve(one, 6, 4, 16).speeds))  # and what it has
    assert tried.tolist() == [0, 1, 2, 3, 4, 6, 8, 11]


def test_it_counts_with_what_a_change_costs_where_it_runs() -> None:
    # A join of 0.3 s and a leave of 0.1 s: 0.2 s in the mean, whatever a start takes.
    cost = parse_resize_cost("start=20,join=0.3,leave=0.1")
    assert policy_named("edl", resize_s=cost.resize_s) == replace(EdlPolicy(), resize_s=0.2)
    assert policy_named("edl") == EdlPolicy()
    assert policy_named("max_min", resize_s=0.2) == policy_named("max_min")


def test_a_time_that_is_not_known_is_said_to_be_so() -> None:
    known = curve(short(), 0, 1, 1)
    assert known.reason(1, 1.0) == "has 1 slot: about 1 min 40 s to go; price 1.00"
    endless = replace(known, left_s=np.full_like(known.left_s, np.inf))
    assert endless.reason(1, 1.0) == "has 1 slot: an unknown time to go; price 1.00"
    assert endless.reason(0, 1.0).startswith("waits: an unknown time to go")
