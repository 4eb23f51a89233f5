"""When a job stands still, and who is named, blamed and given up for it."""

from __future__ import annotations

import sysconfig
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edl import failpoints
from edl.job import stall
from edl.job.stall import (
    AFTER_FIT,
    FOR_GRADIENTS,
    IN_USER_CODE,
    SAVING,
    Activity,
    Report,
    Stall,
    StallLimits,
    stands_still,
)
from edl.records import Generation, RingMember
from edl.ring import gloo
from edl.ring.gloo import gloo_ring
from edl.ring.ring import Ring
from edl.worker.activity import ThreadWatch
from edl.worker.shared_state import SharedState
from edl.worker.switching import Newcomer


def report(worker: int, doing: str | None, since_s: float = 12.0, records: int = 7) -> Report:
    where = (doing or "", "train.py:33", "applied", since_s)
    activity = None if doing is None else Activity(*where, records=records)
    return Report(worker, worker, "h", activity)


def ring() -> Ring:
    nothing: Any = object()
    return Ring(nothing, nothing)


def judge(reports: list[Report], quiet_s: float, step: int, limit_s: float | None) -> Stall:
    return stall.judge_stall(reports, quiet_s, step, replace(LIMITS, give_up_s=limit_s))


LIMITS = StallLimits(stall_s=10.0, frozen_s=10.0)
BUSY = IN_USER_CODE
WAITS = "waiting for the step records of the others"


@pytest.mark.parametrize(
    ("quiet_s", "median_s", "stalled"),
    [
        (9.9, 0.1, False),
        (10.0, 0.1, True),
        (19.0, 1.0, False),
        (20.0, 1.0, True),
        (59.0, 0.0, False),
        (60.0, 0.0, True),
    ],
)
def test_much_longer_than_usual(quiet_s: float, median_s: float, stalled: bool) -> None:
    assert stands_still(quiet_s, median_s, LIMITS) is stalled


def test_who_is_waited_for_is_named() -> None:
    found = judge([report(0, WAITS), report(1, BUSY), report(2, WAITS)], 12.0, 40, None)
    assert found.reason == (
        "stalled in step 41: w1 (rank 1, host h) has been in its own code, train.py:33, for 12 s; "
        "the others wait for it"
    )
    assert (found.culprits, dict(found.evict)) == ((1,), {})


def test_the_limit() -> None:
    reports = [report(0, WAITS), report(1, BUSY, 29.0), report(2, BUSY, 30.0)]
    found = judge(reports, 30.0, 40, 30.0)
    assert found.culprits == (1, 2)
    assert dict(found.evict) == {
        2: "w2 (rank 2, host h) has been in its own code, train.py:33, for 30 s in step 41; the "
        "stall limit is 30 s"
    }


def test_after_a_fit_no_step_is_expected_for_a_while() -> None:
    """The script evaluates or saves, on some workers or on all."""
    after = report(0, BUSY, 70.0)
    assert after.activity is not None
    after = replace(after, activity=replace(after.activity, work=AFTER_FIT))
    assert stall.are_after_fit([after, report(1, WAITS)], 59.0, LIMITS)
    assert not stall.are_after_fit([after, report(1, WAITS)], 60.0, LIMITS)
    assert not stall.are_after_fit([report(0, BUSY), report(1, WAITS)], 59.0, LIMITS)
    found = judge([after, report(1, WAITS)], 70.0, 40, 30.0)
    assert found.reason == (
        "stalled in step 41: w0 (rank 0, host h) has been in its own code (after a fit), "
        "train.py:33, for 70 s; the others wait for it"
    )
    assert not found.evict
    after = replace(after, activity=replace(after.activity, since_s=601.0))
    assert list(judge([after, report(1, WAITS)], 601.0, 40, 30.0).evict) == [0]


def test_who_writes_the_last_checkpoint_has_a_limit_of_its_own() -> None:
    found = judge([report(0, SAVING, 31.0), report(1, WAITS)], 31.0, 40, 30.0)
    assert found.reason == (
        "stalled in step 41: w0 (rank 0, host h) has been writing the last checkpoint for 31 s"
    )
    assert (found.culprits, dict(found.evict)) == ((0,), {})


@pytest.mark.parametrize("doing", [WAITS, stall.RETURNED])
def test_who_left_in_the_midst_of_a_step_is_given_up(doing: str) -> None:
    """It waits for the next step's records, and the others for its gradients of this one."""
    left = report(1, doing, records=8)
    found = judge([report(0, FOR_GRADIENTS), left, report(2, FOR_GRADIENTS)], 12.0, 40, None)
    assert found.reason.startswith(
        "stalled in step 41: w1 (rank 1, host h) left a loop in the midst of step 41"
    )
    assert found.culprits == (1,)
    assert list(found.evict) == [1]
    assert found.reason.endswith(found.evict[1])


