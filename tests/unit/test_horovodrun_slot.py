"""What `edl-worker` does next: every rule of host/horovodrun/decide.py, by editing one value."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from made import changed, make_job, wanted

from edl.errors import REFUSED_EXIT
from edl.host.horovodrun.decide import (
    AfterLoss,
    LostSlots,
    SlotLimits,
    SlotRelease,
    SlotState,
    abandoned,
    after_loss,
    awaits_others,
    decide_slot,
    forgotten,
    last_round,
    may_ask,
    released,
    removal_pending,
    with_answer,
    without_barred,
    would_end_the_job,
)
from edl.host.process import Process
from edl.host.supervision import RingDeath, SupervisorDecision, dead_ring
from edl.job.snapshot import Snapshot
from edl.records import (
    Assigned,
    Desired,
    Generation,
    JobState,
    Leader,
    Member,
    RingMember,
    SlotRecord,
    Stage,
)
from edl.spec import Sizes

JOB = make_job(driver="10.0.0.1:9000")
SEATS = tuple(RingMember(worker, "a", worker, "127.0.0.1", 1) for worker in (0, 1))
RING = Generation(1, 1, SEATS, 0, (0, 1), (), "start")
MEMBERS = tuple(
    Member(worker, "a", worker, "127.0.0.1", 1, 100 + worker, f"l{worker}", Stage.ACTIVE, 1)
    for worker in (0, 1)
)
NOW = Snapshot(
    JOB, members=MEMBERS, **wanted({"a": 2}, by_slot=True), generation=RING, leader=Leader(1, 0)
)
LIVES = Process(1, "l1", 0.0, worker=1, ready=True, seated=True)
KILLED = replace(LIVES, exit_code=-9, exited=99.0)
ERROR = replace(LIVES, exit_code=3, exited=99.0)
LIMITS = SlotLimits()
OWN = SlotState("a", "t", (LIVES,), script="train.py", slot=1)
NONE = replace(OWN, processes=())
LOST = (RingDeath(1, -1, 100.0),)


def with_job(**changes: Any) -> Snapshot:
    return replace(NOW, job=changed(JOB, **changes))


def end_signal(snapshot: Snapshot, own: SlotState, at: float) -> str | None:
    endings = decide_slot(snapshot, own, at).endings
    return None if not endings else "SIGKILL" if endings[0].kill else "SIGTERM"


def did_nothing(decision: SupervisorDecision) -> bool:
    return (decision.starts, decision.endings, decision.exit_code) == ((), (), None)


def test_the_first_start_is_at_once() -> None:
    decision = decide_slot(NOW, NONE, 0.0)
    assert [start.slot for start in decision.starts] == [1]


def test_a_worker_that_runs_is_left_alone() -> None:
    decision = decide_slot(NOW, OWN, 100.0)
    assert did_nothing(decision)


def test_a_killed_worker_is_started_again_after_a_pause() -> None:
    own = replace(OWN, processes=(KILLED,))
    assert decide_slot(NOW, own, 99.5).starts == ()
    (start,) = decide_slot(NOW, own, 100.0).starts
    assert start.failures == 1


def test_the_driver_never_sees_the_end_of_a_worker_that_left_while_its_slot_is_wanted() -> None:
    own = replace(OWN, processes=(replace(LIVES, exit_code=0, exited=99.0),))
    assert decide_slot(NOW, own, 99.0).exit_code is None
    assert decide_slot(NOW, own, 100.0).starts


def test_a_slot_that_the_driver_took_back_ends_with_success() -> None:
    own = replace(OWN, removed=True)
    assert decide_slot(NOW, own, 100.0).exit_code is None  # the leader takes the worker out
    assert decide_slot(NOW, own, 100.0).endings == ()
    assert decide_slot(NOW, replace(own, processes=(KILLED,)), 100.0).exit_code == 0


def test_a_worker_in_no_ring_is_ended_when_the_driver_takes_its_slot_back() -> None:
    """The leader does not know it, or has given it up; the driver may soon start another one."""
    starts = Process(1, "l1", 0.0)
    prepares = replace(starts, worker=1)
    for living, evicted in ((starts, {}), (prepares, {}), (LIVES, {1: "frozen"})):
        now = replace(NOW, evicted=evicted)
        own = replace(OWN, processes=(living,), removed=True)
        assert end_signal(now, own, 100.0) == "SIGTERM"
        ending = replace(own, processes=(replace(living, ending_since=100.0),))
        assert end_signal(now, ending, 104.0) is None
        assert end_signal(now, ending, 105.0) == "SIGKILL"
    joined = replace(LIVES, ending_since=100.0)  # it got its seat meanwhile, and leaves it
    assert decide_slot(NOW, replace(OWN, processes=(joined,), removed=True), 110.0).endings == ()


def test_the_driver_need_not_kill_what_it_ends_on_a_host_that_it_bars() -> None:
    """It does so after 5 s, and would take that for the end of the slot's next process."""
    barred = replace(OWN, removed=True, ending_since=50.0, disabled=True)
    assert end_signal(NOW, barred, 50.0) == "SIGTERM"
    ending = replace(barred, processes=(replace(LIVES, ending_since=50.0),))
    assert end_signal(NOW, ending, 52.9) is None
    assert end_signal(NOW, ending, 53.0) == "SIGKILL"
    # Asked by a user, or it is not known yet to whom the slot belongs: it has the time to leave.
    assert decide_slot(NOW, replace(ending, disabled=False), 79.0).endings == ()
    assert decide_slot(NOW, replace(ending, removed=False), 79.0).endings == ()


