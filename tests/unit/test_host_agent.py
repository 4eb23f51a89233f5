"""What an agent does, decided from values: no process, no clock, no ZooKeeper."""

from dataclasses import replace

import pytest
from made import changed, make_job, wanted

from edl.errors import REFUSED_EXIT
from edl.host.decide import AgentLimits, AgentState, decide_agent, with_placement
from edl.host.job_end import TOLD, failing_slots
from edl.host.process import UNKNOWN_EXIT, Process, backoff_s, exit_status, exited, how, seen
from edl.host.restart import to_ask, waiting_members
from edl.host.supervision import (
    RingDeath,
    SupervisorDecision,
    members_to_ask,
    noted,
    observe,
    relevant,
    ring_deaths,
    without_zookeeper,
)
from edl.job.liveness import GONE
from edl.job.run import JobEnd
from edl.job.snapshot import Snapshot
from edl.records import (
    Assigned,
    Generation,
    Host,
    Job,
    JobState,
    Leader,
    Member,
    ProgressSample,
    Request,
    RequestKind,
    RingMember,
    Stage,
    TrainingStatus,
)

NOW = 1000.0
LIMITS = AgentState.limits
JOB = make_job()


def process(slot: int, **changes: object) -> Process:
    return replace(Process(slot, f"t-{slot}", started=NOW - 10), **changes)  # type: ignore[arg-type]


def trainer(slot: int, **changes: object) -> Process:
    return process(slot, **{"worker": slot, "ready": True, "seated": True, **changes})


def died(slot: int, code: int = 1, **changes: object) -> Process:
    return process(
        slot, **{"exit_code": code, "exited": NOW, "termination_message": "Boom", **changes}
    )


def member(worker: int, launch: str, host: str = "a", **changes: object) -> Member:
    values = Member(worker, host, worker, "127.0.0.1", 1, 1, launch)
    return replace(values, **changes)  # type: ignore[arg-type]


def generation(*workers: int, number: int = 1, previous: tuple[int, ...] = ()) -> Generation:
    members, before = (
        tuple(RingMember(worker, "a", worker, "127.0.0.1", 1) for worker in ids)
        for ids in (workers, previous)
    )
    root = workers[0] if workers else -1
    return Generation(number, 1, members, root, workers, (), "", previous=before)


def snapshot(np: int = 2, ring: Generation | None = None, **changes: object) -> Snapshot:
    facts = Snapshot(JOB, **wanted({"a": np}), generation=ring, leader=Leader(1, 0))
    return replace(facts, **changes)  # type: ignore[arg-type]


def state(state: JobState, reason: str = "why") -> Job:
    return replace(JOB, state=state, reason=reason)


def own(*processes: Process, **changes: object) -> AgentState:
    values = AgentState("a", "t", processes, state_since=NOW, script="train.py")
    return replace(values, **changes)  # type: ignore[arg-type]


def decide(facts: Snapshot, *processes: Process, **changes: object) -> SupervisorDecision:
    return decide_agent(facts, own(*processes, **changes), NOW)


def slots(decision: SupervisorDecision) -> list[int]:
    return [start.slot for start in decision.starts]


def ended(decision: SupervisorDecision) -> list[tuple[str, bool]]:
    return [(ending.attempt_id, ending.kill) for ending in decision.endings]


# --- as many as are assigned


@pytest.mark.parametrize(
    ("before", "replaces"),
    [
        (trainer(1, exit_code=-9, exited=NOW, trained_s=9.0), True),
        (trainer(1, exit_code=0, exited=NOW - 99), False),
        (died(1, exited=NOW - 99), False),
    ],
)
def test_the_replacement_of_a_member_of_the_ring_lets_the_others_repair_it_first(
    before: Process, replaces: bool
) -> None:
    (start,) = decide(snapshot(2, generation(0, 1)), trainer(0), before).starts
    assert (start.slot, start.replaces) == (1, replaces)


@pytest.mark.parametrize(("min_np", "replacements"), [(1, 1), (2, 2)])
def test_of_workers_that_all_got_sigterm_only_those_are_replaced_that_the_job_needs(
    min_np: int, replacements: int
) -> None:
    """The leader would evict the others."""
    leaving = [trainer(slot, departing=NOW - LIMITS.settle_s) for slot in (0, 1)]
    members = tuple(member(w, f"t-{w}", stage=Stage.LEAVING, generation=1) for w in (0, 1))
    job = changed(JOB, min_np=min_np)
    now = snapshot(2, generation(0, 1), job=job, members=members, hosts=(Host("a", 4, "::1"),))
    assert len(decide(now, *leaving).starts) == replacements


def test_the_first_workers_start_at_once() -> None:
    decision = decide(snapshot(2))
    assert slots(decision) == [0, 1]
    assert decision.reason == "0 of 2 workers run on a"


def test_a_raised_size_starts_what_is_missing_in_the_lowest_free_slots() -> None:
    assert slots(decide(snapshot(4), process(0), process(2))) == [1, 3]


def test_a_lowered_size_ends_nobody() -> None:
    decision = decide(snapshot(1, generation(0, 1)), trainer(0), trainer(1))
    assert (decision.starts, decision.endings) == ((), ())


def test_another_hosts_workers_are_not_ours() -> None:
    assert slots(decide(replace(snapshot(0), **wanted({"b": 3})))) == []


@pytest.mark.parametrize(("since", "expected"), [(0.0, []), (LIMITS.settle_s, [2])])
def test_a_departing_worker_is_replaced_only_if_it_is_still_wanted(
    since: float, expected: list[int]
) -> None:
    leaving = trainer(1, departing=NOW - since)
    assert slots(decide(snapshot(2, generation(0, 1)), trainer(0), leaving)) == expected


def test_the_replacement_shares_the_device_of_who_leaves_when_no_slot_is_free() -> None:
    now = replace(snapshot(2, generation(0, 1)), hosts=(Host("a", 2, "127.0.0.1"),))
    (start,) = decide(now, trainer(0), trainer(1, departing=NOW - LIMITS.settle_s)).starts
    assert (start.slot, start.failures) == (1, 0)
    assert start.reason == "w1 leaves and a worker is wanted"


def test_after_a_replacement_that_shared_a_device_the_next_one_shares_it_too() -> None:
    """There is no other device; and the pause is that of the one that died."""
    now = replace(snapshot(1, generation(0)), hosts=(Host("a", 1, "127.0.0.1"),))
    leaves = trainer(0, departing=NOW - 60.0)
    dead = replace(died(0), attempt_id="t-9", started=NOW - 5.0)
    assert slots(decide(now, leaves, dead)) == []
    (start,) = decide_agent(now, own(leaves, dead), NOW + 1.0).starts
    assert (start.slot, start.failures) == (0, 1)
    other = replace(process(0), attempt_id="t-10")
    assert (
        slots(decide_agent(replace(now, **wanted({"a": 2})), own(leaves, dead, other), NOW + 9))
        == []
    )


@pytest.mark.parametrize(("since", "expected"), [(0.0, []), (LIMITS.settle_s, [1])])
def test_a_worker_that_exited_with_0_is_replaced_only_if_it_is_still_wanted(
    since: float, expected: list[int]
) -> None:
    gone = trainer(1, exit_code=0, exited=NOW - since)
    assert slots(decide(snapshot(2, generation(0)), trainer(0), gone)) == expected


