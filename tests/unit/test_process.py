"""How a worker's process has ended, and by whose doing: each is logged once, as what it was."""

from dataclasses import replace

import pytest
from made import make_job

from edl.errors import AGAIN_EXIT
from edl.host.process import (
    QUICK_S,
    QUICKLY_KILLED_S,
    UNKNOWN_EXIT,
    Process,
    ScriptEnd,
    exit_status,
    exited,
    how,
    script_ended,
    seen,
)
from edl.job.snapshot import Snapshot
from edl.records import Generation, JobState, Member, RingMember, Stage

NOW = 1000.0
JOB = make_job()
SEATS = tuple(RingMember(worker, "a", worker, "127.0.0.1", 1) for worker in (0, 1))
RING = Generation(1, 1, SEATS, 0, (0, 1), (), "start")
FACTS = Snapshot(JOB, generation=RING)
TRAINS = Process(1, "l1", NOW - 10, worker=1, ready=True, seated=True)
ERROR = replace(TRAINS, exit_code=3, exited=NOW, termination_message="ValueError: boom")
GONE = "its process is gone: port 7 refuses connections"


def test_a_death_of_its_own_is_a_failure_whoever_saw_it_first() -> None:
    """The leader may have proof of it before the process is reaped here."""
    for code in (1, 3, -9, -15, -11):
        one = replace(ERROR, exit_code=code)
        after = seen(one, replace(FACTS, evicted={1: GONE}), NOW)
        before = replace(seen(TRAINS, replace(FACTS, evicted={1: GONE}), NOW), exit_code=code)
        for process in (one, after, before):
            assert (process.failed, process.failures_now) == (True, 1), code
    assert ERROR.ending_text("a") == "w1 on a exited with code 3; its last line: ValueError: boom"


def test_who_is_on_its_way_out_after_an_error_does_not_leave_as_it_should() -> None:
    """The next generation is without it, as if it had been taken out."""
    without = replace(FACTS, generation=replace(RING, number=2, members=SEATS[:1]))
    proven = seen(TRAINS, replace(without, evicted={1: GONE}), NOW)
    only_its_session_has_ended = seen(TRAINS, without, NOW)
    for dying in (proven, only_its_session_has_ended):
        assert dying.departing is None
        assert not replace(dying, exit_code=3, exited=NOW + 1).failed_late(NOW + 60, 2)


def test_who_was_taken_out_departs_whatever_comes_after_that() -> None:
    by_plan = replace(RING, number=2, members=SEATS[:1], previous=SEATS)
    repaired = replace(RING, number=3, members=SEATS[:1])
    taken_out = seen(TRAINS, replace(FACTS, generation=by_plan), NOW)
    assert taken_out.departing == NOW
    assert seen(taken_out, replace(FACTS, generation=repaired), NOW + 5).departing == NOW
    given_up = replace(FACTS, generation=repaired, evicted={1: "it was not ready after 300 s"})
    assert seen(TRAINS, given_up, NOW).departing == NOW


def test_an_end_that_was_asked_for_is_no_failure() -> None:
    ending = replace(TRAINS, ending_since=NOW - 1, why="its host leaves the job", exited=NOW)
    for code in (0, 1, 143, -15, -9):
        assert not replace(ending, exit_code=code).failed
    assert replace(ending, exit_code=-11).failed, "nobody asked for that"
    assert replace(ending, exit_code=-15, ending_since=NOW + 1).failed, "it was dead already"
    assert replace(ending, exit_code=-15).ending_text("a") == (
        "w1 on a was killed by SIGTERM: it was ended by its launcher: its host leaves the job"
    )


def test_to_obey_the_leader_is_no_failure_and_counts_for_the_pause() -> None:
    reason = "it was not ready after 300 s"
    obeys = seen(replace(ERROR, exit_code=1), replace(FACTS, evicted={1: reason}), NOW)
    assert (obeys.failed, obeys.failures_now, obeys.pause_s(30.0)) == (False, 1, 1.0)
    assert obeys.ending_text("a") == (
        f"w1 on a exited with code 1: the leader had given it up: {reason}"
    )
    other = replace(obeys, exit_code=3)
    assert other.failed, "that is another error than the one of a worker that was evicted"