def test_a_process_whose_ssh_has_ended_lets_its_worker_leave_and_ends() -> None:
    """Its slot is still assigned, so that the others see a dead edl-worker, as the driver does."""
    own = replace(OWN, unread=True)
    assert end_signal(NOW, own, 50.0) == "SIGTERM"
    ending = replace(own, processes=(replace(LIVES, ending_since=50.0),))
    assert end_signal(NOW, ending, 79.0) is None
    assert end_signal(NOW, ending, 80.0) == "SIGKILL"
    gone, others = replace(own, processes=(KILLED,)), (SlotRecord("a", 0), SlotRecord("a", 1))
    now = replace(NOW, slots=others)
    assert (
        decide_slot(now, gone, 108.9).exit_code is None
    )  # horovodrun may have ended, and so the job
    assert decide_slot(now, gone, 109.0).exit_code == 1
    last = replace(NOW, slots=others[1:])
    assert decide_slot(last, gone, 128.9).outcome is None
    outcome = decide_slot(last, gone, 129.0).outcome
    assert outcome is not None
    assert outcome.state is JobState.FAILED
    stopping = replace(with_job(state=JobState.STOPPING), members=())
    stopped = decide_slot(stopping, gone, 101.0).outcome
    assert stopped is not None
    assert stopped.state is JobState.STOPPED


def test_who_is_asked_to_end_waits_for_the_driver_to_take_the_slot_back() -> None:
    own = replace(OWN, ending_since=50.0)
    assert end_signal(NOW, own, 50.0) == "SIGTERM"
    gone = replace(own, processes=(replace(LIVES, exit_code=0, exited=51.0),))
    assert decide_slot(NOW, gone, 79.0).exit_code is None
    assert decide_slot(NOW, gone, 80.0).exit_code == 1
    assert decide_slot(NOW, replace(gone, removed=True), 51.0).exit_code == 0


