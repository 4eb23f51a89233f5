"""When a job stands still, and who is named, blamed and given up for it.

The second is in the texts of `scenarios/stall`: what each worker says that it does, in parentheses
for how many seconds (`for`, else 12) and other fields of its report; for how long no step completed
(`quiet`, else 12 s), after which one (`step`, else 40), and the limit that gives workers up.
"""

from __future__ import annotations

import sysconfig
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scenario_texts import check, scenarios

from edl import failpoints
from edl.job import stall
from edl.job.stall import (
    FOR_GRADIENTS,
    IN_USER_CODE,
    SAVING,
    Activity,
    Report,
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


def ring() -> Ring:
    nothing: Any = object()
    return Ring(nothing, nothing)


LIMITS = StallLimits(stall_s=10.0, frozen_s=10.0)
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


DOING = {
    "waits": WAITS,
    "busy": IN_USER_CODE,
    "gradients": FOR_GRADIENTS,
    "collective": stall.FOR_COLLECTIVE,
    "saving": SAVING,
    "returned": stall.RETURNED,
}


def report(worker: str, words: str) -> Report:
    """Return the report of ``busy(for=29)``; it has done that for 12 s if nothing else is said."""
    doing, _, given = words.removesuffix(")").partition("(")
    fields: dict[str, Any] = dict(one.split("=") for one in given.split())
    number, host = int(worker.removeprefix("w")), fields.get("host", "h")
    activity = None
    if doing != "mute":
        where, since_s = fields.get("where", "train.py:33"), float(fields.get("for", 12))
        work, records = fields.get("work", "").replace("_", " "), int(fields.get("records", 7))
        activity = Activity(DOING[doing], where, "applied", since_s, work, records)
    changes = {"silent_s": float(fields.get("silent_s", 0)), "step": int(fields.get("step", 0))}
    one = Report(number, number, host, activity)
    return replace(one, **{name: value for name, value in changes.items() if name in fields})


def judged(facts: dict[str, str]) -> list[str]:
    """Return who is named, blamed and given up, in words."""
    reports = [report(key, value) for key, value in facts.items() if key[1:].isdigit()]
    limits = replace(LIMITS, give_up_s=float(facts["limit"]) if "limit" in facts else None)
    quiet_s, step = float(facts.get("quiet", 12)), int(facts.get("step", 40))
    found = stall.judge_stall(reports, quiet_s, step, limits)
    lines = [found.reason]
    lines += [f"blame {' '.join(f'w{each}' for each in found.culprits)}"] if found.culprits else []
    return lines + [f"evict w{worker}: {reason}" for worker, reason in found.evict.items()]


@pytest.mark.parametrize("lines", scenarios("stall"))
def test_who_is_named_blamed_and_given_up(lines: list[str]) -> None:
    check(lines, judged)


def test_after_a_fit_no_step_is_expected_for_a_while() -> None:
    """The script evaluates or saves, on some workers or on all."""
    after, busy, waits = (
        report("w0", words) for words in ("busy(for=70 work=after_a_fit)", "busy(for=70)", "waits")
    )
    assert stall.are_after_fit([after, waits], 59.0, LIMITS)
    assert not stall.are_after_fit([after, waits], 60.0, LIMITS)
    assert not stall.are_after_fit([busy, waits], 59.0, LIMITS)


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
