"""The line at the foot of the terminal of `edl run`, in terminals of any width."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made import make_job, wanted

from edl.job.snapshot import Snapshot
from edl.records import Generation, Member, RingMember, TrainingStatus
from edl.status import job_line

KNOWN = TrainingStatus(
    step=7, epoch=1, epoch_done=64, epoch_total=128, left=64.0, samples_per_s=0.5
)


def snapshot(status: TrainingStatus = KNOWN, np: int = 3) -> Snapshot:
    ring = tuple(RingMember(n, "a", n, "127.0.0.1", 1) for n in range(2))
    return Snapshot(
        job=make_job(),
        members=tuple(Member(n, "a", n, "127.0.0.1", 1, 1, f"t-{n}") for n in range(2)),
        generation=Generation(5, 3, ring, 1, (), (), ""),
        status=status,
        **wanted({"a": np}),
    )


def line(now: Snapshot | None, width: int | None = None) -> str:
    return "".join(text for text, _ in job_line("digits", now, width))


def test_the_whole_line() -> None:
    assert line(snapshot()) == (
        f"digits  {'━' * 18}{'─' * 6} 75%  128s left  2 of 3 workers  0 samples/s  "
        "epoch 1 64/128  step 7  generation 5"
    )
    assert "  2 workers  " in line(snapshot(np=2))


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (80, f"digits  {'━' * 18}{'─' * 6} 75%  128s left  2 of 3 workers  0 samples/s"),
        (60, f"digits  {'━' * 18}{'─' * 6} 75%  128s left"),
        (40, f"digits  {'━' * 12}{'─' * 4} 75%  128s left"),
        (32, f"digits  {'━' * 6}{'─' * 2} 75%  128s left"),
        (24, "digits  75%  128s left"),
        (16, "digits  75%  12…"),
    ],
)
def test_a_narrow_terminal_gets_what_fits(width: int, shown: str) -> None:
    assert line(snapshot(), width) == shown
    assert len(shown) <= width


def test_what_nobody_knows_is_left_out() -> None:
    of_epoch = replace(KNOWN, left=None)
    assert "─ 50% of epoch 1  2 of 3 workers" in line(snapshot(of_epoch))
    still = replace(KNOWN, samples_per_s=0.0)
    assert " 75%  2 of 3 workers" in line(snapshot(still))
    stream = TrainingStatus(step=7, epoch=2, epoch_done=64, samples_per_s=9.0)
    assert line(snapshot(stream)) == (
        "digits  2 of 3 workers  9 samples/s  epoch 2 64 samples  step 7  generation 5"
    )
    own_place = TrainingStatus(step=7)
    assert line(snapshot(own_place)).endswith("0 samples/s  step 7  generation 5")


def test_when_all_workers_have_died_nobody_knows_the_time_left() -> None:
    dead = line(replace(snapshot(), members=()))
    assert " 75%  0 of 3 workers  0 samples/s  epoch 1 " in dead


def test_before_the_first_ring() -> None:
    assert line(None) == "digits  starting, 0 workers ready"
    assert line(replace(snapshot(), generation=None), 40) == "digits  starting, 0 workers ready"
    assert line(None, 20) == "digits  starting, 0…"