def test_workers_of_an_earlier_agent_count_and_keep_their_slots() -> None:
    earlier = member(0, "earlier-0", stage=Stage.ACTIVE)
    assert slots(decide(snapshot(2, members=(earlier,)))) == [1]
    leaving = replace(earlier, stage=Stage.LEAVING)
    assert slots(decide(snapshot(2, members=(leaving,)))) == [1, 2]


def test_adopted_workers_are_its_own() -> None:
    adopted = [trainer(0, attempt_id="x-0"), trainer(1, attempt_id="x-1")]
    now = snapshot(3, generation(0, 1), members=(member(0, "x-0"), member(1, "x-1")))
    decision = decide(now, *adopted)
    assert slots(decision) == [2]
    assert decision.reason == "2 of 3 workers run on a"


def test_an_adopted_worker_that_vanishes_is_replaced() -> None:
    gone = trainer(1, attempt_id="x-1", exit_code=UNKNOWN_EXIT, exited=NOW - 5)
    now = snapshot(2, generation(0, 1), members=(member(0, "x-0"),))
    seen = observe([trainer(0, attempt_id="x-0"), gone], now, NOW)
    assert [p.exit_code for p in seen] == [None, UNKNOWN_EXIT]
    assert slots(decide(now, *seen)) == [1]


@pytest.mark.parametrize(
    ("ring", "job"),
    [(generation(0, previous=(0, 1)), JOB), (generation(0, 1), state(JobState.FINISHED))],
    ids=["taken out", "finished"],
)
def test_an_adopted_worker_that_was_to_end_has_ended_well(ring: Generation, job: Job) -> None:
    gone = trainer(1, attempt_id="x-1", exit_code=UNKNOWN_EXIT, exited=NOW)
    (seen,) = observe([gone], snapshot(1, ring, job=job), NOW)
    assert (seen.exit_code, seen.failed) == (0, False)


def test_an_unknown_end_in_words_and_as_a_code() -> None:
    said = "ended (an earlier agent had started it, or others reaped it: how is not known)"
    assert how(UNKNOWN_EXIT) == said
    assert exit_status(UNKNOWN_EXIT) == 1


def test_members_on_other_hosts_do_not_count() -> None:
    there = member(0, "earlier-0", host="b")
    assert slots(decide(snapshot(2, members=(there,)))) == [0, 1]


# --- failures


def patient(**changes: object) -> Snapshot:
    return snapshot(2, generation(0, 1), job=changed(JOB, max_restarts=1000), **changes)


@pytest.mark.parametrize(
    ("failures", "waited", "starts"),
    [(0, 0.9, []), (0, 1.0, [1]), (2, 3.9, []), (2, 4.0, [1]), (20, 29.9, []), (20, 30.0, [1])],
)
def test_a_failed_slot_waits_for_its_back_off(
    failures: int, waited: float, starts: list[int]
) -> None:
    crashed = trainer(1, exit_code=1, exited=NOW - waited, failures=failures)
    decision = decide(patient(), trainer(0), crashed)
    assert slots(decision) == starts
    assert [start.failures for start in decision.starts] == [failures + 1] * len(starts)


def test_back_off() -> None:
    assert [backoff_s(n) for n in range(8)] == [0, 1, 2, 4, 8, 16, 30, 30]
    assert backoff_s(10_000) == 30
    assert [backoff_s(n, 3.0) for n in range(5)] == [0, 1, 2, 3, 3]


def test_the_longest_back_off_can_be_set() -> None:
    def at_most(backoff_max_s: float) -> AgentLimits:
        return AgentLimits(backoff_max_s=backoff_max_s)

    crashed = trainer(1, exit_code=1, exited=NOW - 1.0, failures=20)
    facts = patient()
    assert slots(decide(facts, trainer(0), crashed, limits=at_most(1.0))) == [1]
    assert slots(decide(facts, trainer(0), crashed, limits=at_most(1.1))) == []


def test_a_slot_whose_worker_had_trained_is_filled_in_the_same_turn() -> None:
    killed = trainer(1, exit_code=-9, exited=NOW, started=NOW - 8.0, failures=3, trained_s=8.0)
    (start,) = decide(patient(), trainer(0), killed).starts
    assert (start.slot, start.failures) == (1, 0)


def test_a_worker_that_ended_without_joining_waits_too() -> None:
    mute = process(1, exit_code=0, exited=NOW)
    assert slots(decide(snapshot(2, generation(0)), trainer(0), mute)) == []


def test_a_newcomer_that_we_ended_is_no_failure() -> None:
    ending = trainer(1, exit_code=-15, exited=NOW, ending_since=NOW - 1, seated=False)
    assert not ending.failed
    assert slots(decide(snapshot(2, generation(0)), trainer(0), ending)) == [1]


@pytest.mark.parametrize(
    ("changes", "late"),
    [
        ({}, True),
        ({"exited": NOW - 6, "departing": NOW - 7}, True),  # about to finish
        ({"exited": NOW - 6, "generation": 2}, True),  # with all steps made
        ({"generation": 1}, False),  # it died while it trained; the agent looked later
        # It was killed as it left, and the others trained on.
        ({"exited": NOW - 60, "departing": NOW - 60, "generation": 1}, False),
        ({"departing": NOW - 60, "generation": 1}, True),  # it had left, and failed after the end
        ({"seated": False}, False),  # a newcomer that came too late
        ({"exit_code": 0}, False),
        ({"ending_since": NOW - 1}, False),
    ],
)
def test_whose_error_counts_although_the_job_has_finished(
    changes: dict[str, object], late: bool
) -> None:
    one = trainer(1, **{"exit_code": 3, "exited": NOW, "generation": 2, **changes})
    assert one.failed_late(NOW - 5, finished_in=2) is late


def test_the_newest_ring_that_a_worker_was_in_is_remembered() -> None:
    facts = [snapshot(2, generation(0, 1, number=2)), snapshot(1, generation(0, number=3))]
    assert seen(seen(trainer(1), facts[0], NOW), facts[1], NOW).generation == 2


@pytest.mark.parametrize(("exited", "late"), [(NOW, True), (NOW - 6, False)])
def test_an_early_end_of_all_leaves_only_the_clock(exited: float, late: bool) -> None:
    """Nobody has trained to the end, so no ring has."""
    one = trainer(1, exit_code=3, exited=exited, generation=2)
    assert one.failed_late(NOW - 5, finished_in=0) is late


def test_the_evicted_are_ended_and_replaced_when_that_is_wanted() -> None:
    facts = snapshot(2, generation(0), evicted={1: "it was not ready after 300 s"})
    processes = (trainer(0), process(1, worker=1))
    decision = decide(facts, *processes)
    assert ended(decision) == [("t-1", False)]
    assert decision.endings[0].reason == "it was not ready after 300 s"
    assert slots(decision) == [2]
    ending = replace(processes[1], ending_since=NOW - LIMITS.kill_s)
    assert ended(decide(facts, trainer(0), ending)) == [("t-1", True)]
    ending = replace(ending, ending_since=NOW - LIMITS.kill_s + 0.1)
    assert ended(decide(facts, trainer(0), ending)) == []


# --- a job that cannot begin


def test_all_first_starts_died() -> None:
    decision = decide(snapshot(2), died(0, 3), died(1, 3))
    assert decision.outcome is not None
    assert (decision.outcome.state, decision.outcome.exit_code) == (JobState.FAILED, 3)
    assert decision.outcome.reason == (
        "all 2 workers exited with code 3 before joining the job; the last line of slot 0: Boom"
    )
    assert not decision.starts