def test_a_newcomer_that_steps_back_is_started_again_at_once() -> None:
    back = replace(TRAINS, exit_code=AGAIN_EXIT, exited=NOW, failures=3)
    assert (back.failed, back.blamed, back.failures_now, back.pause_s(30.0)) == (False, False, 3, 0)
    assert not back.uses_up(0)
    assert back.ending_text("a") == (
        "w1 on a exited with code 75: its replacement joins at the start of an epoch"
    )
    assert replace(back, seated=False).failed, "a script of its own accord"


def test_what_ends_as_it_should() -> None:
    done = replace(TRAINS, exit_code=0, exited=NOW)
    assert (done.failed, done.ending_text("a")) == (False, "w1 on a exited with code 0")
    mute = replace(done, worker=None, seated=False)
    assert (mute.failed, mute.ending_text("a")) == (
        True,
        "slot 1 on a exited with code 0 without calling edl.init()",
    )


def test_failures_in_a_row_use_a_slot_up() -> None:
    tenth = replace(ERROR, failures=9)
    assert (tenth.failures_now, tenth.uses_up(10), tenth.uses_up(9)) == (10, False, True)
    assert not replace(tenth, used_up=True).uses_up(9)
    assert not replace(tenth, exit_code=None).uses_up(9)
    assert replace(tenth, exit_code=0).failures_now == 0


@pytest.mark.parametrize(
    ("code", "quick_s"), [(-9, QUICKLY_KILLED_S), (1, QUICK_S), (-11, QUICK_S)]
)
def test_a_worker_that_had_trained_is_replaced_at_once_and_counts_anew(
    code: int, quick_s: float
) -> None:
    """Not soon after its first step: crash loops, also those of the memory's limit, must end."""
    lives = replace(TRAINS, failures=9)
    trained = exited(lives, code, NOW, "", quick_s)
    assert (trained.failures_now, trained.pause_s(30.0), trained.uses_up(0)) == (0, 0.0, False)
    quick = exited(lives, code, NOW, "", quick_s - 0.1)
    assert (quick.failures_now, quick.pause_s(30.0), quick.uses_up(9)) == (10, 0.0, True)
    before = exited(lives, code, NOW, "", None)
    assert (before.failures_now, before.pause_s(30.0), before.uses_up(9)) == (10, 30.0, True)


@pytest.mark.parametrize(("said", "departing"), [(0, None), (0, NOW - 5), (1, NOW - 5), (3, None)])
def test_who_had_to_be_killed_after_its_script_counts_as_what_that_came_to(
    said: int, departing: float | None
) -> None:
    lingers = replace(
        TRAINS, ended=NOW - 3, ended_code=said, ending_since=NOW - 1, departing=departing
    )
    one = exited(lingers, -9, NOW, "")
    assert (one.exit_code, one.failed) == (said, said != 0)
    assert exited(lingers, 3, NOW, "").exit_code == 3, "it ended by itself"
    killed = replace(lingers, ended=None)
    assert exited(killed, -9, NOW, "").exit_code == -9


@pytest.mark.parametrize(
    ("code", "means"),
    [(137, -9), (134, -6), (139, -11), (143, -15), (130, 130), (128, 128), (3, 3)],
)
def test_a_wrapper_passes_on_by_which_signal_its_command_died(code: int, means: int) -> None:
    """A shell ends with 128 + n. A script that reports its end has chosen its code itself."""
    wrapped = exited(TRAINS, code, NOW, "Killed", QUICKLY_KILLED_S)
    assert wrapped.exit_code == means
    assert wrapped.failures_now == (0 if means in (-9, -15) else 1)
    assert exit_status(means) == code
    reported = script_ended(TRAINS, ScriptEnd(code, handled=False), NOW)
    assert exited(reported, code, NOW, "").exit_code == code
    assert exited(TRAINS, 137, NOW, "Killed").ending_text("a") == (
        "w1 on a was killed by SIGKILL; its last line: Killed"
    )


def test_the_name_of_a_process_says_how_far_its_end_is() -> None:
    assert ScriptEnd.read("python3") is None
    assert ScriptEnd.read("edl-exiting:3") == ScriptEnd(3, handled=False)
    assert ScriptEnd.read("edl-ended:255") == ScriptEnd(255, handled=True)
    assert ScriptEnd.read("edl-stops:0") == ScriptEnd(0, handled=False, stopped=True)
    assert ScriptEnd.read("edl-stopped:255") == ScriptEnd(255, handled=True, stopped=True)
    exiting = script_ended(TRAINS, ScriptEnd(0, handled=False), NOW)
    assert (exiting.ended, exiting.handled) == (NOW, None)
    done = script_ended(exiting, ScriptEnd(0, handled=True), NOW + 4)
    assert (done.ended, done.handled) == (NOW, NOW + 4)
    assert script_ended(done, ScriptEnd(0, handled=True), NOW + 5) == done
    stopped = script_ended(done, ScriptEnd(0, handled=True, stopped=True), NOW + 5)
    assert stopped == replace(done, stopped=True)


