"""What a leader makes of its job's policy, turn by turn."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from made import Clock, make_job, wanted

from edl.events import GlobalBatchDetails, PolicyDetails, StragglerDetails
from edl.job.decision import DesiredChange
from edl.job.policy_loop import KEEP_S, UNTIMED, PolicyLoop, PolicyResult
from edl.job.profile import Curve, Point, ProfileHold
from edl.job.snapshot import Snapshot
from edl.policy.observation import SizeMeasurement
from edl.policy.scaling_profile import ScalingProfile
from edl.policy.stragglers import (
    NO_MITIGATION,
    Mitigation,
    RingReport,
    StragglerCause,
    StragglerReport,
    Times,
)
from edl.records import (
    Desired,
    Generation,
    Host,
    JobPolicy,
    JobState,
    Member,
    ProgressSample,
    Request,
    RequestedBy,
    RequestKind,
    RingMember,
    Stage,
)
from edl.step.batching import Batching
from edl.step.noise import NoiseScale
from edl.testing.counting import known_noise

TEXT = '[size]\nrule = "throughput"\nevery_steps = 10\nstaying_steps = 10\n'
HERE = "127.0.0.1"
WAIT_S = 60.0


def snapshot(np: int, text: str = TEXT, slots: int = 4, **changes: Any) -> Snapshot:
    ring_members = tuple(RingMember(n, "a", n, HERE, 1) for n in range(np))
    members = tuple(
        Member(n, "a", n, HERE, 1, 1, "x", Stage.ACTIVE, generation=np) for n in range(np)
    )
    values: dict[str, Any] = {
        "job": make_job(),
        "hosts": (Host("a", slots, HERE),),
        "members": members,
        "generation": Generation(np, 1, ring_members, 0, (), (), ""),
        "policy": JobPolicy(text, "policy.toml"),
        **wanted({"a": np}),
    }
    return Snapshot(**{**values, **changes})


def reading(np: int, step: int, at_s: float) -> ProgressSample:
    return ProgressSample(0, np, np, 0, step, 40 * np * step, at_s)


class Leader:
    """The policy of a leader, and a job whose throughput is 10 * 40 samples/s a worker."""

    def __init__(self, learned: ScalingProfile | None = None) -> None:
        self.clock = Clock(100.0)
        self.kept = learned or ScalingProfile()
        self.held: ProfileHold | None = None
        self.curve: Curve | None = None
        store: Any = SimpleNamespace(
            policy=SimpleNamespace(learned=lambda: self.kept),
            profile=SimpleNamespace(held=lambda: self.held, get=lambda: self.curve),
        )
        self.care, self.is_timed = NO_MITIGATION, True
        self.wishes: tuple[int, ...] = ()
        self.reported = 0  # the generation whose step records are known; 0: the present one
        self.generation = 0
        self.times: tuple[Times, ...] = ()
        self.noise = NoiseScale()
        self.batching: Batching | None = None
        self.policy = PolicyLoop(store, WAIT_S, self.ring, self.clock)
        self.step = 0

    def ring(self) -> RingReport:
        rest = self.is_timed, self.noise, self.batching
        number = self.reported or self.generation
        return RingReport(self.care, self.times, self.wishes, *rest, generation=number)

    def trains(self, now: Snapshot, steps: int) -> PolicyResult:
        assert now.generation is not None
        np, self.generation = len(now.generation.members), now.generation.number
        for _ in range(steps):
            self.step += 1
            self.clock.now_s += 0.1
            outcome = self.policy.turn(now, reading(np, self.step, self.clock.now_s), None, 40.0)
        return outcome


def change_of(outcome: PolicyResult) -> DesiredChange:
    assert outcome.decision is not None
    assert outcome.decision.change is not None
    return outcome.decision.change


def test_it_tries_another_size_when_it_knows_the_first() -> None:
    leader = Leader()
    assert leader.trains(snapshot(2), 10).decision is None
    outcome = leader.trains(snapshot(2), 1)
    assert outcome.says == "tries 3: only 2 have been measured"
    assert outcome.news == ((PolicyDetails(2, 3, 40.0), f"policy: {outcome.says}"),)
    change = change_of(outcome)
    assert (dict(change.desired.hosts), change.desired.by) == ({"a": 3}, RequestedBy.POLICY)
    assert change.assigned is not None
    assert change.assigned.hosts == {"a": 3}
    assert outcome.learned is not None
    assert outcome.learned.state == {"np": 2, "steps": 10}


def test_what_a_ring_does_counts_for_its_own_hosts() -> None:
    """The next generation is there before its ring is, and one of its two hosts may be gone."""
    leader, two = Leader(), snapshot(2)
    assert two.generation is not None
    here, there = two.generation.members
    wide = replace(two.generation, members=(here, replace(there, host="b")))
    leader.trains(replace(two, generation=wide), 3)
    leader.trains(replace(two, generation=replace(wide, number=3, members=(here, there))), 3)
    assert {one.hosts for _, one in leader.policy.learned.by_batch} == {2}


def test_while_a_change_is_under_way_it_waits() -> None:
    leader = Leader()
    leader.trains(snapshot(2), 11)
    coming = snapshot(2, **wanted({"a": 3}))
    assert leader.trains(coming, 5).decision is None
    entering = snapshot(3)
    entering = replace(entering, members=entering.members[:2])
    assert leader.trains(entering, 50).decision is None


def test_a_host_that_is_gone_is_not_waited_for() -> None:
    """Its workers died with it, and are still wanted there."""
    leader = Leader()
    left = snapshot(2, **wanted({"a": 2, "b": 1}))
    outcome = leader.trains(left, 11)
    assert outcome.says == "tries 3: only 2 have been measured"
    assert change_of(outcome).desired.hosts == {"a": 3, "b": 0}
    back = replace(left, hosts=(*left.hosts, Host("b", 1, HERE)))
    assert Leader().trains(back, 11).decision is None


def test_the_next_leader_goes_on() -> None:
    leader = Leader()
    learned = leader.trains(snapshot(2), 11).learned
    other = Leader(learned)
    other.step = leader.step
    assert change_of(other.trains(snapshot(3), 11)).desired.np == 4


def test_what_a_checkpoint_brings_is_known_before_anything_is_seen() -> None:
    leader = Leader()
    leader.trains(snapshot(2), 1)
    leader.kept = ScalingProfile(seen=((3, SizeMeasurement(500.0, 100)),), elapsed_s=60.0)
    leader.trains(snapshot(2), 5)
    learned = leader.policy.learned
    assert [np for np, _ in learned.seen] == [2, 3]
    assert learned.elapsed_s > 60.0
    leader.kept = ScalingProfile(seen=((4, SizeMeasurement(1.0, 1)),))
    leader.trains(snapshot(2), 5)
    known = dict(leader.policy.learned.seen)
    assert 4 not in known, "what it has learned itself counts from then on"


@pytest.mark.parametrize("is_early", [False, True])
def test_what_was_measured_with_other_batches_is_measured_again(is_early: bool) -> None:
    """``is_early``: the leader makes a turn before the workers have loaded the checkpoint."""
    leader = Leader()
    leader.batching = Batching(40)
    if is_early:
        leader.trains(snapshot(2), 1)
    seen = tuple((np, SizeMeasurement(90.0 + np, 500, 8.0)) for np in (1, 2, 3))
    old = {"np": 2, "steps": 0, "found_s": 0.0, "why": "stays at 2"}
    leader.kept = ScalingProfile(
        seen=seen, by_batch=seen, batching=Batching(8), state=old, text=TEXT, elapsed_s=60.0
    )
    outcome = leader.trains(snapshot(2), 11 - is_early)
    assert outcome.says == "tries 3: only 2 have been measured"
    learned = leader.policy.learned
    assert learned.by_batch[:3] == seen, "the model of the step time has them"
    assert learned.elapsed_s == pytest.approx(61.0, abs=0.2)


def test_a_chosen_batch_is_no_other_one() -> None:
    learned = ScalingProfile(seen=((2, SizeMeasurement(90.0, 9)),), state={"np": 2})
    chooses = Batching(batch_range=(80, 800))
    known = learned.for_batching(chooses, 1)
    assert known == replace(learned, batching=chooses), "it was not known"
    chosen = chooses.choosing(160)
    assert known.for_batching(chosen, 2) == replace(known, batching=chosen, step_batches=2)


def test_there_has_to_be_room() -> None:
    outcome = Leader().trains(snapshot(2, slots=2), 11)
    assert change_of(outcome).desired.np == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"policy": JobPolicy()},
        {"policy": JobPolicy(TEXT, "policy.toml", off="edl policy off")},
        {"job": make_job(state=JobState.STOPPING)},
        {"generation": None},
        {"job": make_job(min_np=3)},  # it is paused
    ],
)
def test_when_it_has_nothing_to_say(changes: dict[str, Any]) -> None:
    now = replace(snapshot(2), **changes)
    policy = Leader().policy
    for step in range(20):
        assert policy.turn(now, reading(2, step, float(step)), None, 0.0).says == ""


def test_while_somebody_profiles_the_job_its_sizes_are_not_the_rules() -> None:
    leader = Leader()
    leader.held = ProfileHold("token", "process 1 on a", {"a": 2})
    profiled = snapshot(2, desired=Desired({"a": 2}, RequestedBy.PROFILE))
    assert leader.trains(profiled, 30).says == ""
    leader.held = None  # what it gave back is still desired by it
    assert change_of(leader.trains(profiled, 1)).desired.np == 3


def test_another_rule_begins_without_the_notes_of_the_last() -> None:
    leader, job = Leader(), make_job(min_np=2, max_np=2, np=2)
    one = replace(snapshot(2), job=job)
    leader.trains(one, 11)
    assert "found_s" in leader.policy.learned.state
    learned = leader.trains(one, 150).learned
    assert learned is not None
    assert (learned.text, learned.state["np"]) == (TEXT, 2)
    other = replace(one, policy=JobPolicy(TEXT + "add = 2\n", "policy.toml"), job=make_job())
    assert change_of(leader.trains(other, 1)).desired.np == 4
    assert Leader(learned).trains(replace(one, job=make_job()), 1).decision is None


def held_for(hold_s: float, ahead_s: float = 0.0) -> JobPolicy:
    """Return a policy after `edl scale` on a host whose clock is ``ahead_s`` ahead of ours."""
    return JobPolicy(TEXT, "policy.toml", hold_s).held(time.time() + ahead_s)


@pytest.mark.parametrize("ahead_s", [-7200.0, 0.0, 7200.0])
def test_a_persons_word_is_left_alone_for_its_time_whatever_the_clocks_say(ahead_s: float) -> None:
    leader, now = Leader(), replace(snapshot(2), policy=held_for(1800.0, ahead_s))
    outcome = leader.trains(now, 30)
    assert outcome.decision is None
    assert outcome.says.startswith("stays at 2: a person has asked for 2 workers")
    leader.clock.now_s += 1790.0
    assert leader.trains(now, 1).says.startswith("stays at 2: a person has asked for 2 workers")
    leader.clock.now_s += 10.0
    assert change_of(leader.trains(now, 11)).desired.np == 3


def test_a_persons_number_is_said_before_its_workers_have_come() -> None:
    now = replace(snapshot(2, slots=8, **wanted({"a": 8})), policy=held_for(1800.0))
    outcome = Leader().trains(now, 1)
    assert outcome.says.startswith("stays at 2: a person has asked for 8 workers, which counts")


def test_the_next_leader_counts_a_persons_hold_on() -> None:
    leader, now = Leader(), replace(snapshot(2), policy=held_for(1800.0))
    leader.trains(now, 30)
    leader.clock.now_s += 1000.0
    learned = leader.trains(now, 1).learned
    other = Leader(learned)
    other.step = leader.step
    other.clock.now_s += 5000.0
    assert other.trains(now, 11).says.startswith("stays at 2: a person has asked for 2 workers")
    other.clock.now_s += 800.0
    assert change_of(other.trains(now, 11)).desired.np == 3


def test_a_persons_second_word_counts_from_then_on() -> None:
    leader = Leader()
    leader.trains(replace(snapshot(2), policy=held_for(1800.0)), 1)
    leader.clock.now_s += 1790.0
    again = replace(snapshot(2), policy=held_for(1800.0, ahead_s=-7200.0))
    leader.trains(again, 1)
    leader.clock.now_s += 1790.0
    assert leader.trains(again, 1).says.startswith("stays at 2: a person has asked for 2 workers")


def test_what_cannot_be_read_is_switched_off_with_the_reason() -> None:
    outcome = Leader().trains(snapshot(2, text='[size]\nrule = "none"'), 1)
    assert outcome.failed.startswith("policy.toml, line 2: there is no rule 'none'")


def test_a_rule_that_fails_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError("of nothing")

    monkeypatch.setattr("edl.policy.hill_climbing.Throughput.__call__", fails)
    outcome = Leader().trains(snapshot(2), 11)
    assert outcome.failed == "its rule has failed: ZeroDivisionError('of nothing')"
    assert outcome.decision is None


def test_the_same_is_said_once_and_what_is_learned_is_kept_now_and_then() -> None:
    leader = Leader()
    job = make_job(min_np=2, max_np=2, np=2)
    outcomes = [leader.trains(replace(snapshot(2), job=job), 1) for _ in range(200)]
    assert sum(bool(outcome.news) for outcome in outcomes) == 1
    assert outcomes[-1].learned is not None  # nobody has written it
    leader.policy.written(outcomes[-1].learned)
    due = [leader.trains(replace(snapshot(2), job=job), 1) for _ in range(int(KEEP_S / 0.1) + 2)]
    assert [outcome.learned is None for outcome in due].count(True) >= KEEP_S / 0.1 - 2
    assert due[-1].learned is not None


# --- stragglers

CARES = "[stragglers]\n"
SLOW = StragglerReport((2,), "", StragglerCause.COMPUTE, 0.25)
TOO_SLOW = Mitigation({2: 0.25}, (2,), (SLOW,), {})
TWO_HOSTS = (Host("a", 4, HERE), Host("b", 4, HERE))


def test_one_that_is_too_slow_is_replaced_on_another_host() -> None:
    leader = Leader()
    now = snapshot(4, CARES, hosts=TWO_HOSTS)
    assert leader.trains(now, 1).says == ""
    leader.care = TOO_SLOW
    told = leader.trains(now, 1)
    assert told.says == (
        "w2 computes at 0.25 of the usual speed; trains 0.25 of a batch in each step; "
        "w2 is replaced on host b"
    )
    assert told.news == ((StragglerDetails(("w2",), "", "computes", 0.25), told.says),)
    assert told.decision is not None
    assert told.decision.asks == (Request(RequestKind.REPLACE, 2, host="b"),)
    assert dict(change_of(told).desired.hosts) == {"a": 3, "b": 1}
    assert told.learned is not None
    assert told.learned.replaced.keys() == {"a"}
    assert leader.trains(now, 1).decision is not None, "it was not written: once more"
    leader.policy.written(told.learned)
    assert leader.policy.learned.replaced.keys() == {"a"}


def test_what_needs_times_says_so_where_nobody_knows_them() -> None:
    leader = Leader()
    leader.is_timed = False
    said = leader.trains(snapshot(2, TEXT + "data_wait = 0.3\n" + CARES), 1).says
    assert said.endswith("; [stragglers] and data_wait cannot count: " + UNTIMED.partition(": ")[2])
    assert "cannot count" not in leader.trains(snapshot(2), 1).says


def moving(request: Request) -> Snapshot:
    now = snapshot(4, CARES, hosts=TWO_HOSTS, requests=(request,))
    return replace(now, **wanted({"a": 3, "b": 1}))


def test_the_next_leader_lets_it_go_on_and_asks_for_nobody_else() -> None:
    leader = Leader()
    leader.care = Mitigation({2: 0.25, 3: 0.4}, (2, 3), (SLOW, replace(SLOW, workers=(3,))), {})
    told = leader.trains(moving(Request(RequestKind.REPLACE, 2, 0, host="b")), 100)
    assert told.decision is None
    assert "w2 is replaced on host b" in told.says
    assert "w3 is replaced" not in told.says


def test_when_nobody_comes_it_stays() -> None:
    leader = Leader()
    leader.care = TOO_SLOW
    now = moving(Request(RequestKind.REPLACE, 2, 0, host="b"))
    leader.trains(now, 1)
    leader.clock.now_s += WAIT_S
    told = leader.trains(now, 1)
    assert told.decision is not None
    outcome = "no replacement of w2 came within 60 s; it stays"
    assert told.decision.answers == (Request(RequestKind.REPLACE, 2, 0, True, False, outcome, "b"),)
    assert dict(change_of(told).desired.hosts) == {"a": 4, "b": 0}


def test_without_another_host_a_free_slot_of_its_own_will_do_once() -> None:
    leader = Leader()
    leader.care = TOO_SLOW
    now = snapshot(4, CARES, slots=5)
    told = leader.trains(now, 1)
    assert told.decision is not None
    assert (told.decision.change, told.decision.asks[0].host) == (None, "a")
    assert told.learned is not None
    leader.policy.written(told.learned)
    later = leader.trains(now, 1)
    assert later.decision is None, "the host had its replacement"
    assert later.says.endswith("trains 0.25 of a batch in each step")
    leader.clock.now_s += 600
    assert leader.trains(now, 1).decision is not None, "ten minutes later it gets another"


def test_without_room_and_under_horovodrun_it_keeps_its_share() -> None:
    full = snapshot(4, CARES, slots=4)
    by_slot = snapshot(4, CARES, hosts=(), discovered={"a": 8}, **wanted({"a": 4}, by_slot=True))
    for now in (full, by_slot):
        leader = Leader()
        leader.care = TOO_SLOW
        told = leader.trains(now, 1)
        assert told.decision is None
        assert told.says.endswith("trains 0.25 of a batch in each step")


def test_a_slow_host_gets_no_replacements() -> None:
    leader = Leader()
    whole = StragglerReport((2, 3), "a", StragglerCause.COMPUTE, 0.25)
    leader.care = Mitigation({2: 0.25, 3: 0.25}, (2, 3), (whole,), {})
    assert leader.trains(snapshot(4, CARES, slots=5), 1).decision is None


def test_who_is_fast_again_is_said_to_be() -> None:
    leader = Leader()
    now = snapshot(4, CARES, slots=4)
    leader.care = Mitigation({2: 0.7}, (), (replace(SLOW, speed=0.7),), {})
    assert len(leader.trains(now, 1).news) == 1
    leader.care = Mitigation({2: 0.6}, (), (replace(SLOW, speed=0.6),), {})
    assert leader.trains(now, 5).news == (), "the same again"
    leader.care = NO_MITIGATION
    [(details, reason)] = leader.trains(now, 1).news
    assert reason == "w2 computes as fast as the others again"
    assert details == StragglerDetails(("w2",), "", "computes", 1.0)


def test_the_policy_of_a_person_who_holds_the_size_still_replaces() -> None:
    leader = Leader()
    leader.care = TOO_SLOW
    now = snapshot(4, TEXT + CARES, hosts=TWO_HOSTS)
    now = replace(now, policy=replace(now.policy, hold_s=1800.0).held(time.time()))
    told = leader.trains(now, 1)
    assert told.says.startswith("stays at 4: a person has asked for 4 workers")
    assert told.decision is not None
    assert told.decision.asks[0].worker == 2


# --- what the script wishes, and what it waits for


def test_the_wishes_of_the_script_become_the_size() -> None:
    leader = Leader()
    now = snapshot(2, '[size]\nrule = "votes"\n')
    assert leader.trains(now, 1).says == "stays at 2: no worker wishes anything"
    leader.wishes = (1, 0)
    told = leader.trains(now, 1)
    assert change_of(told).desired.np == 3
    assert told.says == "goes to 3: the sum of what 2 workers wish is +1"
    assert leader.trains(snapshot(3, '[size]\nrule = "votes"\n'), 1).decision is None


@pytest.mark.parametrize("reported", [2, 3])
def test_wishes_count_in_the_ring_that_made_them(reported: int) -> None:
    """Those of two workers have made a third one join; its ring has not said anything yet."""
    leader = Leader()
    leader.wishes, leader.reported = (1, 0), reported
    outcome = leader.trains(snapshot(3, '[size]\nrule = "votes"\n'), 1)
    assert (outcome.decision is not None) == (reported == 3)


def test_a_job_that_waits_for_its_data_does_not_grow() -> None:
    leader = Leader()
    text = '[size]\nrule = "votes"\ndata_wait = 0.3\n'
    leader.times = tuple(Times(w, "a", 8.0, 0.05, 0.04, 0.01) for w in range(2))
    leader.wishes = (1, 0)
    told = leader.trains(snapshot(2, text), 1)
    assert told.decision is None
    assert told.says.startswith("stays at 2: 40% of a step goes by waiting for data, more than 30%")
    leader.times = tuple(replace(one, data_s=0.01) for one in leader.times)
    assert change_of(leader.trains(snapshot(2, text), 1)).desired.np == 3
    leader.wishes = (-1, 0)
    leader.clock.now_s += 60
    leader.times = tuple(replace(one, data_s=1.0) for one in leader.times)
    assert change_of(leader.trains(snapshot(3, text), 1)).desired.np == 2, "it may shrink"


# --- goodput

GOODPUT = '[size]\nrule = "goodput"\n'


def until(leader: Leader, now: Snapshot, says: str) -> PolicyResult:
    """Repeat steps of ``now`` until the model is fitted, in its thread, and a policy says so."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        told = leader.trains(now, 1)
        if told.says.startswith(says):
            return told
    raise AssertionError(f"{told.says!r}")