def test_all_died_though_one_was_started_again() -> None:
    again = process(0, started=NOW - 1, failures=1)
    assert decide(snapshot(2), again, died(1)).outcome is not None


def test_one_of_two_died() -> None:
    decision = decide(snapshot(2), died(0), process(1))
    assert decision.outcome is None


def test_all_died_but_one_had_been_ready() -> None:
    assert decide(snapshot(2), died(0), died(1, ready=True, worker=1)).outcome is None


def test_all_died_here_but_not_elsewhere() -> None:
    facts = snapshot(2, members=(member(0, "other-0", host="b"),))
    assert decide(facts, died(0), died(1)).outcome is None


def test_workers_elsewhere_that_have_not_registered_may_begin() -> None:
    facts = snapshot(4)
    here = replace(facts.assigned, hosts={"a": 2, "b": 2})
    other = Host("b", 2, "10.0.0.2", failing={"0": ""})
    facts = replace(facts, assigned=here, hosts=(*facts.hosts, other))
    assert decide(facts, died(0), died(1)).outcome is None
    failing = replace(other, failing={"0": "", "1": "exited with code 1"})
    facts = replace(facts, hosts=(*facts.hosts[:-1], failing))
    outcome = decide(facts, died(0), died(1)).outcome
    assert outcome is not None
    assert outcome.state is JobState.FAILED


def test_a_slot_fails_until_a_worker_of_it_is_ready() -> None:
    first, third = died(0), died(1, failures=2)
    said = "exited with code 1; the last line of slot 1: Boom"
    assert failing_slots(own(first, third)) == {"0": "", "1": said}
    again = trainer(1, attempt_id="t-9", failures=3, started=NOW, ready=False)
    assert failing_slots(own(third, again)) == {"1": said}
    assert failing_slots(own(third, replace(again, ready=True))) == {}


def test_the_only_worker_was_killed() -> None:
    outcome = decide(snapshot(1), died(0, -9, termination_message="")).outcome
    assert outcome is not None
    assert outcome.exit_code == 137
    assert outcome.reason == (
        "the only worker was killed by SIGKILL before joining the job; slot 0 wrote nothing"
    )


def test_a_script_without_init() -> None:
    outcome = decide(snapshot(2), process(0, exit_code=0, exited=NOW), process(1)).outcome
    assert outcome is not None
    assert outcome.reason == "train.py ended without calling edl.init()"
    assert outcome.exit_code == 1


def test_a_script_that_was_refused_fails_the_job_at_once() -> None:
    refused = died(0, REFUSED_EXIT, termination_message="edl: this script calls horovod's init()")
    outcome = decide(snapshot(2), refused, process(1)).outcome
    assert outcome is not None
    assert (outcome.reason, outcome.exit_code) == (refused.termination_message, REFUSED_EXIT)


def test_a_silent_script_fails_the_job_only_before_its_first_ring() -> None:
    silent = process(0, started=NOW - 120)
    outcome = decide(snapshot(1), silent).outcome
    assert outcome is not None
    assert "train.py (slot 0) did not call edl.init() within 120 s" in outcome.reason
    facts = snapshot(2, generation(1))
    decision = decide(facts, silent, trainer(1))
    assert decision.outcome is None
    assert decision.warnings == ("train.py in slot 0 runs for 120 s and did not call edl.init()",)


def test_enough_other_workers_outweigh_a_silent_one() -> None:
    silent, here = process(0, started=NOW - 120), process(1, worker=1, started=NOW - 120)
    assert decide(snapshot(2), silent, here).outcome is None


def test_a_slot_that_keeps_failing_ends_a_job_that_cannot_do_without_it() -> None:
    job = changed(JOB, min_np=2)
    ready = process(0, worker=0, ready=True, started=NOW - 120)
    failing = died(1, 7, started=NOW - 1, failures=6)
    outcome = decide(snapshot(2, job=job), ready, failing).outcome
    assert outcome is not None
    assert outcome.exit_code == 7
    assert outcome.reason.startswith("1 of at least 2 workers came up within 120 s")


# --- nobody is left


def test_all_workers_failed() -> None:
    dead = [trainer(slot, exit_code=3, exited=NOW, termination_message="Boom") for slot in (0, 1)]
    outcome = decide(snapshot(2, generation(0, 1)), *dead).outcome
    assert outcome is not None
    assert (outcome.state, outcome.exit_code) == (JobState.FAILED, 3)
    assert outcome.reason == "all workers exited with code 3; the last line of w0: Boom"


def test_who_was_about_to_leave_keeps_the_ring_alive() -> None:
    """w1 and w2 are to leave with the next switch, and the only worker that stays is killed."""
    shrinks = generation(0, number=2, previous=(0, 1, 2))
    members = tuple(member(n, f"t-{n}", stage=Stage.ACTIVE, generation=1) for n in (1, 2))
    now = snapshot(1, shrinks, members=members)
    killed = trainer(0, exit_code=-9, exited=NOW)
    state = own(killed, trainer(1, departing=NOW), trainer(2, departing=NOW))
    assert decide_agent(now, state, NOW).outcome is None
    left = own(killed, *(trainer(n, departing=NOW, exit_code=0, exited=NOW) for n in (1, 2)))
    gone = replace(now, members=())
    assert decide_agent(gone, left, NOW).outcome is not None
    elsewhere = tuple(replace(each, attempt_id=f"other-{each.id}", host="b") for each in members)
    assert decide(replace(now, members=elsewhere), killed).outcome is None


def test_a_newcomer_does_not_keep_a_dead_ring_alive() -> None:
    dead, newcomer = trainer(0, exit_code=3, exited=NOW), process(1, worker=1, ready=True)
    assert decide(snapshot(2, generation(0)), dead, newcomer).outcome is not None


def test_a_living_worker_elsewhere_keeps_the_job_alive() -> None:
    facts = snapshot(1, generation(0, 1), members=(member(1, "other-0", host="b"),))
    dead = trainer(0, exit_code=3, exited=NOW)
    assert decide(facts, dead).outcome is None


def test_all_workers_exited_with_0_though_the_job_runs() -> None:
    gone = trainer(0, exit_code=0, exited=NOW)
    facts = snapshot(1, generation(0))
    assert decide(facts, gone).outcome is None  # what they wrote last may come yet
    outcome = decide_agent(facts, own(gone), NOW + LIMITS.settle_s).outcome
    assert outcome is not None
    assert outcome.state is JobState.FINISHED


# --- all died, and there is a checkpoint


SAVED = replace(JOB, checkpoint="/saved", saved_step=40)


def killed(
    *ring_deaths: RingDeath, saved: Job = SAVED, code: int = -9, now: float = NOW
) -> SupervisorDecision:
    dead = [
        trainer(slot, exit_code=code, exited=NOW, termination_message="Boom") for slot in (0, 1)
    ]
    facts = snapshot(2, generation(0, 1), job=saved)
    return decide_agent(facts, own(*dead, ring_deaths=ring_deaths), now)


def test_after_a_backoff_new_workers_start_from_the_checkpoint() -> None:
    assert killed(RingDeath(1, 40, NOW)).outcome is None
    assert slots(killed(RingDeath(1, 40, NOW), now=NOW + backoff_s(1, 30.0))) == [0, 1]