def test_the_job_is_stopped_when_all_were_asked_to_end_and_no_worker_is_left() -> None:
    """There is no leader that lets a ring end: horovodrun ended before the first was complete."""
    ended = replace(LIVES, exit_code=0, exited=51.0)
    own = replace(OWN, processes=(ended,), ending_since=50.0)
    all_end = tuple(SlotRecord("a", slot, ending=True) for slot in (0, 1))
    here = replace(NOW, slots=all_end, members=())

    def stops(now: Snapshot, own: SlotState, at: float = 51.0) -> bool:
        outcome = decide_slot(now, own, at).outcome
        return outcome is not None and outcome.state is JobState.STOPPED

    before_the_ring = replace(here, generation=None)
    assert stops(before_the_ring, replace(own, processes=()))
    assert not stops(before_the_ring, replace(own, processes=(LIVES,)))
    one_stays = (SlotRecord("a", 0), all_end[1])
    assert not stops(replace(before_the_ring, slots=one_stays), own, 53.0)
    one_is_to_come = replace(before_the_ring, slots=all_end[1:])
    assert not stops(one_is_to_come, own, 52.9)
    assert stops(one_is_to_come, own, 53.0)  # before horovodrun kills this process
    # Workers of the ring may train without a session until there is proof of their end.
    assert not stops(here, own)
    assert stops(here, replace(own, ended=frozenset({0})))
    assert not stops(here, replace(own, ended=frozenset({0}), answering=frozenset({0})))
    assert not stops(replace(here, members=MEMBERS[:1]), own)
    # One that has run no worker of the ring leaves that to another one.
    assert not stops(here, replace(own, processes=(), ended=frozenset({0})))


@pytest.mark.parametrize(
    ("state", "exit_code", "code"),
    [(JobState.FINISHED, 0, 0), (JobState.STOPPED, 0, 0), (JobState.FAILED, 7, 7)],
)
def test_the_end_of_the_job_is_the_end_for_the_driver(
    state: JobState, exit_code: int, code: int
) -> None:
    now = with_job(state=state, exit_code=exit_code)
    ended = replace(OWN, processes=(replace(LIVES, exit_code=0, exited=99.0),))
    assert decide_slot(now, ended, 100.0).exit_code == code
    assert decide_slot(now, NONE, 100.0).exit_code == code


def test_after_the_end_the_driver_is_waited_for_and_that_is_said() -> None:
    """A success would count beside the question; a failure takes its place."""
    job = replace(JOB, state=JobState.FINISHED)
    assert last_round(job, 1, False, "", late=False).exit_code is None
    waits = last_round(job, 1, True, "slot 0 on b", late=True)
    assert waits.exit_code is None
    assert "digits has finished, but horovodrun waits for slot 0 on b" in waits.reason
    assert (
        "waits for an edl-worker that does not ask"
        in last_round(job, 1, True, "", late=True).reason
    )
    fails = last_round(job, 1, False, "", late=True)
    assert fails.exit_code == 1
    assert "has not answered slot 1" in fails.reason


def test_an_error_after_the_job_has_finished_is_passed_on() -> None:
    now = with_job(state=JobState.FINISHED)
    assert (
        decide_slot(now, replace(OWN, processes=(ERROR,), state_since=98.0), 100.0).exit_code == 3
    )


def test_a_script_may_work_on_after_the_training() -> None:
    now = with_job(state=JobState.FINISHED)
    assert decide_slot(now, OWN, 500.0).endings == ()
    assert decide_slot(now, OWN, 700.0).endings


@pytest.mark.parametrize(
    ("exit_code", "worker", "said"),
    [
        (0, None, "train.py ended without calling edl.init"),
        (3, None, "train.py exited with code 3 before joining the job"),
        (-9, 1, "SIGKILL"),
    ],
)
def test_a_job_that_cannot_begin_has_failed(exit_code: int, worker: int | None, said: str) -> None:
    now = replace(NOW, generation=None, members=())
    process = Process(1, "l1", 0.0, worker=worker, exit_code=exit_code, exited=1.0)
    outcome = decide_slot(now, replace(OWN, processes=(process,)), 2.0).outcome
    assert outcome is not None
    assert outcome.state is JobState.FAILED
    assert said in outcome.reason


def test_a_job_fails_at_once_whose_script_was_refused() -> None:
    """Another start of the same command would be, too; there are others, or there are none."""
    now = replace(NOW, generation=None, members=MEMBERS[:1])
    process = Process(
        1, "l1", 0.0, exit_code=REFUSED_EXIT, exited=1.0, termination_message="no init()"
    )
    outcome = decide_slot(now, replace(OWN, processes=(process,)), 2.0).outcome
    assert outcome is not None
    assert (outcome.reason, outcome.exit_code) == ("no init()", REFUSED_EXIT)


