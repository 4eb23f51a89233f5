"""Whether all workers hold the same state: when it is due, who differs, in what first."""

from __future__ import annotations

import itertools
import json
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from edl.core.events import Details, StateDiffersDetails
from edl.core.job_spec import JobSettings
from edl.core.step.source import Source
from edl.core.step.state_check import due, first_difference, fold, reason, split, split_of
from edl.core.step.step_record import StepRecord, StepRecords, Stop
from edl.daemon.loader_progress import LoaderProgress
from edl.daemon.state_check import StateCheck
from edl.daemon.switching import Switching
from edl.errors import RingBroken, StateDiffers
from edl.framework.digest import leaves, of_value
from edl.torch.digest import digests, weighted_sum
from edl.torch.replica import TorchReplica


@pytest.mark.parametrize(
    ("step", "begins_epoch", "every", "expected"),
    [
        (0, True, 100, False),  # all have just been given it
        (100, False, 100, True),
        (101, False, 100, False),
        (101, True, 100, True),
        (7, False, 1, True),
        (100, True, 0, False),
    ],
)
def test_when_it_is_due(step: int, begins_epoch: bool, every: int, expected: bool) -> None:
    assert due(step, begins_epoch, every) is expected


def test_a_state_is_one_number_whatever_the_order() -> None:
    one = fold({"a": 1, "b": 2})
    assert one == fold({"b": 2, "a": 1})
    assert len({one, fold({"a": 2, "b": 1}), fold({"a": 1}), fold({})}) == 4
    assert 0 < one < 2**63


@pytest.mark.parametrize(
    ("states", "odd"),
    [
        ([7, 7, 7], None),
        ([7, 0, 7], None),
        ([0, 0, 0], None),
        ([7], None),
        ([7, 8, 7], (1,)),
        ([8, 7, 7, 9, 7], (0, 3)),
        ([7, 8], ()),  # nobody knows who is right
        ([7, 8, 0], ()),
        ([7, 7, 8, 8], ()),
        ([7, 8, 9], ()),
    ],
)
def test_who_differs(states: list[int], odd: tuple[int, ...] | None) -> None:
    found = split(enumerate(states))
    assert (None if found is None else found.odd) == odd
    row = StepRecord(1, 7, 0, 0, 1, 0, 0, 1, 0)
    rows = [StepRecord(**{**vars(row), "worker": w, "state": s}) for w, s in enumerate(states)]
    assert split_of(StepRecords.of(rows)) == found


def test_the_first_part_that_differs() -> None:
    mine = {"b": 1, "a": 2, "c": 3}
    assert first_difference({0: mine, 1: {**mine, "a": 9, "c": 9}}) == "a"
    assert first_difference({0: mine, 1: {"b": 1, "a": 2}}) == "c"
    assert first_difference({0: mine, 1: {**mine, "d": 4}}) == "d"


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ([7, 8, 7], "the state of w1 differs from that of w0, w2 after step 300, first in a. W"),
        ([7, 8], "the states of w0 and w1 differ after step 300, first in a. What all share may"),
        ([7, 8, 8, 7], "the states of w0, w3 and w1, w2 differ after step 300, first in a. What"),
    ],
)
def test_the_reason_names_workers_step_and_part(states: list[int], expected: str) -> None:
    found = split(enumerate(states))
    assert found is not None
    why = reason(found, 300, {w: {"a": s} for w, s in enumerate(states)})
    assert why.startswith(expected)
    assert why.endswith("EDL_STATE_CHECK_STEPS=0 turns this check off")


# --- digests ---


def of(tensor: Any) -> int:
    return digests([("x", tensor)])["x"]


TENSORS = [
    torch.arange(6.0),
    torch.arange(6.0).reshape(2, 3),
    torch.arange(6.0).reshape(3, 2),
    torch.arange(6.0).reshape(2, 3).t().contiguous(),
    -torch.arange(6.0),
    torch.arange(6.0, dtype=torch.float64),
    -torch.arange(6.0, dtype=torch.float64),
    torch.arange(6.0, dtype=torch.bfloat16),
    torch.arange(6.0, dtype=torch.float16),
    torch.arange(6.0).to(torch.complex64),
    torch.arange(6.0).to(torch.complex64) * 1j,
    torch.arange(6),
    torch.arange(6, dtype=torch.uint8),
    torch.arange(6) > 2,
    torch.arange(6) > 3,
    torch.tensor(0.0),
    torch.tensor(-0.0),
    torch.tensor(1.0),
    torch.tensor(True),
    torch.empty(0),
    torch.empty(0, 3),
    torch.empty(0, dtype=torch.int64),
    torch.full((6,), float("nan")),
]


