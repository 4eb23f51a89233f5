"""One line for each thing that happens to a job, with its cause first."""

from __future__ import annotations

from edl.events import (
    DesiredDetails,
    Details,
    Event,
    EvictedDetails,
    FinishedDetails,
    GenerationDetails,
    LeaderDetails,
    SwitchDetails,
    WorkerExitedDetails,
    WorkerFailedDetails,
)
from edl.host.headlines import HOLD_S, Headlines
from edl.records import SwitchParts


def event(details: Details, reason: str = "", generation: int = 1, step: int = 72) -> Event:
    return Event(0.0, generation, step, reason, details)


def died(worker: str, code: int = -9, host: str = "a", last_line: str = "") -> Event:
    details = WorkerFailedDetails(worker, host, 0, code, last_line)
    reason = f"{worker} on {host} was killed by SIGKILL; its last line: {last_line}"
    return event(details, reason)


def gone(worker: str) -> Event:
    return event(EvictedDetails(worker), f"{worker} was evicted: its process is gone")


def repair(left: tuple[str, ...], members: tuple[str, ...], generation: int = 2) -> Event:
    built = GenerationDetails(2, members, (), left, repair=True)
    return event(built, f"generation 1 broke and {left} went", generation)


def switched(generation: int = 2, **seconds: float) -> Event:
    workers = {name: SwitchParts("old", stall_s=each) for name, each in seconds.items()}
    return event(SwitchDetails(len(workers), workers), "why", generation)


NEW_LEADER = event(LeaderDetails("w1"), "w1 leads in term 2")
W0_DIES = [NEW_LEADER, died("w0"), gone("w0"), repair(("w0",), ("w1", "w2"))]
LINE = "step 72: w0 was killed by SIGKILL; w1 and w2 went on after 0.18 s; a replacement starts"


def test_a_crash_is_one_line_in_whatever_order_its_parts_come() -> None:
    done = switched(w1=0.12, w2=0.18)
    assert Headlines("a").take([*W0_DIES, done], 3, 0.0) == [LINE]
    late = [gone("w0"), repair(("w0",), ("w1", "w2")), died("w0"), done]
    assert Headlines("a").take(late, 3, 0.0) == [LINE]
    some = Headlines("a")
    told = [line for one in [*W0_DIES, done] for line in some.take([one], 3, 0.0)]
    assert told == [LINE]
    # Its agent may notice it after all.
    assert some.take([died("w0")], 3, 1.0) == []


def test_what_is_not_known_in_time_is_left_out() -> None:
    lines = Headlines("a")
    assert lines.take(W0_DIES, 3, 10.0) == []
    assert lines.take([], 3, 10.0 + HOLD_S - 0.1) == []
    told = "step 72: w0 was killed by SIGKILL; w1 and w2 go on; a replacement starts"
    assert lines.take([], 3, 10.0 + HOLD_S) == [told]
    assert lines.take([switched(w1=0.1, w2=0.1)], 3, 20.0) == []


def test_several_deaths() -> None:
    both = [died("w0"), died("w1"), died("w2", 1), repair(("w0", "w1", "w2"), ("w3",))]
    told = Headlines("a").take([*both, switched(w3=0.5)], 3, 0.0)
    causes = "w0 and w1 were killed by SIGKILL, w2 exited with code 1"
    assert told == [f"step 72: {causes}; w3 went on after 0.50 s; 2 replacements start"]
    told = Headlines("a").take([*both, switched(w3=0.5)], 3, 0.0, ["w4"])
    assert told == [
        f"step 72: {causes}; w3 went on after 0.50 s; w4 waits to join; a replacement starts"
    ]
    # A second one dies while the first death is repaired.
    again = [*W0_DIES, died("w2"), repair(("w2",), ("w1",), 3), switched(3, w1=12.0)]
    assert Headlines("a").take(again, 1, 0.0) == [
        "step 72: w0 and w2 were killed by SIGKILL; w1 went on after 12 s"
    ]


def test_nobody_has_seen_the_process_of_an_evicted_worker_end() -> None:
    events = [gone("w0"), repair(("w0",), ("w1",)), switched(w1=0.1)]
    told = Headlines("a").take(events, 2, 0.0)
    cause = "w0 was evicted: its process is gone"
    assert told == [f"step 72: {cause}; w1 went on after 0.10 s; a replacement starts"]


def test_the_last_line_of_a_worker_is_told_where_its_output_is_not_shown() -> None:
    lost = [died("w0", 1, "b", "ValueError: 7"), repair(("w0",), ("w1",)), switched(w1=0.1)]
    (line,) = Headlines("a").take(lost, 1, 0.0)
    assert line.startswith("step 72: w0 on b exited with code 1; its last line: ValueError: 7; w1 ")
    (line,) = Headlines("b").take(lost, 1, 0.0)
    assert line == "step 72: w0 exited with code 1; w1 went on after 0.10 s"


def test_a_join_is_one_line_with_what_it_has_cost() -> None:
    built = GenerationDetails(1, ("w0", "w1"), ("w1",), (), repair=False)
    joined = event(built, "w1 joined: 1 -> 2 workers, 2 wanted", 3)
    lines = Headlines("a")
    assert lines.take([joined], 2, 0.0) == []
    told = "step 72: w1 joined: 1 -> 2 workers, 2 wanted"
    assert lines.take([switched(3, w0=0.07)], 2, 0.1) == [
        f"{told}; the others stood still for 0.07 s"
    ]
    assert lines.take([joined], 2, 1.0) == []
    assert lines.take([], 2, 1.0 + HOLD_S) == [told]
    start = event(GenerationDetails(1, ("w0",), ("w0",), (), repair=False), "the job starts", 1, 0)
    assert lines.take([start], 2, 9.0) == ["step 0: the job starts"]


def test_a_newcomer_that_dies_at_once_was_told_before() -> None:
    built = GenerationDetails(1, ("w0", "w1"), ("w1",), (), repair=False)
    joined = event(built, "w1 joined: 1 -> 2 workers, 2 wanted", 3)
    events = [joined, died("w1", 78), repair(("w1",), ("w0",), 4), switched(4, w0=0.1)]
    assert Headlines("a").take(events, 1, 0.0) == [
        "step 72: w1 joined: 1 -> 2 workers, 2 wanted",
        "step 72: w1 exited with code 78; w0 went on after 0.10 s",
    ]


def test_what_else_happens() -> None:
    lines = Headlines("a")
    desired = DesiredDetails("person", {"a": 1}, {"a": 2})
    assert lines.take([event(desired, "edl scale: 1 -> 2 workers wanted")], 2, 0.0) == [
        "step 72: edl scale: 1 -> 2 workers wanted"
    ]
    ended = event(GenerationDetails(1, (), (), ("w0",), repair=True), "edl stop", 9)
    exited = event(WorkerExitedDetails("w0", "a", 0, 0, ""), "w0 exited")
    assert lines.take([ended, exited, event(FinishedDetails(), "trained 9 steps")], 1, 0.0) == []
    unknown = event(WorkerFailedDetails(None, "a", 2, 1, ""), "slot 2 on a exited with code 1")
    assert lines.take([unknown], 1, 0.0) == ["step 72: slot 2 exited with code 1"]
    assert lines.take([died("w0", 1), died("w1", 1)], 1, 0.0) == []
    assert lines.rest(0) == ["w0 and w1 exited with code 1"]
    assert lines.rest(0) == []