def test_a_silent_script_fails_a_job_that_needs_it_to_begin() -> None:
    silent = replace(OWN, processes=(Process(1, "l1", 0.0),))
    needy = replace(with_job(min_np=2), generation=None, members=MEMBERS[:1])
    assert decide_slot(needy, silent, 119.0).outcome is None
    outcome = decide_slot(needy, silent, 120.0).outcome
    assert outcome is not None
    assert "did not call edl.init() within 120 s" in outcome.reason
    late = decide_slot(NOW, silent, 120.0)
    assert (late.outcome, len(late.warnings)) == (None, 1)


def test_one_of_several_that_fails_at_first_is_tried_again() -> None:
    now = replace(NOW, generation=None, members=MEMBERS[:1])
    process = Process(1, "l1", 0.0, exit_code=3, exited=1.0)
    assert decide_slot(now, replace(OWN, processes=(process,)), 5.0).starts


def test_nothing_is_started_while_nobody_could_give_it_the_state() -> None:
    lost = replace(NOW, members=())
    assert dead_ring(lost, replace(OWN, processes=(KILLED,)))
    assert not dead_ring(lost, OWN)
    assert not dead_ring(NOW, replace(OWN, processes=(KILLED,)))
    own = replace(OWN, processes=(KILLED,), ring_deaths=LOST)
    assert decide_slot(lost, own, 109.0).starts == ()
    outcome = decide_slot(lost, own, 110.0).outcome
    assert outcome is not None
    assert "no checkpoint" in outcome.reason


def test_with_a_checkpoint_killed_workers_begin_again_and_broken_scripts_do_not() -> None:
    lost = replace(with_job(saved_step=40), members=())
    own = replace(OWN, ring_deaths=LOST)
    assert decide_slot(lost, replace(own, processes=(KILLED,)), 110.0).starts
    outcome = decide_slot(lost, replace(own, processes=(ERROR,)), 110.0).outcome
    assert outcome is not None
    assert outcome.exit_code == 3


def test_a_worker_that_was_given_up_is_ended_and_that_is_no_failure() -> None:
    assert end_signal(replace(NOW, evicted={1: "frozen"}), OWN, 100.0) == "SIGTERM"
    assert not replace(KILLED, ending_since=98.0).failed


def test_a_stop_waits_for_the_ring_and_then_for_nobody() -> None:
    now = with_job(state=JobState.STOPPING)
    steps = replace(OWN, stepped=100.0)
    assert decide_slot(now, replace(steps, state_since=90.0), 100.0).endings == ()
    assert end_signal(now, replace(steps, state_since=60.0), 100.0) == "SIGTERM"
    assert end_signal(replace(now, leader=None), replace(steps, state_since=90.0), 100.0)
    stuck = replace(OWN, state_since=100.0)
    assert decide_slot(now, stuck, 100.0 + LIMITS.stuck_s - 0.1).endings == ()
    assert end_signal(now, stuck, 100.0 + LIMITS.stuck_s) == "SIGKILL"
    outcome = decide_slot(
        replace(now, members=()), replace(OWN, processes=(KILLED,)), 100.0
    ).outcome
    assert outcome is not None
    assert outcome.state is JobState.STOPPED


def test_a_slot_that_keeps_failing_stays_empty_and_the_driver_does_not_see_it() -> None:
    failing = replace(ERROR, started=90.0, failures=4, termination_message="ValueError: boom")
    own = replace(OWN, processes=(failing,))
    assert decide_slot(with_job(max_restarts=5), own, 200.0).starts
    decision = decide_slot(with_job(max_restarts=4), own, 200.0)
    assert decision.disable_slot is not None
    assert decision.disable_slot.desired == NOW.assigned.hosts  # it is the driver's
    assert did_nothing(decision)
    assert decision.reason == (
        "slot 1 of host a failed 5 times in a row (EDL_MAX_RESTARTS is 4) and is disabled; "
        "w1 exited with code 3; the last line of w1: ValueError: boom"
    )
    given_up = replace(own, processes=(replace(failing, used_up=True),))
    idle = decide_slot(with_job(max_restarts=4), given_up, 200.0)
    assert idle.disable_slot is None
    assert did_nothing(idle)