def test_what_kills_the_training_of_a_wrapper_kills_workers() -> None:
    """As the lack of memory does; `bash train.sh` without `exec` then ends with 137 by itself."""
    facts = snapshot(2, generation(0, 1), job=SAVED)
    for code, goes_on in ((137, True), (1, False)):
        dead = [exited(trainer(slot), code, NOW, "Killed") for slot in (0, 1)]
        outcome = decide(facts, *dead, ring_deaths=(RingDeath(1, 40, NOW),)).outcome
        assert (outcome is None) == goes_on


def test_without_a_checkpoint_killed_workers_are_the_end() -> None:
    outcome = killed(RingDeath(1, -1, NOW), saved=JOB).outcome
    assert outcome is not None
    assert outcome.reason == (
        "all workers were killed by SIGKILL; there is no checkpoint to resume from "
        "(edl.checkpoint); the last line of w0: Boom"
    )


def test_errors_of_the_script_are_the_end_though_there_is_a_checkpoint() -> None:
    assert killed(RingDeath(1, 40, NOW), code=1).outcome is not None


def test_without_progress_a_job_is_not_restarted_for_ever() -> None:
    ring_deaths = [RingDeath(number, 40, NOW) for number in range(1, LIMITS.restarts + 2)]
    assert killed(*ring_deaths[: LIMITS.restarts]).outcome is None
    outcome = killed(*ring_deaths).outcome
    assert outcome is not None
    assert "4 times without progress after the checkpoint of step 40" in outcome.reason
    earlier = [replace(ring_death, saved_step=20) for ring_death in ring_deaths[:-1]]
    assert killed(*earlier, ring_deaths[-1]).outcome is None


def test_new_workers_have_a_time_limit() -> None:
    assert killed(RingDeath(1, 40, NOW), now=NOW + 240).outcome is None
    outcome = killed(RingDeath(1, 40, NOW), now=NOW + 241).outcome
    assert outcome is not None
    assert "no new ones began within 240 s" in outcome.reason


def test_a_loss_is_recorded_once_for_a_generation() -> None:
    dead = [trainer(slot, exit_code=-9, exited=NOW) for slot in (0, 1)]
    facts = snapshot(2, generation(0, 1), job=SAVED)
    first = ring_deaths(own(*dead), facts, NOW)
    assert first == (RingDeath(1, 40, NOW),)
    known = own(*dead, ring_deaths=first)
    assert ring_deaths(known, facts, NOW + 1) is first
    later = snapshot(2, generation(0, 1, number=2), job=SAVED)
    assert ring_deaths(known, later, NOW + 2) == (*first, RingDeath(2, 40, NOW + 2))
    assert ring_deaths(own(*dead[:1], trainer(1)), facts, NOW) == ()
    elsewhere = replace(facts, members=(member(1, "other-0", host="b"),))
    assert ring_deaths(own(*dead[:1]), elsewhere, NOW) == ()
    assert ring_deaths(own(*dead), snapshot(2), NOW) == ()
    assert ring_deaths(own(*dead[:1], ring_deaths=first), elsewhere, NOW) == ()


def test_after_zookeeper_was_away_the_others_have_to_come_back_before_their_absence_counts() -> (
    None
):
    dead, absent = trainer(0, exit_code=-9, exited=NOW), trainer(1, no_session_since=NOW - 99.0)
    earlier, present = RingDeath(1, 40, NOW), RingDeath(2, 40, NOW)
    back = without_zookeeper(own(dead, absent, ring_deaths=(earlier, present), step=(2, 7)))
    assert back.ring_deaths == (earlier,)
    assert [p.no_session_since for p in back.processes] == [None, None]
    assert without_zookeeper(own(ring_deaths=(earlier,), step=(2, 7))).ring_deaths == (earlier,)


def test_those_of_other_hosts_may_only_have_lost_their_session() -> None:
    """Their nodes are gone with it, and they train on."""
    facts, mine = snapshot(1, generation(0, 1)), trainer(0, exit_code=-9, exited=NOW)
    ring_deaths = (RingDeath(1, -1, NOW),)
    for seconds, ends in ((0.0, False), (LIMITS.lost_s - 0.1, False), (LIMITS.lost_s, True)):
        decision = decide_agent(facts, own(mine, ring_deaths=ring_deaths), NOW + seconds)
        assert (decision.outcome is not None) == ends
        assert decision.starts == (), "nobody could give it the state"
    earlier = (RingDeath(0, -1, NOW),)
    assert decide_agent(facts, own(mine, ring_deaths=earlier), NOW + LIMITS.lost_s).outcome is None


def test_nobody_is_started_for_workers_that_were_told_to_end_while_zookeeper_was_away() -> None:
    """The session of another host's worker may count as there, and its agent is not back yet."""
    facts = snapshot(1, generation(0, 1), members=(member(1, "other-0", host="b"),))
    told, dead = trainer(0, exit_code=0, exited=NOW, stopped=True), (RingDeath(1, -1, NOW),)
    alone = replace(facts, members=())
    saves = own(told, answering=frozenset({1}), ring_deaths=dead)
    for back, mine in ((facts, own(told)), (alone, own(told)), (alone, saves)):
        decision = decide_agent(back, mine, NOW + 9 * LIMITS.away_s)
        assert (decision.reason, decision.starts, decision.outcome) == (TOLD, (), None)
    newcomer = process(2)
    assert ended(decide(facts, told, newcomer)) == [(newcomer.attempt_id, False)]
    for seconds, outcome in ((-0.1, None), (0.0, JobEnd(JobState.STOPPED, TOLD))):
        decision = decide_agent(alone, own(told, ring_deaths=dead), NOW + LIMITS.away_s + seconds)
        assert decision.outcome == outcome, "who has told them does not come back"
    trains_on = replace(facts, generation=generation(1, number=2))
    assert slots(decide_agent(trains_on, own(told), NOW + LIMITS.settle_s)) == [0]
    assert decide_agent(
        snapshot(1, generation(0)), own(replace(told, stopped=False)), NOW + 99
    ).outcome


def test_those_of_other_hosts_that_answer_hold_the_state() -> None:
    """However long they do not reach ZooKeeper."""
    facts, mine = snapshot(1, generation(0, 1)), trainer(0, exit_code=-9, exited=NOW)
    assert [ring_member.id for ring_member in members_to_ask(facts, own(mine))] == [1]
    answers = own(mine, answering=frozenset({1}), ring_deaths=(RingDeath(1, -1, NOW),))
    assert [ring_member.id for ring_member in members_to_ask(facts, answers)] == [1], (
        "again and again"
    )
    assert decide_agent(facts, answers, NOW + 10 * LIMITS.lost_s).outcome is None
    assert noted(answers, facts, NOW + 99).ring_deaths == (), "its silence counts from then on"
    back = replace(facts, members=(member(1, "other-0", host="b"),))
    assert members_to_ask(back, own(mine)) == ()
    assert members_to_ask(facts, own(trainer(0))) == ()


def test_those_of_other_hosts_are_dead_when_their_end_was_logged_or_proven() -> None:
    facts, mine = snapshot(1, generation(0, 1)), trainer(0, exit_code=3, exited=NOW)
    assert decide(facts, mine).outcome is None
    assert decide(facts, mine, ended=frozenset({1})).outcome is not None
    proven = replace(facts, evicted={1: "its process is gone: port 1 refuses connections"})
    assert decide(proven, mine).outcome is not None
    cut_off = replace(facts, evicted={1: "it is frozen or cut off"})
    assert decide(cut_off, mine).outcome is None