def test_a_worker_whose_records_are_lost_on_their_way_is_not_evicted() -> None:
    """It has sent its gradients, and waits for the records of the same step."""
    found = judge([report(0, FOR_GRADIENTS), report(1, WAITS), report(2, WAITS)], 12.0, 40, None)
    assert "everybody waits" in found.reason
    assert not found.evict


def test_who_is_a_step_ahead_has_left_nothing() -> None:
    ahead = replace(report(1, WAITS, records=8), step=41)
    found = judge([replace(report(0, FOR_GRADIENTS), step=40), ahead], 12.0, 40, None)
    assert "everybody waits" in found.reason
    assert not found.evict


def test_a_busy_worker_may_still_come() -> None:
    found = judge([report(0, FOR_GRADIENTS), report(1, WAITS), report(2, BUSY)], 12.0, 40, None)
    assert found.culprits == (2,)
    assert not found.evict


def test_when_all_are_busy_nobody_is_to_blame() -> None:
    found = judge([report(0, BUSY, 99.0), report(1, BUSY, 99.0)], 99.0, 40, 30.0)
    assert found.reason.startswith("stalled in step 41: w0 (rank 0, host h) has been in its own ")
    assert found.reason.endswith("; nobody waits for another one")
    assert (found.culprits, dict(found.evict)) == ((), {})


def test_when_all_wait_it_may_be_the_network() -> None:
    elsewhere = replace(report(1, WAITS), host="g")
    found = judge([report(0, WAITS), elsewhere], 12.0, 40, 1.0)
    said = (
        "stalled in step 41: no step for 12 s and everybody waits: "
        f"w0 (rank 0, host h) has been {WAITS} (train.py:33) for 12 s, "
        f"w1 (rank 1, host g) has been {WAITS} (train.py:33) for 12 s"
    )
    assert found.reason == f"{said}; check the network between the hosts"
    assert (found.culprits, dict(found.evict)) == ((), {})
    alone = judge([report(0, WAITS), report(1, WAITS)], 12.0, 40, 1.0)
    assert alone.reason == said.replace("host g", "host h"), "there is no network between hosts"


def test_workers_that_wait_in_different_lines_are_told_so() -> None:
    there = report(1, stall.FOR_COLLECTIVE)
    assert there.activity is not None
    there = replace(there, activity=replace(there.activity, where="train.py:40"))
    found = judge([report(0, WAITS), there], 12.0, 40, 1.0)
    assert "in a collective of the script (train.py:40)" in found.reason
    assert found.reason.endswith("different lines, and all workers must make the same calls")


def test_who_has_returned_is_named_as_that() -> None:
    over = replace(report(2, stall.RETURNED), step=600)
    found = judge([report(0, FOR_GRADIENTS), report(1, FOR_GRADIENTS), over], 12.0, 600, 1.0)
    assert "w2 (rank 2, host h) has returned from training after step 600, and w0" in found.reason
    assert "network" not in found.reason
    assert (found.culprits, dict(found.evict)) == ((2,), {})


def test_who_does_not_answer_for_long_is_given_up_though_its_session_lives() -> None:
    def with_silent(silent_s: float, workers: int = 2, silent: int = 1) -> Stall:
        mute = [
            replace(report(n, None), silent_s=silent_s) for n in range(workers - silent, workers)
        ]
        return judge([report(n, BUSY) for n in range(workers - silent)] + mute, 42.0, 40, 1.0)

    longest_s = LIMITS.in_zookeeper * LIMITS.frozen_s
    early, late = with_silent(longest_s - 0.1), with_silent(longest_s)
    for found in (early, late):
        assert found.reason == "stalled in step 41: w1 (rank 1, host h) does not answer"
        assert found.culprits == (1,)
    assert dict(early.evict) == {}
    assert dict(late.evict) == {
        1: "it is frozen: w1 (rank 1, host h) does not answer for 30 s and no step completes for "
        "42 s, though it is in ZooKeeper"
    }
    assert dict(with_silent(99.0, workers=4, silent=2).evict).keys() == {2, 3}
    assert not with_silent(99.0, workers=3, silent=2).evict, "the leader may hear nobody"


def test_many_are_counted() -> None:
    found = judge([report(n, BUSY) for n in range(9)] + [report(9, WAITS)], 12.0, 0, None)
    assert found.reason.endswith(" and 6 more; the others wait for them")