@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_job_that_needs_a_slot_that_was_given_up_has_failed(elsewhere: bool) -> None:
    own = replace(
        OWN,
        processes=(
            replace(ERROR, started=90.0, failures=4, termination_message="ValueError: boom"),
        ),
    )
    job = changed(JOB, max_restarts=4, min_np=1 if elsewhere else 2)
    used = (SlotRecord("a", 0, disabled="it failed"),) if elsewhere else ()
    decision = decide_slot(replace(NOW, job=job, slots=used), own, 200.0)
    assert decision.outcome is not None
    assert (decision.outcome.state, decision.outcome.exit_code) == (JobState.FAILED, 3)
    assert "without it fewer than" in decision.outcome.reason
    assert decision.outcome.reason.endswith("the last line of w1: ValueError: boom")


def test_a_process_whose_script_has_ended_is_killed_when_it_stays() -> None:
    over = with_job(state=JobState.FINISHED)
    own = replace(OWN, processes=(replace(LIVES, ended=90.0, handled=100.0),), state_since=100.0)
    assert decide_slot(over, own, 100.0 + LIMITS.exit_s - 0.1).endings == ()
    assert end_signal(over, own, 100.0 + LIMITS.exit_s) == "SIGKILL"


def test_nobody_waits_for_the_dead_whose_end_was_logged() -> None:
    lost = replace(NOW, members=())
    own = replace(OWN, processes=(ERROR,), ring_deaths=(RingDeath(1, -1, 99.5),))
    assert decide_slot(lost, own, 100.0).outcome is None
    assert decide_slot(lost, replace(own, ended=frozenset({0, 1})), 100.0).outcome is not None
    proven = replace(lost, evicted={0: "its process is gone: port 1 refuses connections"})
    assert decide_slot(proven, replace(own, ended=frozenset({1})), 100.0).outcome is not None
    frozen = replace(lost, evicted={0: "it is frozen or cut off"})
    assert decide_slot(frozen, replace(own, ended=frozenset({1})), 100.0).outcome is None


def test_when_the_ring_has_ended_the_job_has_stopped() -> None:
    ended = replace(NOW, generation=replace(RING, members=(), reason="horovodrun ends"))
    ending = replace(OWN, ending_since=99.0, processes=(KILLED,))
    assert decide_slot(ended, ending, 100.0).outcome is None  # one of them is still there
    outcome = decide_slot(replace(ended, members=()), ending, 100.0).outcome
    assert outcome is not None
    assert (outcome.state, outcome.reason) == (JobState.STOPPED, "horovodrun ends")


def test_who_is_asked_to_end_gives_up_a_slot_of_its_host() -> None:
    assert released({"a": 2, "b": 1}, "a", Sizes(1)) == {"a": 1, "b": 1}
    assert released({"a": 2, "b": 1}, "a", Sizes(3)) == {"a": 2, "b": 1}
    assert released({"b": 1}, "a", Sizes(1)) == {"b": 1}


def test_a_slot_is_released_once_though_the_answer_of_a_write_is_lost() -> None:
    release = SlotRelease("a")
    lower = release.choice(Sizes(1))
    assert lower({"a": 4}) == {"a": 3}
    assert lower({"a": 6}) == {"a": 5}, "others changed it before it was written"
    assert release.choice(Sizes(1))({"a": 5}) == {"a": 5}, "the first attempt was written"
    assert release.choice(Sizes(1))({"a": 6}) == {"a": 5}, "it was not"


def test_what_is_assigned_follows_the_driver() -> None:
    assert with_answer({"a": 2, "b": 1}, "a", 0, 3) == {"a": 3, "b": 1}
    assert with_answer({"a": 3}, "a", 2, None) == {"a": 2}
    assert with_answer({"a": 2}, "a", 2, None) == {"a": 2}  # others of the host know better
    assert with_answer({"a": 3}, "a", 0, None) == {"a": 0}


