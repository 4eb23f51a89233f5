"""What an agent does, decided from values: no process, no clock, no ZooKeeper.

Its decisions are the texts of `scenarios/agent`; tests/launcher_texts.py has their words. Here is
what comes before a decision: what is seen of a process, which deaths count, and who is asked.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from launcher_texts import ZERO_S, decided, given, process
from scenario_texts import check, scenarios

from edl.host.decide import AgentState, decide_agent, with_placement
from edl.host.job_end import failing_slots
from edl.host.process import UNKNOWN_EXIT, backoff_s, exit_status, exited, how, seen
from edl.host.restart import to_ask, waiting_members
from edl.host.supervision import (
    RingDeath,
    members_to_ask,
    noted,
    observe,
    relevant,
    ring_deaths,
    without_zookeeper,
)
from edl.records import Assigned, ProgressSample, TrainingStatus

LIMITS = AgentState.limits


@pytest.mark.parametrize("lines", scenarios("agent"))
def test_decide_agent(lines: list[str]) -> None:
    check(lines, decided)


# --- what is seen


@pytest.mark.parametrize(
    ("told", "code"),
    [
        ("ring 1 w0 w1", UNKNOWN_EXIT),
        ("ring 1 w0; after w0 w1", 0),
        ("ring 1 w0 w1 | job state=finished", 0),
    ],
    ids=["of the ring", "taken out", "finished"],
)
def test_an_adopted_worker_that_was_to_end_has_ended_well(told: str, code: int) -> None:
    now, mine = given(f"{told} | here w1(id=x-1 exit={UNKNOWN_EXIT})")
    (seen,) = observe(mine.processes, now, ZERO_S)
    assert (seen.exit_code, seen.failed) == (code, code != 0)


def test_an_unknown_end_in_words_and_as_a_code() -> None:
    said = "ended (an earlier agent had started it, or others reaped it: how is not known)"
    assert how(UNKNOWN_EXIT) == said
    assert exit_status(UNKNOWN_EXIT) == 1


def test_what_a_shell_says_of_a_kill_is_a_kill() -> None:
    assert exited(process("w0"), 137, ZERO_S, "Killed").exit_code == -9
    assert exited(process("w0"), 1, ZERO_S, "Killed").exit_code == 1


def test_back_off() -> None:
    assert [backoff_s(n) for n in range(8)] == [0, 1, 2, 4, 8, 16, 30, 30]
    assert backoff_s(10_000) == 30
    assert [backoff_s(n, 3.0) for n in range(5)] == [0, 1, 2, 3, 3]


@pytest.mark.parametrize(
    ("fields", "finished_in", "late"),
    [
        ("exit=3 in=2", 2, True),
        ("exit=3 in=2 exited=6 departing=7", 2, True),  # about to finish
        ("exit=3 in=2 exited=6", 2, True),  # with all steps made
        ("exit=3 in=1", 2, False),  # it died while it trained; the agent looked later
        # It was killed as it left, and the others trained on.
        ("exit=3 in=1 exited=60 departing=60", 2, False),
        ("exit=3 in=1 departing=60", 2, True),  # it had left, and failed after the end
        ("exit=3 in=2 -seated", 2, False),  # a newcomer that came too late
        ("exit=0 in=2", 2, False),
        ("exit=3 in=2 ending=1", 2, False),
        # Nobody has trained to the end, so no ring has: only the clock is left.
        ("exit=3 in=2", 0, True),
        ("exit=3 in=2 exited=6", 0, False),
    ],
)
def test_whose_error_counts_although_the_job_has_finished(
    fields: str, finished_in: int, late: bool
) -> None:
    assert process(f"w1({fields})").failed_late(ZERO_S - 5, finished_in) is late


def test_the_newest_ring_that_a_worker_was_in_is_remembered() -> None:
    one = process("w1")
    for ring in ("ring 2 w0 w1", "ring 3 w0"):
        one = seen(one, given(ring)[0], ZERO_S)
    assert one.generation == 2


def test_absence_is_counted_from_its_first_sight() -> None:
    (one,) = given("here s0")[1].processes
    absences = []
    for told, at_s in (("", 0), ("there w7(of=t-0)", 0), ("", 1), ("", 5), ("there w7(of=t-0)", 6)):
        one = seen(one, given(told)[0], ZERO_S + at_s)
        absences.append(one.no_session_since)
    # At first it has not registered yet.
    assert absences == [None, None, ZERO_S + 1, ZERO_S + 1, None]


def test_a_process_is_found_by_its_launch() -> None:
    now, mine = given("there w7(of=t-0) w8(of=t-1 ready) | here s0 s1 s2")
    first, second, third = observe(mine.processes, now, ZERO_S)
    assert (first.worker, first.ready, first.name) == (7, False, "w7")
    assert (second.worker, second.ready, second.seated) == (8, True, False)
    assert (third.worker, third.name) == (None, "slot 2")


def test_a_seat_is_remembered_and_its_loss_is_departing() -> None:
    one = seen(process("s0(worker=0)"), given("ring 1 w0")[0], ZERO_S)
    assert one.seated
    assert one.departing is None
    without, _ = given("ring 2 w1; after w0 w1")
    for at_s in (ZERO_S, ZERO_S + 5):
        one = seen(one, without, at_s)
        assert one.departing == ZERO_S


@pytest.mark.parametrize(
    ("told", "departs"),
    [
        ("ring 2 w1 | there w0(ready)", False),  # a newcomer that waits for another seat
        ("ring 1 w0 | there w0(leaving)", True),
        ("ring 1 w0 | there w0(finished)", True),
    ],
)
def test_a_stage_that_is_departing(told: str, departs: bool) -> None:
    assert seen(process("w0"), given(told)[0], ZERO_S).departing == (ZERO_S if departs else None)


def test_the_proof_that_a_process_is_gone_is_noted_with_its_time() -> None:
    now, _ = given("ring 1 w0 | evicted w1: its process is gone: port 1 refuses connections")
    assert seen(process("w1"), now, ZERO_S).exited_at == ZERO_S


def test_an_exit_after_eviction_is_no_failure() -> None:
    now, _ = given("ring 1 w0 | evicted w1: not wanted")
    assert not seen(process("s1(exit=1 worker=1)"), now, ZERO_S).failed


# --- what is kept


def test_a_slot_fails_until_a_worker_of_it_is_ready() -> None:
    first, third = "s0(exit=1 said=Boom)", "s1(exit=1 said=Boom failures=2)"
    said = "exited with code 1; the last line of slot 1: Boom"
    again = "s1(id=t-9 failures=3 started"

    def failing(*processes: str) -> dict[str, str]:
        return failing_slots(given(f"here {' '.join(processes)}")[1])

    assert failing(first, third) == {"0": "", "1": said}
    assert failing(third, f"{again})") == {"1": said}
    assert failing(third, f"{again} ready)") == {}


def test_only_exits_that_matter_are_kept() -> None:
    dead = "s0(exit=1 id=t-old worker=3 started=50) s1(exit=1 id=t-seated worker=0 started=50)"
    now, mine = given(f"ring 1 w0 | here {dead} s2(exit=1 id=t-last started=50) s0 s1")
    kept = relevant(mine.processes, now)
    assert [p.attempt_id for p in kept] == ["t-seated", "t-last", "t-0", "t-1"]


@pytest.mark.parametrize(("trained_in", "kept"), [(1, True), (2, False)])
def test_a_failure_in_the_ring_of_the_last_step_matters_beside_its_replacement(
    trained_in: int, kept: bool
) -> None:
    """It may turn out that no other step follows: then its error came after the training."""
    reading = ProgressSample(0, trained_in, 2, 0, 200, 800, 1.0)
    now, mine = given(
        "ring 2 w0 | here w1(exit=-9 in=1) s1(id=t-9 started=-0.1)",
        status=TrainingStatus(progress_sample=reading),
    )
    killed, _ = mine.processes
    assert (killed in relevant(mine.processes, now)) is kept
    assert killed.failed_late(ZERO_S + 5, finished_in=1)


DEAD = "here w0(exit=-9) w1(exit=-9)"


def test_a_loss_is_recorded_once_for_a_generation() -> None:
    saved = "job checkpoint=/saved, saved_step=40 | ring"
    now, mine = given(f"{saved} 1 w0 w1 | {DEAD}")
    first = ring_deaths(mine, now, ZERO_S)
    assert first == (RingDeath(1, 40, ZERO_S),)
    known = replace(mine, ring_deaths=first)
    assert ring_deaths(known, now, ZERO_S + 1) is first
    later, _ = given(f"{saved} 2 w0 w1")
    assert ring_deaths(known, later, ZERO_S + 2) == (*first, RingDeath(2, 40, ZERO_S + 2))
    for told in (
        f"{saved} 1 w0 w1 | here w0(exit=-9) w1",
        f"{saved} 1 w0 w1 | here w0(exit=-9) | there w1@b",
        f"{saved} 1 w0 w1 | here w0(exit=-9) | there w1@b | deaths 1@40",
        DEAD,
    ):
        now, mine = given(told)
        assert ring_deaths(mine, now, ZERO_S) == ()


def test_after_zookeeper_was_away_the_others_have_to_come_back_before_their_absence_counts() -> (
    None
):
    _, mine = given("here w0(exit=-9) w1(absent=99) | deaths 1@40 2@40")
    back = without_zookeeper(replace(mine, step=(2, 7)))
    assert back.ring_deaths == (RingDeath(1, 40, ZERO_S),)
    assert [p.no_session_since for p in back.processes] == [None, None]
    assert without_zookeeper(replace(back, step=(2, 7))).ring_deaths == back.ring_deaths


# --- who is asked


@pytest.mark.parametrize(
    ("told", "asked"),
    [
        ("here w0(exit=-9)", [1]),
        ("here w0(exit=-9) | answering w1 | deaths 1@-1", [1]),  # again and again
        ("here w0(exit=-9) | there w1@b", []),
        ("here w0", []),
    ],
)
def test_those_of_other_hosts_are_asked_when_all_here_are_dead(told: str, asked: list[int]) -> None:
    now, mine = given(f"wanted a=1 | ring 1 w0 w1 | {told}")
    assert [ring_member.id for ring_member in members_to_ask(now, mine)] == asked


def test_the_silence_of_who_has_answered_counts_from_then_on() -> None:
    now, mine = given("ring 1 w0 w1 | here w0(exit=-9) | answering w1 | deaths 1@-1")
    assert noted(mine, now, ZERO_S + 99).ring_deaths == ()


def test_who_is_asked_whether_it_waits_for_a_suspended_worker() -> None:
    """Nobody, before one is suspended for long; then not those that are suspended, too."""
    for limits, first, asked in (
        ("", "w0", []),
        ("", "w0(halted=1)", [2, 3]),
        ("| limits suspended_s=0", "w0(halted=1)", []),
    ):
        now, mine = given(f"ring 1 w0 w1 w2 w3 | here {first} w1(halted=0.5) {limits}")
        assert [member.id for member in waiting_members(now, mine, ZERO_S)] == asked


def test_whom_the_agent_asks() -> None:
    here = "w0 w1(absent=10) w2 s3(exit=1 absent=10) s4"
    now, mine = given(f"ring 1 w0 w1 | evicted w2: it is frozen | here {here}")
    assert [p.slot for p in to_ask(mine.processes, now)] == [1, 2]


# --- an agent of a run


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
    now, mine = given("of_run", assigned=after)
    mine = with_placement(mine, HERE, ZERO_S)
    assert not mine.is_elsewhere
    for at_s in (ZERO_S, ZERO_S + 1.0):
        mine = with_placement(mine, after, at_s)
        assert mine.is_elsewhere is is_elsewhere
    busy = replace(mine, processes=(process("w0"),))
    assert decide_agent(now, busy, ZERO_S + stays_s).exit_code is None
    assert decide_agent(now, mine, ZERO_S + stays_s - 0.1).exit_code is None or not stays_s
    assert (decide_agent(now, mine, ZERO_S + stays_s).exit_code == 0) is is_elsewhere
    back = with_placement(mine, HERE, ZERO_S + 9.0)
    assert decide_agent(replace(now, assigned=HERE), back, ZERO_S + 99.0).exit_code is None
    joined = with_placement(with_placement(given("")[1], HERE, ZERO_S), after, ZERO_S)
    assert not joined.is_elsewhere, "an agent of `edl join` stays"


def test_an_agent_that_comes_before_or_after_its_workers_are_placed_stays() -> None:
    now, mine = given("of_run", assigned=NO_DEVICE)
    assert not with_placement(mine, DROPPED, ZERO_S).is_elsewhere
    late = with_placement(mine, NO_DEVICE, ZERO_S)
    assert late.is_elsewhere
    assert decide_agent(now, late, ZERO_S + 99.0).exit_code is None