def test_who_obeyed_the_leader_has_shown_no_error_of_the_script() -> None:
    """So a ring of which all were given up goes on from the checkpoint."""
    given_up = trainer(0, exit_code=1, exited=NOW, evicted="it is cut off")
    facts = snapshot(1, generation(0), job=SAVED)
    now = own(given_up, ring_deaths=(RingDeath(1, 40, NOW),))
    assert decide_agent(facts, now, NOW).outcome is None
    assert slots(decide_agent(facts, now, NOW + 1.0)) == [0]


def test_a_ring_that_dies_on_several_hosts_is_said_of_all_and_of_one() -> None:
    facts, mine = snapshot(1, generation(0, 1)), trainer(0, exit_code=3, exited=NOW)
    outcome = decide(facts, mine, ended=frozenset({1})).outcome
    assert outcome is not None
    assert outcome.reason == "all workers died, w0 exited with code 3; w0 wrote nothing"


def test_when_the_ring_has_ended_nobody_is_started_and_the_job_has_stopped() -> None:
    ended_ring = replace(generation(0), members=(), reason="all have left")
    facts = snapshot(2, ended_ring, members=(member(0, "t-0"),), evicted={0: "it is frozen"})
    decision = decide(facts, trainer(0))
    assert (decision.starts, decision.outcome, ended(decision)) == ((), None, [("t-0", False)])
    outcome = decide(replace(facts, members=())).outcome
    assert outcome is not None
    assert (outcome.state, outcome.reason) == (JobState.STOPPED, "all have left")


def test_only_who_failed_by_itself_is_blamed_for_the_end() -> None:
    ended = trainer(0, exit_code=-15, exited=NOW, ending_since=NOW - 1)
    failed = trainer(1, exit_code=1, exited=NOW, termination_message="Boom")
    outcome = decide(snapshot(2, generation(0, 1)), ended, failed).outcome
    assert outcome is not None
    assert outcome.reason == "all workers exited with code 1; the last line of w1: Boom"


# --- a slot that keeps failing


def failing(slot: int = 1, **changes: object) -> Process:
    values = {
        "exit_code": 3,
        "exited": NOW,
        "failures": JOB.spec.settings.max_restarts,
        "termination_message": "Boom",
    }
    return trainer(slot, **{**values, **changes})


def test_a_slot_that_keeps_failing_is_given_up_and_not_wanted() -> None:
    facts = snapshot(2, generation(0))
    decision = decide(facts, trainer(0), failing())
    assert (decision.starts, decision.outcome) == ((), None)
    assert decision.disable_slot is not None
    assert (decision.disable_slot.attempt_id, decision.disable_slot.slot) == ("t-1", 1)
    assert decision.disable_slot.desired == {"a": 1}
    assert decision.disable_slot.reason == (
        "slot 1 of host a failed 11 times in a row (--max-restarts is 10) and is disabled; "
        "1 worker is wanted now; w1 exited with code 3; the last line of w1: Boom"
    )
    once_less = failing(failures=JOB.spec.settings.max_restarts - 1, exited=NOW - 100)
    assert slots(decide(facts, trainer(0), once_less)) == [1]


def test_a_slot_is_not_given_up_where_nobody_is_wanted_or_before_the_job_fails_alike() -> None:
    assert decide(snapshot(1, generation(0)), trainer(0), failing()).disable_slot is None
    never = changed(JOB, max_restarts=0)
    first = trainer(1, exit_code=3, exited=NOW)
    assert decide(snapshot(2, generation(0), job=never), trainer(0), first).disable_slot
    left = trainer(1, exit_code=0, exited=NOW - 10, failures=50)
    assert decide(snapshot(2, generation(0)), trainer(0), left).disable_slot is None


def test_who_asks_for_more_lets_a_slot_that_was_given_up_begin_anew_after_all_others() -> None:
    used_up = failing(used_up=True)
    assert slots(decide(snapshot(1, generation(0)), trainer(0), used_up)) == []
    assert slots(decide(snapshot(2, generation(0)), trainer(0), used_up)) == [2]
    small = replace(snapshot(2, generation(0)), hosts=(Host("a", 2, "127.0.0.1"),))
    (start,) = decide(small, trainer(0), used_up).starts
    assert (start.slot, start.failures) == (1, 0)


def test_below_min_np_a_free_slot_takes_the_place() -> None:
    needy = changed(JOB, min_np=2)
    facts = snapshot(2, generation(0), job=needy, hosts=(Host("a", 2, "1.1.1.1"),))
    now = own(trainer(0), failing())
    outcome = decide_agent(facts, now, NOW).outcome
    assert outcome is not None
    assert (outcome.state, outcome.exit_code) == (JobState.FAILED, 3)
    assert outcome.reason == (
        "slot 1 of host a failed 11 times in a row (--max-restarts is 10), and without it fewer "
        "than 2 (--min-np) are left: w1 exited with code 3; the last line of w1: Boom"
    )
    here = replace(facts, hosts=(Host("a", 3, "1.1.1.1"),))
    give_up = decide_agent(here, now, NOW).disable_slot
    assert give_up is not None
    assert give_up.desired == {"a": 2}
    there = replace(facts, hosts=(*facts.hosts, Host("b", 1, "1.1.1.2")))
    give_up = decide_agent(there, now, NOW).disable_slot
    assert give_up is not None
    assert give_up.desired == {"a": 1, "b": 1}
    spent = Host("b", 1, "1.1.1.2", disabled={"0": "it failed"})
    assert decide_agent(replace(facts, hosts=(*facts.hosts, spent)), now, NOW).outcome is not None


def test_a_newcomer_that_was_refused_is_not_replaced() -> None:
    """It had joined, and another start of the script would come to the same, also elsewhere."""
    refused = trainer(
        1, exit_code=REFUSED_EXIT, exited=NOW, termination_message="edl: w1 joined after ..."
    )
    roomy = (Host("a", 4, "1.1.1.1"),)
    facts = snapshot(2, generation(0), hosts=roomy)
    decision = decide(facts, trainer(0), refused)
    assert decision.starts == ()
    assert decision.disable_slot is not None
    assert decision.disable_slot.desired == {"a": 1}
    assert decision.reason == (
        "slot 1 of host a would get another worker that differs and is disabled; 1 worker is "
        "wanted now; w1 has said why"
    )
    needy = replace(facts, job=changed(JOB, min_np=2))
    outcome = decide(needy, trainer(0), refused).outcome
    assert outcome is not None
    assert (outcome.state, outcome.exit_code) == (JobState.FAILED, REFUSED_EXIT)
    assert outcome.reason.endswith("left: the last line of w1: edl: w1 joined after ...")
    known = replace(refused, used_up=True)
    assert slots(decide(facts, trainer(0), known)) == [2]  # somebody asks for more


def test_nobody_is_started_for_one_that_is_about_to_be_refused() -> None:
    """The leader knows that it is gone, the process is on its way out, and has said why."""
    roomy = (Host("a", 4, "1.1.1.1"),)
    gone = {1: f"{GONE}: 127.0.0.1:1 refuses connections"}
    facts = snapshot(2, generation(0), hosts=roomy, evicted=gone)
    leaving = trainer(1, exited_at=NOW, ended=NOW, ended_code=REFUSED_EXIT)
    assert slots(decide(facts, trainer(0), leaving)) == []
    killed = trainer(1, exited_at=NOW)
    assert slots(decide(facts, trainer(0), killed)) == [2]