def test_the_driver_is_not_asked_while_a_slot_that_it_took_back_is_in_use() -> None:
    assert not removal_pending(NOW)
    assert removal_pending(replace(NOW, **wanted({"a": 1})))
    assert removal_pending(replace(NOW, **wanted({})))
    assert removal_pending(
        replace(NOW, slots=(SlotRecord("a", 2),))
    )  # its edl-worker is to end yet
    assert not removal_pending(replace(NOW, slots=(SlotRecord("a", 1),)))


def test_who_moves_to_another_host_waits_until_it_is_assigned_there() -> None:
    def waits(now: dict[str, int], lowered: dict[str, int], desired: dict[str, int]) -> bool:
        return awaits_others(Assigned(now, by_slot=True), lowered, Desired(desired))

    assert waits({"a": 2}, {"a": 1}, {"a": 1, "b": 1})
    assert not waits({"a": 2, "b": 1}, {"a": 1, "b": 1}, {"a": 1, "b": 1})
    assert not waits({"a": 2}, {"a": 1}, {"a": 1})  # a scale-in
    assert not waits({"a": 2}, {"a": 3}, {"a": 3})  # a scale-out
    assert not waits({"a": 2}, {"a": 1}, {})  # another discovery script: nobody knows


def test_a_driver_that_missed_what_is_desired_is_reminded_and_one_that_cannot_is_not() -> None:
    has, desired, limit_s = {"a": 2, "b": 0}, {"a": 2, "b": 2}, LIMITS.follow_s

    def reminded(now: float, answered: float = 0.0, barred: tuple[str, ...] = ()) -> bool:
        return forgotten(has, desired, barred, 100.0, answered, now, limit_s)

    assert not reminded(114.0)
    assert reminded(115.0)
    assert reminded(115.0, answered=101.0)  # that round may have begun before
    assert not reminded(200.0, answered=115.0)  # it knew that
    assert not reminded(115.0, barred=("b",))
    assert reminded(115.0, barred=("a",))
    assert not forgotten(has, {"a": 2}, (), 100.0, 0.0, 200.0, limit_s)
    assert not forgotten(has, {}, (), 100.0, 0.0, 200.0, limit_s)  # another discovery script


def test_a_host_is_barred_from_the_loss_of_a_slot_until_it_has_one_again() -> None:
    kept = tuple(SlotRecord(host, slot) for host in "ab" for slot in (0, 1))
    lost_slots = LostSlots("a", 0, LIMITS)

    def barred(now: float, hosts: dict[str, int], *slots: SlotRecord) -> set[str]:
        lost_slots.update(replace(NOW, **wanted(hosts), slots=slots), 0.0, now)
        return set(lost_slots.barred)

    assert barred(100.0, {"a": 2, "b": 2}, *kept) == set()
    assert barred(101.0, {"a": 2, "b": 1}, *kept[:3]) == set()  # taken back
    assert barred(102.0, {"a": 2, "b": 2}, *kept) == set()
    assert barred(103.0, {"a": 2, "b": 2}, *kept[:3]) == set()
    assert barred(108.0, {"a": 2, "b": 2}, *kept[:3]) == {"b"}
    assert barred(109.0, {"a": 2, "b": 0}, *kept[:3]) == {"b"}  # its other worker leaves
    assert barred(110.0, {"a": 2}, *kept[:2]) == {"b"}
    assert barred(200.0, {"a": 2, "b": 2}, *kept) == set()