def test_different_tensors_have_different_digests() -> None:
    for one, other in itertools.combinations(TENSORS, 2):
        assert of(one) != of(other), (one, other)


@pytest.mark.parametrize("tensor", TENSORS, ids=str)
def test_equal_ones_have_the_same(tensor: torch.Tensor) -> None:
    """Wherever they lie in memory, and whether they require a gradient."""
    assert of(tensor) == of(tensor.clone())
    if tensor.dim() == 1 and len(tensor):
        spread = torch.zeros(6, 2, dtype=tensor.dtype)
        spread[:, 1] = tensor
        assert of(spread[:, 1]) == of(tensor)
        shifted = torch.cat([tensor[:1], tensor])[1:]
        assert of(shifted) == of(tensor)
    if tensor.is_complex():
        assert of(tensor.conj()) == of(tensor.conj().resolve_conj())
    elif tensor.is_floating_point():
        assert of(tensor.clone().requires_grad_()) == of(tensor)


def test_what_cannot_be_compared_is_left_out() -> None:
    parts = {"sparse": torch.eye(2).to_sparse(), "object": object(), "none": None, "rate": 0.1}
    assert digests(parts.items()).keys() == {"none", "rate"}
    assert of_value(np.array([object()])) is None


@pytest.mark.parametrize("size", [0, 1, 3, 4, 7, 4096])
def test_the_sum_that_a_device_makes(size: int) -> None:
    """No bit changes without it, nor the order of words."""
    data = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.manual_seed(7))
    before = int(weighted_sum(data))
    assert int(weighted_sum(data.clone())) == before
    for index, bit in itertools.product(range(0, size, max(1, size // 8)), range(8)):
        changed = data.clone()
        changed[index] ^= 1 << bit
        assert int(weighted_sum(changed)) != before
    if size > 8:
        words = data.view(torch.int32)
        assert int(weighted_sum(words.flip(0).view(torch.uint8))) != before
        negated = (words ^ -(2**31)).view(torch.uint8)
        assert int(weighted_sum(negated)) != before


def test_names_say_where_a_part_is() -> None:
    state = {"model": {"0.weight": 1}, "optimizer": {"param_groups": [{"lr": 0.1}]}, "none": {}}
    assert dict(leaves(state)) == {"model.0.weight": 1, "optimizer.param_groups.0.lr": 0.1}


def trained(**tracked: Any) -> tuple[torch.nn.Module, TorchReplica]:
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model(torch.ones(4, 2)).sum().backward()
    optimizer.step()
    replica = TorchReplica(model, optimizer)
    replica.track(tracked)
    return model, replica


def test_a_replica_compares_what_all_share_and_no_buffers() -> None:
    model, one = trained()
    _, other = trained()
    assert one.digests() == other.digests()
    assert {"model.0.weight", "optimizer.0.weight.exp_avg", "optimizer.param_groups.0.lr"} <= (
        one.digests().keys()
    )
    model(torch.randn(4, 2))  # moves the statistics of BatchNorm
    assert one.digests() == other.digests()
    with torch.no_grad():
        model[1].bias[1] = torch.nextafter(model[1].bias[1], torch.tensor(9.0))
    assert first_difference({0: one.digests(), 1: other.digests()}) == "model.1.bias"


def test_what_is_tracked_is_compared() -> None:
    first, second = torch.nn.BatchNorm1d(2), torch.nn.BatchNorm1d(2)
    first(torch.randn(4, 2))
    _, one = trained(average=first)
    _, other = trained(average=second)
    assert one.digests() == other.digests()
    torch.nn.init.zeros_(second.weight)
    assert first_difference({0: one.digests(), 1: other.digests()}) == "tracked.average.weight"


# --- one worker's part ---


class Fixed:
    """A replica, and how often it was asked."""

    def __init__(self, **parts: int) -> None:
        self.parts, self.asked = parts, 0

    def digests(self) -> dict[str, int]:
        self.asked += 1
        return self.parts


class Job:
    """A ring of three in which the others have what w0 has, or say what they have."""

    alone = False

    def __init__(self, every: int = 2, **others: int) -> None:
        self.progress = LoaderProgress()
        self.progress.attach(Source(100, 4, False, 0, 0), 0)
        self.progress.adopt((0, 1, 2))
        self.replica = Fixed(a=1, b=2)
        self.others = others or self.replica.parts
        self.logged: list[tuple[Details, str]] = []
        self.settings = JobSettings(state_check_steps=every)
        self.check = StateCheck(self, self.progress, self, self.log_event)  # type: ignore[arg-type]
        self.check.replica = self.replica

    def broadcast(self, mine: bytes, rank: int, _name: str) -> bytes:
        return mine if rank == 0 else json.dumps(self.others).encode()

    def log_event(self, details: Details, why: str) -> None:
        self.logged.append((details, why))

    def fail(self, why: str, error: type[Exception]) -> None:
        raise error(why)

    def row(self, worker: int, state: int) -> StepRecord:
        return StepRecord(1, self.progress.step, worker, 0, 4, 0, 0, 1, 0, state=state)

    def rows(self, *states: int) -> StepRecords:
        return StepRecords.of([self.row(worker, state) for worker, state in enumerate(states)])


def test_the_digest_of_a_step_is_made_once_and_only_when_it_is_due() -> None:
    job = Job(every=2)
    job.progress._ledger = replace(job.progress.ledger, free=())  # in the midst of an epoch
    for step in range(5):
        job.progress.step = step
        job.check.begin_step()
        assert (job.check.state != 0) is (step in (2, 4))
    assert job.replica.asked == 2
    job.alone = True
    job.check.begin_step()
    assert job.check.state == 0


@pytest.mark.parametrize("every", [0, 2])
def test_rows_that_agree_or_say_nothing_are_fine(every: int) -> None:
    job = Job(every)
    job.progress.step = 2
    job.check.begin_step()
    state = job.check.state
    assert (state == 0) is (every == 0)
    job.check.compare(job.rows(state, state, 0))


def test_all_end_with_the_worker_and_the_part() -> None:
    job = Job(a=1, b=3)
    job.progress.step = 2
    job.check.begin_step()
    rows = job.rows(job.check.state, fold(job.others), fold(job.others))
    with pytest.raises(StateDiffers, match="the state of w0 differs from that of w1, w2 after"):
        job.check.compare(rows)
    [(details, why)] = job.logged
    assert details == StateDiffersDetails(("w0",))
    assert "after step 2, first in b." in why


def test_the_last_state_is_always_compared() -> None:
    job = Job(every=1000)
    job.progress.step = 7
    state = job.check.now()
    assert state == fold(job.replica.parts)
    with pytest.raises(StateDiffers):
        job.check.compare(job.rows(state, state + 1, state))
    assert Job(every=0).check.now() == 0


def test_the_last_states_are_compared_again_when_somebody_goes_meanwhile() -> None:
    """w2 dies as they exchange in what they differ: w0 and w1 do so in the next ring."""
    job = Job(a=1, b=3)
    broken = iter([True, False])

    def broadcast(mine: bytes, rank: int, name: str) -> bytes:
        if rank == 0 and next(broken):
            raise RingBroken(1, "w2 is gone")
        return Job.broadcast(job, mine, rank, name)

    def finish_record(mine: StepRecord) -> StepRecords:
        others = [job.row(w, fold(job.others)) for w in job.progress.members[1:]]
        return StepRecords.of([mine, *(replace(row, stop=Stop.FINISHED) for row in others)])

    def repair(_error: Exception, _since: float) -> None:
        job.progress.adopt((0, 1))

    ring: Any = job
    ring.broadcast, ring.start_record, ring.finish_record = (
        broadcast,
        lambda row: row,
        finish_record,
    )
    switching: Any = Switching.__new__(Switching)
    switching._ring, switching.repair, switching._now_s = ring, repair, time.monotonic
    with pytest.raises(StateDiffers, match="the states of w0 and w1 differ"):
        switching.finish_together(
            lambda: replace(job.row(0, job.check.now()), stop=Stop.FINISHED), job.check.compare
        )