def test_a_newcomer_that_was_refused_before_it_joined_is_not_replaced_either() -> None:
    refused = trainer(1, exit_code=REFUSED_EXIT, exited=NOW, seated=False, ready=False)
    facts = snapshot(2, generation(0), hosts=(Host("a", 4, "1.1.1.1"),))
    decision = decide(facts, trainer(0), refused)
    assert decision.starts == ()
    assert decision.disable_slot is not None
    assert decision.disable_slot.desired == {"a": 1}


# --- the end of a process


def test_who_ends_by_itself_is_not_asked_to_and_is_killed_when_it_does_not() -> None:
    """SIGTERM would hide how it has ended."""
    proof = "its process is gone: port 1 refuses connections"
    facts = snapshot(2, generation(0), evicted={1: proof})
    (seen,) = observe([trainer(1)], facts, NOW)
    assert seen.exited_at == NOW
    assert ended(decide_agent(facts, own(trainer(0), seen), NOW + LIMITS.gone_s - 0.1)) == []
    assert ended(decide_agent(facts, own(trainer(0), seen), NOW + LIMITS.gone_s)) == [("t-1", True)]


@pytest.mark.parametrize("job", [JOB, state(JobState.FINISHED), state(JobState.FAILED)])
def test_a_process_whose_script_has_ended_has_a_moment_to_be_gone(job: Job) -> None:
    facts = snapshot(1, generation(0), job=job)
    lingers = trainer(0, ended=NOW - 20, handled=NOW)
    assert ended(decide_agent(facts, own(lingers), NOW + LIMITS.exit_s - 0.1)) == []
    assert ended(decide_agent(facts, own(lingers), NOW + LIMITS.exit_s)) == [("t-0", True)]


@pytest.mark.parametrize("job", [JOB, state(JobState.FINISHED), state(JobState.FAILED)])
def test_exit_handlers_of_libraries_have_more_time_and_their_bound_is_said(job: Job) -> None:
    facts, exits = snapshot(1, generation(0), job=job), trainer(0, ended=NOW)
    before = decide_agent(facts, own(exits), NOW + LIMITS.exit_timeout_s - 0.1)
    assert (ended(before), before.warnings) == ([], ())
    after = decide_agent(facts, own(exits), NOW + LIMITS.exit_timeout_s)
    assert ended(after) == [("t-0", True)]
    assert (
        "w0 is killed: its script has ended (with code 0), and the exit handlers (atexit) that "
        "other libraries have registered did not end within 30 s (EDL_EXIT_TIMEOUT_S)"
    ) in after.warnings


# --- stopping


def test_a_ring_that_saves_has_more_time_to_end() -> None:
    job = changed(SAVED, state=JobState.STOPPING, save_timeout_s=200.0)
    facts = snapshot(2, generation(0), job=job)
    for seconds, endings in ((LIMITS.stop_s + 199, []), (LIMITS.stop_s + 200, [("t-0", False)])):
        now = NOW + seconds
        assert ended(decide_agent(facts, own(trainer(0), stepped=now), now)) == endings
    saves = replace(facts, members=(member(0, "t-0", stage=Stage.LEAVING),))
    assert decide_agent(saves, own(trainer(0)), NOW + LIMITS.stop_s + 199).endings == ()


@pytest.mark.parametrize(
    ("saved", "usual_s", "limit"),
    [
        (JOB, 0.0, LIMITS.stuck_s),
        (JOB, 2.0, 10.0),
        (JOB, 60.0, LIMITS.stop_s),
        (SAVED, 0.0, LIMITS.stop_s),
    ],
)
def test_a_ring_that_completes_no_step_is_not_waited_for(
    saved: Job, usual_s: float, limit: float
) -> None:
    job = replace(saved, state=JobState.STOPPING)
    facts = snapshot(2, generation(0, 1), job=job, status=TrainingStatus(median_step_s=usual_s))
    both = own(trainer(0), trainer(1))
    assert decide_agent(facts, both, NOW + limit - 0.1).endings == ()
    assert ended(decide_agent(facts, both, NOW + limit)) == [("t-0", True), ("t-1", True)]
    steps = replace(both, stepped=NOW + 1.0)
    if saved is JOB and usual_s < 60.0:
        assert decide_agent(facts, steps, NOW + limit).endings == ()


def test_a_ring_ends_by_its_leader() -> None:
    facts = snapshot(2, generation(0, 1), job=state(JobState.STOPPING))
    workers = own(trainer(0), trainer(1))
    workers = replace(workers, stepped=NOW + LIMITS.stop_s)
    assert decide_agent(facts, workers, NOW + LIMITS.stop_s - 1).endings == ()
    assert ended(decide_agent(facts, workers, NOW + LIMITS.stop_s)) == [
        ("t-0", False),
        ("t-1", False),
    ]


def test_nobody_leads_a_job_that_stops() -> None:
    facts = snapshot(2, generation(0), job=state(JobState.STOPPING), leader=None)
    mine = own(trainer(0), stepped=NOW + LIMITS.leaderless_s)
    assert decide_agent(facts, mine, NOW).endings == ()
    assert ended(decide_agent(facts, mine, NOW + LIMITS.leaderless_s)) == [("t-0", False)]


def test_a_job_that_stops_before_it_began() -> None:
    facts = snapshot(2, job=state(JobState.STOPPING))
    assert ended(decide(facts, process(0))) == [("t-0", False)]


def test_a_process_that_has_not_joined_is_ended_when_the_job_stops() -> None:
    facts = snapshot(2, generation(0), job=state(JobState.STOPPING))
    assert ended(decide(facts, trainer(0), process(1))) == [("t-1", False)]


def test_a_stopping_job_starts_nobody() -> None:
    assert decide(snapshot(4, job=state(JobState.STOPPING)), process(0)).starts == ()


def test_the_last_one_out_says_stopped() -> None:
    facts = snapshot(2, generation(0, 1), job=state(JobState.STOPPING, "Ctrl-C in edl run"))
    gone = trainer(0, exit_code=0, exited=NOW)
    there = member(1, "other-0", host="b")
    assert decide(replace(facts, members=(there,)), gone).outcome is None
    outcome = decide(facts, gone).outcome
    assert outcome is not None
    assert (outcome.state, outcome.reason) == (JobState.STOPPED, "Ctrl-C in edl run")
    assert outcome.exit_code == 0
    lingering = member(0, "t-0")  # our own, dead; its session has not expired yet
    assert decide(replace(facts, members=(lingering,)), gone).outcome is not None


# --- over


@pytest.mark.parametrize(
    ("over", "limit"),
    [
        (JobState.FINISHED, LIMITS.finish_s),
        (JobState.STOPPED, LIMITS.stop_s),
        (JobState.FAILED, 0.0),
    ],
)
def test_workers_of_a_job_that_is_over_get_time_to_end(over: JobState, limit: float) -> None:
    facts = snapshot(1, generation(0), job=state(over))
    if limit:
        assert decide_agent(facts, own(trainer(0)), NOW + limit - 1).endings == ()
    assert ended(decide_agent(facts, own(trainer(0)), NOW + limit)) == [("t-0", False)]
    ending = trainer(0, ending_since=NOW)
    assert ended(decide_agent(facts, own(ending), NOW + limit + LIMITS.kill_s)) == [("t-0", True)]
    assert decide(facts, trainer(0)).exit_code is None