def test_a_loss_is_acted_on_each_time_and_a_slot_that_comes_again_is_none() -> None:
    kept = (SlotRecord("a", 0), SlotRecord("b", 0))
    lost_slots = LostSlots("a", 0, LIMITS)

    def asks(now: float, hosts: dict[str, int], *slots: SlotRecord) -> bool:
        return lost_slots.update(replace(NOW, **wanted(hosts), slots=slots), 0.0, now)

    both = {"a": 1, "b": 1}
    for began in (100.0, 200.0):  # the host came back after its cool-down
        assert not asks(began, both, *kept)
        assert not asks(began + 1, both, *kept[:1])
        assert asks(began + 7, both, *kept[:1])
        assert not asks(began + 20, both, *kept[:1])  # once is enough
    assert not asks(300.0, {"a": 1}, *kept[:1])
    assert not asks(301.0, both, *kept[:1])  # a new one is to start there, however slowly
    assert not asks(400.0, both, *kept[:1])
    assert lost_slots.best is AfterLoss.NOTHING
    assert not asks(422.0, both, *kept[:1])
    assert asks(430.0, both, *kept[:1])  # it died on the way


def test_a_slot_is_abandoned_when_its_edl_worker_was_there_and_is_not() -> None:
    now = replace(NOW, **wanted({"a": 2, "b": 1}), slots=(SlotRecord("a", 1),))
    assert abandoned(now, {("a", 0), ("a", 1)}) == {("a", 0)}
    assert abandoned(now, {("a", 0), ("a", 2)}) == {("a", 0)}  # the driver took a:2 back
    assert abandoned(now, set()) == set()  # they are about to start


@pytest.mark.parametrize(
    ("hosts", "min_np", "lost", "best"),
    [
        ({"a": 2, "b": 2}, 2, [], AfterLoss.NOTHING),
        ({"a": 2, "b": 2}, 2, [("a", 0)], AfterLoss.PLACE_ANEW),
        ({"a": 2, "b": 2}, 3, [("a", 0)], AfterLoss.WAIT),  # three train, two would be left
        ({"a": 2, "b": 2}, 4, [("a", 0)], AfterLoss.PLACE_ANEW),  # too few train in any case
        ({"a": 2, "b": 2}, 2, [("a", 0), ("b", 1)], AfterLoss.HOLD),
        ({"a": 4}, 1, [("a", 3)], AfterLoss.HOLD),  # the driver would bar the only host
        ({"a": 1}, 1, [("a", 0)], AfterLoss.PLACE_ANEW),
    ],
)
def test_the_driver_places_the_slots_anew_where_that_helps(
    hosts: dict[str, int], min_np: int, lost: list[tuple[str, int]], best: AfterLoss
) -> None:
    assert after_loss(Assigned(hosts), Sizes(min_np), lost) is best


@pytest.mark.parametrize(
    ("best", "desired", "ends"),
    [
        (AfterLoss.NOTHING, {"a": 1}, False),
        (AfterLoss.PLACE_ANEW, {"a": 1}, False),
        (AfterLoss.HOLD, {"a": 9}, True),
        (AfterLoss.WAIT, {"a": 2, "b": 2}, True),  # b is barred, two would be left
        (AfterLoss.WAIT, {"a": 2, "b": 2, "c": 1}, False),
        (AfterLoss.WAIT, {}, False),  # another discovery script: nobody knows
    ],
)
def test_the_driver_is_not_asked_where_it_would_end_the_job(
    best: AfterLoss, desired: dict[str, int], ends: bool
) -> None:
    assert would_end_the_job(best, desired, {"b"}, Sizes(3)) is ends


def test_after_the_job_a_slot_asks_when_its_script_has_ended() -> None:
    assert may_ask(JobState.RUNNING, runs=True, done=True, fatal=False)
    assert not may_ask(JobState.RUNNING, runs=True, done=False, fatal=False)
    assert not may_ask(JobState.RUNNING, runs=True, done=True, fatal=True)
    assert not may_ask(JobState.FINISHED, runs=True, done=True, fatal=False)
    assert may_ask(JobState.FINISHED, runs=False, done=False, fatal=True)


def test_a_barred_host_is_not_assigned_when_the_driver_uses_no_more_than_the_others() -> None:
    hosts, lost = {"a": 2, "b": 2}, [("a", 0), ("a", 1)]
    assert without_barred(hosts, lost, 2) == {"b": 2}
    assert without_barred(hosts, lost, 4) == hosts  # nobody has asked the driver yet
    assert without_barred(hosts, lost[:1], 2) == hosts  # a:1 will say it