def test_a_model_of_the_steps_is_fitted_and_decides() -> None:
    leader = Leader()
    assert leader.trains(snapshot(1, GOODPUT), 1).says == (
        "stays at 1: its steps are yet to be measured"
    )
    told = until(leader, snapshot(1, GOODPUT), "goes to 2")
    assert told.says == "goes to 2: 2 would train +100.0% of what 1 do"
    assert change_of(told).desired.np == 2
    assert told.learned is not None
    assert told.learned.step_time is not None
    again = Leader(replace(told.learned, state={})).trains(snapshot(1, GOODPUT), 1)
    assert again.says == told.says, "the next leader need not fit it again"


def test_a_profile_spares_the_job_the_trying() -> None:
    leader = Leader()
    flat = tuple(Point(n, 1600.0, 0.025 * n, 50, 5.0) for n in (1, 2, 3))
    leader.curve = Curve("digits", 0.0, flat)
    now = snapshot(4, GOODPUT)
    told = until(leader, now, "goes to 1")
    assert change_of(told).desired.np == 1


def test_the_batch_that_the_cluster_has_chosen_counts() -> None:
    leader, now = Leader(), snapshot(2)
    now = replace(now, desired=replace(now.desired, batch=240))
    leader.batching = Batching(batch_range=(80, 800))
    outcome = leader.trains(now, 1)
    assert outcome.batch == 240
    assert "the cluster has chosen the global batch 240" in outcome.says
    leader.batching = Batching(batch_size=40)  # the script's own
    assert leader.trains(now, 1).batch == 0


def test_it_chooses_the_global_batch_without_any_policy() -> None:
    """40 samples of each of two: 80. One batch tells nothing; what more it costs is known then."""
    leader, now = Leader(), replace(snapshot(2), policy=JobPolicy())
    leader.batching = Batching(batch_range=(80, 800))
    outcome = until(leader, now, "the global batch stays 80: the gradient noise scale")
    assert outcome.batch == 0
    assert outcome.says == "the global batch stays 80: the gradient noise scale is not known"
    leader.noise = known_noise(1e6, 1.0, 80)
    outcome = until(leader, now, "the global batch becomes 160")
    assert [details for details, _ in outcome.news] == [GlobalBatchDetails(80, 160)]
    assert outcome.batch == 160
    assert outcome.decision is None
    leader.batching = leader.batching.choosing(160)
    assert leader.trains(now, 60).batch == 0  # its steps are yet to be measured
    assert (
        leader.trains(replace(now, policy=JobPolicy("[batch]", "", off="a person")), 1).batch == 0
    )