def test_newcomers_of_a_job_that_is_over_are_ended_at_once() -> None:
    facts = snapshot(1, generation(0), job=state(JobState.FINISHED))
    assert ended(decide(facts, trainer(0), process(1, worker=1))) == [("t-1", False)]


def test_a_long_end_of_a_finished_job_is_mentioned() -> None:
    facts = snapshot(1, generation(0), job=state(JobState.FINISHED))
    warnings = decide_agent(facts, own(trainer(0)), NOW + LIMITS.stop_s).warnings
    assert warnings == ("w0 still running 30 s after the job has finished",)


def test_an_evicted_worker_of_a_finished_job_is_not_waited_for() -> None:
    """It is frozen; the others may still save what they have trained, for as long as it takes."""
    facts = snapshot(1, generation(0), job=state(JobState.FINISHED), evicted={1: "it is frozen"})
    decision = decide(facts, trainer(0), trainer(1))
    assert ended(decision) == [("t-1", False)]
    assert decision.endings[0].reason == "it is frozen"
    asked = trainer(1, ending_since=NOW, why="it is frozen")
    assert ended(decide_agent(facts, own(trainer(0), asked), NOW + LIMITS.kill_s)) == [
        ("t-1", True)
    ]


@pytest.mark.parametrize("over", [JobState.FINISHED, JobState.STOPPED, JobState.FAILED])
def test_the_agent_ends_after_its_workers(over: JobState) -> None:
    facts = snapshot(1, generation(0), job=state(over))
    assert decide(facts, trainer(0, exit_code=1, exited=NOW)).exit_code is not None
    assert decide(facts).exit_code is not None


def test_a_drained_host_ends_when_it_is_empty() -> None:
    facts = snapshot(0, generation(0))
    assert decide(facts, trainer(1), draining=True).exit_code is None
    assert decide(facts, trainer(1, exit_code=0, exited=NOW), draining=True).exit_code is not None
    assert decide(facts).exit_code is None


HERE = Assigned({"a": 1, "b": 1}, devices={"a": (0,), "b": (1,)})
NO_DEVICE = Assigned({"a": 0, "b": 2}, devices={"a": (), "b": (0, 1)})
DROPPED = Assigned({"b": 2})
SCALED_IN = Assigned({"a": 0, "b": 1})


@pytest.mark.parametrize(
    ("after", "is_elsewhere", "stays_s"),
    [
        (NO_DEVICE, True, LIMITS.elsewhere_s),  # so that others read that it uses no device
        (DROPPED, True, 0.0),
        (SCALED_IN, False, 1e9),  # `edl scale` may want a worker here again
        (replace(NO_DEVICE, devices={"a": (0,), "b": (0, 1)}), False, 1e9),
    ],
)
def test_an_agent_of_a_run_leaves_when_its_workers_were_placed_elsewhere(
    after: Assigned, is_elsewhere: bool, stays_s: float
) -> None:
    mine = with_placement(own(of_run=True), HERE, NOW)
    assert not mine.is_elsewhere
    for at_s in (NOW, NOW + 1.0):
        mine = with_placement(mine, after, at_s)
        assert mine.is_elsewhere is is_elsewhere
    facts = snapshot(assigned=after)
    busy = replace(mine, processes=(trainer(0),))
    assert decide_agent(facts, busy, NOW + stays_s).exit_code is None
    assert decide_agent(facts, mine, NOW + stays_s - 0.1).exit_code is None or not stays_s
    assert (decide_agent(facts, mine, NOW + stays_s).exit_code == 0) is is_elsewhere
    back = with_placement(mine, HERE, NOW + 9.0)
    assert decide_agent(snapshot(assigned=HERE), back, NOW + 99.0).exit_code is None
    joined = with_placement(with_placement(own(), HERE, NOW), after, NOW)
    assert not joined.is_elsewhere, "an agent of `edl join` stays"


def test_an_agent_that_comes_before_or_after_its_workers_are_placed_stays() -> None:
    early = with_placement(own(of_run=True), DROPPED, NOW)
    assert not early.is_elsewhere
    late = with_placement(own(of_run=True), NO_DEVICE, NOW)
    assert late.is_elsewhere
    assert decide_agent(snapshot(assigned=NO_DEVICE), late, NOW + 99.0).exit_code is None


def test_a_drained_host_ends_what_has_not_joined_yet() -> None:
    """The leader, which lets the others leave, does not know it."""
    facts = snapshot(0, generation(0))
    decision = decide(facts, trainer(0), process(1), draining=True)
    assert ended(decision) == [("t-1", False)]
    assert ended(decide(facts, trainer(0), process(1))) == []


# --- a newcomer that nobody hears of


def test_a_newcomer_that_left_zookeeper_for_long_is_ended_and_replaced() -> None:
    facts = snapshot(2, generation(0))
    frozen = process(1, worker=1, ready=True, no_session_since=NOW - LIMITS.absent_s)
    now = own(trainer(0), frozen)
    decision = decide_agent(facts, now, NOW)
    assert [ending.attempt_id for ending in decision.endings] == ["t-1"]
    assert decision.endings[0].reason == "it left ZooKeeper 20 s ago"
    assert slots(decision) == [2]
    assert ended(decide_agent(facts, now, NOW - 0.1)) == []


def test_who_was_ever_in_a_ring_is_not_ended_for_its_absence() -> None:
    """It may be training."""
    away = trainer(1, no_session_since=NOW - 10 * LIMITS.absent_s)
    assert ended(decide(snapshot(2, generation(0, 1)), trainer(0), away)) == []


LED = Leader(3, 0)  # by w0
LONG = NOW - LIMITS.frozen_s


@pytest.mark.parametrize(
    ("changes", "leader", "frozen"),
    [
        ({}, LED, True),
        ({"unresponsive_since": None}, LED, False),  # it trains, and only its session has ended
        ({"unresponsive_since": LONG + 0.1}, LED, False),
        ({"no_session_since": LONG + 0.1}, LED, False),
        ({"no_session_since": None}, LED, False),  # its leader decides
        ({"departing": LONG}, LED, False),  # nobody waits for it
        ({"seated": False}, LED, False),
        ({}, None, False),  # nobody could go on without it
        ({}, Leader(3, 1), False),  # it leads itself, as ZooKeeper knows
    ],
)
def test_who_left_zookeeper_and_does_not_answer_is_ended_when_others_can_go_on(
    changes: dict[str, object], leader: Leader | None, frozen: bool
) -> None:
    silent = trainer(1, **({"no_session_since": LONG, "unresponsive_since": LONG} | changes))
    facts = snapshot(2, generation(0, 1), leader=leader)
    decision = decide(facts, trainer(0), silent)
    assert ended(decision) == ([("t-1", False)] if frozen else [])
    if frozen:
        reason = "it is frozen: it left ZooKeeper and does not answer for 10 s"
        assert decision.endings[0].reason == reason


HALTED = NOW - LIMITS.suspended_s


@pytest.mark.parametrize(
    ("changes", "others", "ends"),
    [
        ({}, {0}, True),
        ({}, set(), False),  # all are suspended, or nobody can be reached: nobody waits for it
        ({"suspended_since": None}, {0}, False),
        ({"suspended_since": HALTED + 0.1}, {0}, False),
        ({"departing": LONG}, {0}, False),
        ({"ended": LONG}, {0}, False),
        ({"worker": 7}, {0}, False),  # in no ring: nobody waits for it
        ({"worker": None}, {0}, False),
    ],
)
def test_a_suspended_worker_is_killed_when_another_one_waits_for_it(
    changes: dict[str, object], others: set[int], ends: bool
) -> None:
    asleep = trainer(1, **({"suspended_since": HALTED} | changes))
    mine = own(trainer(0), asleep, waiting=frozenset(others))
    decision = decide_agent(snapshot(2, generation(0, 1)), mine, NOW)
    assert ended(decision) == ([("t-1", True)] if ends else [])
    if ends:
        reason = "it is suspended (SIGSTOP) for 1 s, and others wait for it"
        assert decision.endings[0].reason == reason