def test_what_takes_long_is_named() -> None:
    compiling = report(0, BUSY, 53.0)
    assert compiling.activity is not None
    for where, told in (("train.py:33", "(torch.compile), train.py:33,"), ("", "(torch.compile)")):
        one = replace(
            compiling, activity=replace(compiling.activity, work="torch.compile", where=where)
        )
        found = judge([one, report(1, WAITS)], 53.0, 40, None)
        assert found.reason == (
            f"stalled in step 41: w0 (rank 0, host h) has been in its own code {told} for 53 s; "
            "the others wait for it"
        )
    alone = judge([compiling], 53.0, 40, None)
    assert alone.reason.endswith("has been in its own code, train.py:33, for 53 s")


def seen(
    function: Callable[[threading.Event], object], arrived: Callable[[Activity], bool]
) -> Activity:
    """Return what is seen of a thread in ``function``, which returns when the event is set."""
    watch, begun, end = ThreadWatch(ring()), threading.Event(), threading.Event()

    def run() -> None:
        watch.start()
        failpoints.reached("applied")
        begun.set()
        function(end)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert begun.wait(10)
        failpoints.reached("decided")  # of another thread
        while not arrived(found := watch.look()):
            assert thread.is_alive()
        return found
    finally:
        end.set()
        thread.join(10)


def wait_in_user_code(end: threading.Event) -> None:
    end.wait(10)


def test_the_innermost_line_of_the_user() -> None:
    line = wait_in_user_code.__code__.co_firstlineno + 1
    place = f"{Path(__file__).name}:{line}"
    found = seen(wait_in_user_code, lambda now: now.where.endswith(place))
    assert (found.doing, found.point, found.waits) == (IN_USER_CODE, "applied", False)


@pytest.mark.parametrize(
    ("file", "work"),
    [
        ("/tmp/torchinductor_me/xy/cggmwe3p.py", ""),
        ("/tmp/__autograph_generated_filex7.py", ""),
        (f"{sysconfig.get_path('purelib')}/torch/_dynamo/convert_frame.py", "torch.compile"),
        (f"{sysconfig.get_path('purelib')}/torch/utils/data/dataloader.py", "loading a batch"),
    ],
)
def test_what_the_user_has_not_written_is_named_by_what_it_does(file: str, work: str) -> None:
    names: dict[str, Any] = {}
    exec(compile("def run(end):\n end.wait(10)", file, "exec"), names)

    def call_a_library(end: threading.Event) -> None:
        names["run"](end)

    line = call_a_library.__code__.co_firstlineno + 1
    found = seen(call_a_library, lambda now: bool(now.where))
    assert (found.doing, found.work) == (IN_USER_CODE, work)
    assert found.where.endswith(f"{Path(__file__).name}:{line}")


def test_a_wait_of_edl() -> None:
    shared = SharedState()

    def wait(end: threading.Event) -> None:
        shared.wait_for_generation(0, slice_s=1.0)

    found = seen(wait, lambda now: now.waits)
    assert found.doing == "waiting for the leader's next generation"


def test_a_newcomer_that_is_a_member_waits_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks whether they switch now, again and again: it does not hold them up."""
    members = tuple(RingMember(n, "h", n, "127.0.0.1", 1) for n in range(2))
    shared = SharedState(1)
    shared.announce(Generation(2, 1, members, 0, (1,), (), "w1 joins", previous=members[:1]))
    nothing: Any = None  # of what is not asked
    newcomer = Newcomer(shared, gloo_ring(nothing, "127.0.0.1"), nothing, nothing, nothing)

    def wait(end: threading.Event) -> None:
        def no_answer_yet(*_: object, **__: object) -> tuple[int, bytes]:
            end.wait(10)
            return 200, b"go"

        monkeypatch.setattr(gloo.client, "fetch", no_answer_yet)
        newcomer.wait_for_membership(1, fits=0)

    found = seen(wait, lambda now: now.waits)
    assert found.doing == "waiting for the others to switch"


def test_a_library_that_is_being_imported_does_not_do_its_work() -> None:
    names: dict[str, Any] = {}
    library = f"{sysconfig.get_path('purelib')}/torch/_dynamo/polyfills.py"
    exec(compile("def run(end):\n end.wait(10)", library, "exec"), names)
    exec(compile("def load(end):\n run(end)", "<frozen importlib._bootstrap>", "exec"), names)

    def import_it(end: threading.Event) -> None:
        names["load"](end)

    assert seen(import_it, lambda now: bool(now.where)).work == "importing modules"