def test_who_exits_with_0_out_of_a_ring_that_others_repair_has_failed() -> None:
    """As by os._exit(0): its script did not say that it ended. It is started again with pauses."""
    gone = replace(TRAINS, generation=1, exit_code=0, exited=NOW)
    assert gone.is_undecided(JobState.RUNNING, NOW + 0.5, 1.0)
    assert not gone.is_undecided(JobState.FINISHED, NOW + 0.5, 1.0)
    assert not gone.is_undecided(JobState.RUNNING, NOW + 1.0, 1.0)
    assert not replace(gone, ending_since=NOW).is_undecided(JobState.RUNNING, NOW + 0.5, 1.0)
    repaired = replace(FACTS, generation=Generation(2, 1, SEATS[:1], 0, (), (1,), "it broke"))
    one = seen(gone, repaired, NOW)
    assert one.deserted
    assert not one.failed, "the end of the job does not depend on it"
    assert (one.failures_now, one.pause_s(30.0), one.uses_up(0)) == (1, 1.0, True)
    assert not one.is_undecided(JobState.RUNNING, NOW + 0.5, 1.0)
    assert "exited with code 0 inside the training, by os._exit() or" in one.ending_text("a")


def test_a_newcomer_whose_script_ends_in_its_warm_up_has_failed() -> None:
    """Else the next one would be started at once, and end in the same way."""
    ended = Process(
        1, "l1", NOW - 10, worker=7, exit_code=0, exited=NOW, termination_message="edl: ended"
    )
    one = seen(ended, FACTS, NOW)
    assert (one.deserted, one.failures_now, one.pause_s(30.0)) == (True, 1, 1.0)
    text = "w7 on a exited with code 0 before it had joined the job; its last line: edl: ended"
    assert one.ending_text("a") == text
    over = replace(FACTS, job=replace(JOB, state=JobState.FINISHED))
    for other, facts in (
        (ended, over),
        (ended, replace(FACTS, generation=None)),
        (ended, replace(FACTS, evicted={7: "it is not wanted any more"})),
        (replace(ended, ready=True), FACTS),
        (replace(ended, ending_since=NOW - 1), FACTS),
    ):
        assert not seen(other, facts, NOW).deserted


@pytest.mark.parametrize(
    "how_it_left", ["by a switch", "asked by its launcher", "with an error", "as all others did"]
)
def test_who_has_left_in_order_has_deserted_nobody(how_it_left: str) -> None:
    gone = replace(TRAINS, generation=1, exit_code=0, exited=NOW)
    repair = Generation(2, 1, SEATS[:1], 0, (), (1,), "it broke")
    if how_it_left == "by a switch":
        repair = replace(repair, previous=SEATS)
    elif how_it_left == "asked by its launcher":
        gone = replace(gone, ending_since=NOW - 1)
    elif how_it_left == "with an error":
        gone = replace(gone, exit_code=1)
    else:
        repair = replace(repair, members=())
    assert not seen(gone, replace(FACTS, generation=repair), NOW).deserted


def test_a_process_is_found_by_its_launch() -> None:
    member = Member(7, "a", 1, "127.0.0.1", 1, 1, "l1", Stage.PREPARING)
    found = seen(Process(1, "l1", NOW), replace(FACTS, members=(member,)), NOW)
    assert (found.worker, found.ready, found.name) == (7, False, "w7")


def test_an_adopted_one_that_was_to_end_has_ended_well() -> None:
    gone = replace(TRAINS, exit_code=UNKNOWN_EXIT, exited=NOW)
    finished = replace(FACTS, job=replace(JOB, state=JobState.FINISHED))
    assert seen(gone, finished, NOW).exit_code == 0
    assert seen(gone, FACTS, NOW).failed


def test_exit_codes_in_words_and_for_the_shell() -> None:
    assert (how(3), how(-9), how(-250)) == (
        "exited with code 3",
        "was killed by SIGKILL",
        "was killed by signal 250",
    )
    assert (exit_status(3), exit_status(-9)) == (3, 137)