def test_no_suspended_worker_is_killed_if_that_is_switched_off() -> None:
    mine = own(
        trainer(0),
        trainer(1, suspended_since=HALTED),
        waiting=frozenset({0}),
        limits=replace(LIMITS, suspended_s=0.0),
    )
    assert waiting_members(snapshot(2, generation(0, 1)), mine, NOW) == ()
    assert ended(decide_agent(snapshot(2, generation(0, 1)), mine, NOW)) == []


@pytest.mark.parametrize("suspended_s", [1.0, 0.0])
def test_an_evicted_worker_that_is_suspended_only_now_may_end_by_itself(suspended_s: float) -> None:
    brief = trainer(1, suspended_since=NOW - (0.5 if suspended_s else 100.0))
    mine = own(trainer(0), brief, limits=replace(LIMITS, suspended_s=suspended_s))
    facts = snapshot(2, generation(0, 1), evicted={1: "the leader says so"})
    assert ended(decide_agent(facts, mine, NOW)) == [("t-1", False)]


def test_who_is_asked_whether_it_waits_for_a_suspended_worker() -> None:
    """Nobody, before one is suspended for long; then not those that are suspended, too."""
    ring = snapshot(2, generation(0, 1, 2, 3))
    briefly = trainer(1, suspended_since=HALTED + 0.5)
    assert waiting_members(ring, own(trainer(0), briefly), NOW) == ()
    asked = waiting_members(ring, own(trainer(0, suspended_since=HALTED), briefly), NOW)
    assert [member.id for member in asked] == [2, 3]


def test_whom_the_agent_asks() -> None:
    processes = (
        trainer(0),
        trainer(1, no_session_since=LONG),
        trainer(2),
        died(3, no_session_since=LONG),
        process(4),
    )
    facts = snapshot(2, generation(0, 1), evicted={2: "it is frozen"})
    assert [p.slot for p in to_ask(processes, facts)] == [1, 2]


def test_absence_is_counted_from_its_first_sight() -> None:
    (seen,) = observe([process(0)], snapshot(1), NOW)
    assert seen.no_session_since is None, "it has not registered yet"
    (here,) = observe([process(0)], snapshot(1, members=(member(7, "t-0"),)), NOW)
    (gone,) = observe([here], snapshot(1), NOW + 1)
    (still,) = observe([gone], snapshot(1), NOW + 5)
    (back,) = observe([still], snapshot(1, members=(member(7, "t-0"),)), NOW + 6)
    assert (
        here.no_session_since,
        gone.no_session_since,
        still.no_session_since,
        back.no_session_since,
    ) == (None, NOW + 1, NOW + 1, None)


# --- what is seen


def test_a_process_is_found_by_its_launch() -> None:
    facts = snapshot(1, members=(member(7, "t-0"), member(8, "t-1", stage=Stage.READY)))
    first, second, third = observe([process(0), process(1), process(2)], facts, NOW)
    assert (first.worker, first.ready, first.name) == (7, False, "w7")
    assert (second.worker, second.ready, second.seated) == (8, True, False)
    assert (third.worker, third.name) == (None, "slot 2")


def test_a_seat_is_remembered_and_its_loss_is_departing() -> None:
    (seen,) = observe([process(0, worker=0)], snapshot(1, generation(0)), NOW)
    assert seen.seated
    assert seen.departing is None
    without = snapshot(1, generation(1, number=2, previous=(0, 1)))
    (taken_out,) = observe([seen], without, NOW)
    assert taken_out.departing == NOW
    (still,) = observe([taken_out], without, NOW + 5)
    assert still.departing == NOW


def test_a_newcomer_that_waits_for_another_seat_is_not_departing() -> None:
    facts = snapshot(1, generation(1, number=2), members=(member(0, "t-0", stage=Stage.READY),))
    assert observe([trainer(0)], facts, NOW)[0].departing is None


@pytest.mark.parametrize("stage", [Stage.LEAVING, Stage.FINISHED])
def test_a_stage_that_is_departing(stage: Stage) -> None:
    facts = snapshot(1, generation(0), members=(member(0, "t-0", stage=stage),))
    assert observe([trainer(0)], facts, NOW)[0].departing == NOW


def test_an_exit_after_eviction_is_no_failure() -> None:
    facts = snapshot(1, generation(0), evicted={1: "not wanted"})
    (seen,) = observe([died(1, worker=1)], facts, NOW)
    assert not seen.failed


def test_only_exits_that_matter_are_kept() -> None:
    old = died(0, attempt_id="t-old", worker=3, started=NOW - 50)
    seated = died(1, attempt_id="t-seated", worker=0, started=NOW - 50)
    last = died(2, attempt_id="t-last", started=NOW - 50)
    kept = relevant([old, seated, last, process(0), process(1)], snapshot(2, generation(0)))
    assert [p.attempt_id for p in kept] == ["t-seated", "t-last", "t-0", "t-1"]


@pytest.mark.parametrize(("trained_in", "kept"), [(1, True), (2, False)])
def test_a_failure_in_the_ring_of_the_last_step_matters_beside_its_replacement(
    trained_in: int, kept: bool
) -> None:
    """It may turn out that no other step follows: then its error came after the training."""
    killed = trainer(1, exit_code=-9, exited=NOW, generation=1)
    replacement = replace(process(1), attempt_id="t-9", started=NOW + 0.1)
    reading = ProgressSample(0, trained_in, 2, 0, 200, 800, 1.0)
    facts = snapshot(2, generation(0, number=2), status=TrainingStatus(progress_sample=reading))
    assert (killed in relevant([killed, replacement], facts)) is kept
    assert killed.failed_late(NOW + 5, finished_in=1)


@pytest.mark.parametrize(
    ("is_submitter", "recorded", "code"), [(True, 130, 130), (True, 0, 143), (False, 130, 0)]
)
def test_who_has_started_a_job_ends_with_the_code_of_what_stopped_it(
    is_submitter: bool, recorded: int, code: int
) -> None:
    """Whoever only takes part has done what was asked."""
    job = replace(state(JobState.STOPPED), exit_code=recorded)
    assert decide(snapshot(job=job), is_submitter=is_submitter).exit_code == code


def test_the_place_of_a_worker_that_is_to_be_replaced_is_filled_in_another_slot() -> None:
    asked = (Request(RequestKind.REPLACE, 1),)
    agent = (Host("a", 4, "127.0.0.1"),)
    now = snapshot(ring=generation(0, 1), hosts=agent, requests=asked)
    decision = decide_agent(now, AgentState("a", "t", (trainer(0), trainer(1))), NOW)
    assert [start.slot for start in decision.starts] == [2]
    coming = AgentState("a", "t", (trainer(0), trainer(1), process(2)))
    assert not decide_agent(now, coming, NOW).starts
    moved = replace(now, **wanted({"a": 1, "b": 1}))
    assert not decide_agent(moved, AgentState("a", "t", (trainer(0), trainer(1))), NOW).starts
