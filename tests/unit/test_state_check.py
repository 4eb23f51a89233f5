"""Whether all workers hold the same state: when it is due, who differs, in what first."""

from __future__ import annotations

import itertools
import json
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edl.binding.replica import ByteRange, StateArrays, of_value, places
from edl.errors import NewcomerDiffers, RingBroken, StateDiffers
from edl.events import Details, StateDiffersDetails
from edl.spec import JobSettings
from edl.step.batching import Batching
from edl.step.record import StepRecord, StepRecords, Stop
from edl.step.source import Source
from edl.step.state_check import (
    ALIGN_BYTES,
    PARTS_OF_SCRIPT,
    STEP_VALUE,
    TRIAL_STEPS,
    WHOLE,
    StateGroup,
    StateReport,
    coarser,
    due,
    due_at_save,
    extents,
    first_difference,
    fold,
    newcomers_that_leave,
    on_trial,
    reason,
    resynced,
    split_by_digest,
    split_of,
    undecided,
    why_they_leave,
)
from edl.torch.replica import TorchReplica, digests, weighted_word_sum
from edl.worker.progress import LoaderProgress, Receive
from edl.worker.state_check import StateCheck
from edl.worker.switching import Switching


@pytest.mark.parametrize(
    ("step", "begins_epoch", "every", "expected"),
    [
        (0, True, 100, None),  # all have just been given it
        (100, False, 100, StateGroup(0, 100)),
        (199, False, 100, StateGroup(99, 100)),
        (101, True, 100, WHOLE),
        (7, False, 1, WHOLE),
        (100, True, 0, None),
    ],
)
def test_what_is_due(
    step: int, begins_epoch: bool, every: int, expected: StateGroup | None
) -> None:
    assert due(step, begins_epoch, every) == expected


SIZES = st.lists(st.integers(1, 40) | st.integers(1, 20_000), max_size=30)


@given(sizes=SIZES, count=st.integers(1, 60), first=st.integers(1, 10**6))
def test_every_byte_has_its_turn_in_so_many_steps_on_end(
    sizes: list[int], count: int, first: int
) -> None:
    ends = [*itertools.accumulate(sizes)]
    groups = [due(step, False, count) for step in range(first, first + count)]
    found = [extent for group in groups if group for extent in extents(ends, group)]
    for part, size in enumerate(sizes):
        own = sorted((e.start, e.stop) for e in found if e.part == part)
        assert [0, *(stop for _, stop in own)] == [*(start for start, _ in own), size]
        assert all(start % ALIGN_BYTES == 0 for start, _ in own)


@given(every=st.integers(1, 200), most=st.integers(1, 20), first=st.integers(1, 10**6))
def test_larger_groups_have_their_turns_in_as_many_steps(every: int, most: int, first: int) -> None:
    groups = [due(step, False, every) for step in range(first, first + every)]
    turns = [turn for group in groups if group and (turn := coarser(group, most))]
    count = min(every, most)
    assert sorted(turn.index for turn in turns) == [*range(count)]
    assert {turn.count for turn in turns} == {count}
    assert coarser(WHOLE, most) == WHOLE
    assert coarser(StateGroup(3, every), None) == StateGroup(3, every)


@given(sizes=SIZES, count=st.integers(1, 60))
def test_each_step_compares_as_many_bytes(sizes: list[int], count: int) -> None:
    """But for numbers that are not divided, and the places where a part may be cut."""
    ends = [*itertools.accumulate(sizes)]
    for index in range(count):
        taken = sum(e.stop - e.start for e in extents(ends, StateGroup(index, count)))
        assert abs(taken - sum(sizes) / count) <= 2 * ALIGN_BYTES


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
    found = split_by_digest(enumerate(states))
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
    found = split_by_digest(enumerate(states))
    assert found is not None
    why = reason(found, 300, {w: {"a": s} for w, s in enumerate(states)})
    assert why.startswith(expected)
    assert why.endswith("EDL_STATE_CHECK_STEPS=0 turns this check off")


def test_the_reason_says_who_is_healed_by_whom() -> None:
    states = [8, 7, 9, 7, 7]
    found = split_by_digest(enumerate(states))
    assert found is not None
    why = resynced(found, 300, {w: {"a": s} for w, s in enumerate(states)})
    assert "of w0, w2 differs from that of w1, w3, w4 after step 300, first in a; w0, w2 get" in why
    assert "get the state of w1. What all share may" in why


def test_the_reason_says_that_nobody_is_healed() -> None:
    found = split_by_digest(enumerate([7, 8]))
    assert found is not None
    why = undecided(found, 300, {0: {"a": 7}, 1: {"a": 8}})
    assert why.startswith("the states of w0 and w1 differ after step 300, first in a; no majority")


def test_a_learning_rate_that_differs_is_named_before_what_it_has_changed() -> None:
    found = split_by_digest(enumerate([7, 8, 7]))
    assert found is not None
    rates = {w: {"learning rate": rate} for w, rate in enumerate([0.1, 0.05, 0.1])}
    why = reason(found, 300, {w: {"a": s} for w, s in enumerate([7, 8, 7])}, rates)
    expected = "after step 300: the learning rate is 0.1 on w0, w2 and 0.05 on w1. What all share"
    assert expected in why


def test_the_value_that_a_scheduler_decided_by_is_named_beside_its_rate() -> None:
    found = split_by_digest(enumerate([7, 8]))
    assert found is not None
    rates = {w: {"learning rate": 0.1 / (w + 1), STEP_VALUE: 0.25 + w / 8} for w in (0, 1)}
    why = reason(found, 300, {0: {"a": 7}, 1: {"a": 8}}, rates)
    assert "0.1 on w0 and 0.05 on w1; the value that scheduler.step() got is 0.25 on w0" in why
    assert why.endswith("call scheduler.step(edl.mean(value)) on all workers")
    rates[1]["learning rate"] = 0.1  # another value may follow from another model
    assert STEP_VALUE not in reason(found, 300, {0: {"a": 7}, 1: {"a": 8}}, rates)
    said = {w: StateReport({"a": w}, rates[w], 80 if w else None) for w in (0, 1)}
    assert STEP_VALUE not in why_they_leave((1,), 81, said)


# --- newcomers ---


def test_the_whole_state_is_due_after_the_first_step_of_newcomers() -> None:
    assert due(81, False, 100, joined_after=80) == WHOLE
    assert due(80, False, 100, joined_after=80) == StateGroup(80, 100)
    assert due(82, False, 100, joined_after=80) == StateGroup(82, 100)
    assert due(81, False, 0, joined_after=80) is None


@pytest.mark.parametrize(
    ("step", "every", "is_first", "expected"),
    [
        (1, 500, True, WHOLE),
        (7, 500, False, StateGroup(7, PARTS_OF_SCRIPT)),
        (7, 5, False, StateGroup(2, 5)),
        (7, 0, True, None),
    ],
)
def test_what_is_due_when_a_script_saves(
    step: int, every: int, is_first: bool, expected: StateGroup | None
) -> None:
    assert due_at_save(step, every, is_first) == expected


@pytest.mark.parametrize(
    ("states", "joined", "leaving"),
    [
        ([7, 8], {1: 80}, (1,)),  # of two there is no majority, but one was there before
        ([7, 7, 8], {2: 80}, (2,)),
        ([7, 8, 7, 9], {1: 80, 2: 80, 3: 81}, (1, 3)),
        ([7, 8, 8, 8], {1: 80, 2: 80, 3: 80}, (1, 2, 3)),  # most of them, and still new
        ([7, 8, 7], {2: 80}, ()),  # it is an old one
        ([7, 8, 9], {2: 80}, ()),  # the old ones differ from each other
        ([7, 8], {0: 80, 1: 80}, ()),  # nobody was there before
        ([7, 8], {}, ()),
    ],
)
def test_who_leaves(states: list[int], joined: dict[int, int], leaving: tuple[int, ...]) -> None:
    found = split_by_digest(enumerate(states))
    assert found is not None
    said = {w: StateReport({"a": s}, {}, joined.get(w)) for w, s in enumerate(states)}
    assert newcomers_that_leave(found, said) == leaving


def test_a_worker_counts_as_a_newcomer_for_so_many_steps() -> None:
    assert on_trial(None, 80) is None
    assert on_trial(80, 80 + TRIAL_STEPS) == 80
    assert on_trial(80, 81 + TRIAL_STEPS) is None


def test_the_sentence_names_the_newcomer_the_rate_and_what_to_do() -> None:
    said = {0: StateReport({"a": 1, "b": 2}, {"learning rate": 0.0071})}
    said |= {2: StateReport({"a": 1, "b": 3}, {"learning rate": 0.0083}, 80)}
    why = why_they_leave((2,), 81, said)
    assert why.startswith(
        "w2 joined after step 80, and after step 81 its state differs from that of w0: the "
        "learning rate is 0.0083 on w2 and 0.0071 on w0. No state carries what a script computes"
    )
    assert "edl.step()" in why
    assert why.endswith("w2 ends, and the others train on")
    said[2] = replace(said[2], rates=said[0].rates)
    assert "differs from that of w0: first in b. No state" in why_they_leave((2,), 81, said)


# --- digests ---


def of(tensor: Any) -> int:
    return digests([part_of(tensor)])["x"]


def part_of(value: Any, name: str = "x") -> ByteRange:
    return ByteRange(name, value, 0, 2**40, True)


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
    listed = [part_of(value, name) for name, value in parts.items()]
    assert digests(listed).keys() == {"none", "rate"}
    assert of_value(np.array([object()])) is None


@pytest.mark.parametrize("size", [0, 1, 3, 4, 7, 4096])
def test_the_sum_that_a_device_makes(size: int) -> None:
    """No bit changes without it, nor the order of words."""
    data = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.manual_seed(7))
    before = int(weighted_word_sum(data))
    assert int(weighted_word_sum(data.clone())) == before
    for index, bit in itertools.product(range(0, size, max(1, size // 8)), range(8)):
        changed = data.clone()
        changed[index] ^= 1 << bit
        assert int(weighted_word_sum(changed)) != before
    if size > 8:
        words = data.view(torch.int32)
        assert int(weighted_word_sum(words.flip(0).view(torch.uint8))) != before
        negated = (words ^ -(2**31)).view(torch.uint8)
        assert int(weighted_word_sum(negated)) != before


def test_names_say_where_a_part_is() -> None:
    state = {"model": {"0.weight": 1}, "optimizer": {"param_groups": [{"lr": 0.1}]}, "none": {}}
    found = {name: container[key] for name, container, key in places(state)}
    assert found == {"model.0.weight": 1, "optimizer.param_groups.0.lr": 0.1}


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


def test_a_change_is_in_the_digest_of_one_group_only() -> None:
    """Each byte of the state is in one group, and a large tensor is in several."""
    _, one = trained()
    model, other = trained()
    groups = [StateGroup(index, 20) for index in range(20)]
    assert [one.digests(group) for group in groups] == [other.digests(group) for group in groups]
    with torch.no_grad():
        model[1].bias[1] += 1.0
    changed = [group for group in groups if one.digests(group) != other.digests(group)]
    assert len(changed) == 1
    tables = {0: one.digests(changed[0]), 1: other.digests(changed[0])}
    assert first_difference(tables) == "model.1.bias"
    assert set().union(*(one.digests(group) for group in groups)) == one.digests().keys()


def test_a_large_tensor_is_compared_a_piece_at_a_time() -> None:
    values = torch.arange(1000.0)
    model = torch.nn.ParameterDict({"w": torch.nn.Parameter(values)})
    replica = TorchReplica(model, torch.optim.SGD(model.parameters(), lr=0.1))
    found = {}
    for index in range(10):
        pieces = replica.digests(StateGroup(index, 10))
        found[index] = pieces.get("model.w")
    assert len({*found.values()}) == 10
    with torch.no_grad():
        values[555] = -1.0
    changed = [n for n in found if replica.digests(StateGroup(n, 10)).get("model.w") != found[n]]
    assert changed == [5]


class Containers:
    """A state, and how often it was listed."""

    def __init__(self) -> None:
        self.inner: dict[str, Any] = {"a": np.zeros(64), "b": np.ones(64), "rate": 0.1}
        self.listed = 0
        self.parts = StateArrays(
            self.list, lambda v: v.nbytes if isinstance(v, np.ndarray) else None
        )

    def list(self) -> dict[str, Any]:
        self.listed += 1
        return {"x": self.inner, "rate": self.inner["rate"]}

    def within(self, index: int, count: int = 4) -> dict[str, Any]:
        return {part.name: part.value for part in self.parts.within(StateGroup(index, count))}


def test_a_state_is_listed_once_for_all_groups_and_where_there_are_numbers() -> None:
    held = Containers()
    seen = [held.within(index) for index in range(4)]
    assert [name for group in seen for name in group] == [
        "x.a",
        "x.a",
        "x.b",
        "x.b",
        "x.rate",
        "rate",
    ]
    assert held.listed == 2
    held.parts.forget()
    held.within(1)
    assert held.listed == 3


def test_what_is_replaced_meanwhile_is_read_as_it_is_now() -> None:
    held = Containers()
    held.within(0)
    held.inner["a"], held.inner["rate"] = np.full(64, 7.0), 0.2
    assert held.within(1)["x.a"][0] == 7.0
    assert held.within(3)["rate"] == 0.2
    del held.inner["b"]
    assert [*held.within(2)] == ["x.a"]


# --- one worker's part ---


class Fixed:
    """A replica, what it was asked for, and what it took part in."""

    def __init__(self, **parts: int) -> None:
        self.parts = parts
        self.asked: list[StateGroup] = []
        self.received: list[tuple[int, Receive]] = []

    def learning_rates(self) -> dict[str, float]:
        return {}

    def digests(self, group: StateGroup = WHOLE) -> dict[str, int]:
        self.asked.append(group)
        return self.parts

    def synchronise(self, _ring: object, root: int, receive: Receive) -> None:
        self.received.append((root, receive))


class Job:
    """A ring of three in which the others have what w0 has, or say what they have."""

    alone = False
    generation = 1
    is_broken = False
    distrusts_parts = False  # of checkpoints

    def distrust_parts(self) -> None:
        self.distrusts_parts = True

    def barrier(self, _record: StepRecord) -> None:
        return

    def break_(self) -> None:
        self.is_broken = True

    def __init__(self, every: int = 2, heals: bool = False, **others: int) -> None:
        self.progress = LoaderProgress()
        self.progress.attach(Source(100, Batching(4), False, 0, 0), 0)
        self.progress.enter((0, 1, 2))
        self.replica = Fixed(a=1, b=2)
        self.others = others or self.replica.parts
        self.joined: dict[int, int] = {}  # the step after which workers joined
        self.rates: dict[int, float] = {}
        self.logged: list[tuple[Details, str]] = []
        self.place = SimpleNamespace(rank=0)
        how = "resync" if heals else "end"
        self.settings = JobSettings(state_check_steps=every, on_divergence=how)
        self.check = StateCheck(self, self.progress, self, self.log_event)  # type: ignore[arg-type]
        self.check.replica = self.replica

    def broadcast(self, mine: bytes, rank: int, _name: str) -> bytes:
        return mine if rank == 0 else self.said(self.others, rank)

    def said(self, parts: dict[str, int], rank: int = 0) -> bytes:
        rates = {"learning rate": self.rates[rank]} if rank in self.rates else {}
        said = StateReport(parts, rates, self.joined.get(rank))
        return json.dumps(vars(said)).encode()

    def log_event(self, details: Details, why: str) -> None:
        self.logged.append((details, why))

    def fail(self, why: str, error: type[Exception]) -> None:
        raise error(why)

    def row(self, worker: int, state: int) -> StepRecord:
        return StepRecord(1, self.progress.step, worker, 0, 4, 0, 0, 1, 0, state=state)

    def rows(self, *states: int) -> StepRecords:
        return StepRecords.of([self.row(worker, state) for worker, state in enumerate(states)])


def test_each_step_makes_the_digest_of_another_group_once() -> None:
    job = Job(every=3)
    first = job.progress.ledger
    for step in range(5):
        job.progress.step = step
        middle = replace(first, leases=((0, ((8, 100),)),), free=())
        job.progress._ledger = first if step == 3 else middle  # an epoch begins after step 3
        job.check.begin_step()
        assert (job.check.state != 0) is (step > 0)
    assert job.replica.asked == [StateGroup(1, 3), StateGroup(2, 3), WHOLE, StateGroup(1, 3)]
    job.alone = True
    job.check.begin_step()
    assert job.check.state == 0


def test_what_a_model_sets_from_its_batches_is_compared_once_in_a_ring(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With the second row, after each worker's first batch; told of once."""
    job = Job()
    job.check.from_batches = lambda: {"queue": 7}

    def compare(mine: int, theirs: int) -> int:
        sent = replace(job.row(0, 0), buffers=mine), replace(job.row(1, 0), buffers=theirs)
        job.check.compare(StepRecords.of(sent))
        return len(caplog.messages)

    for job.generation in (1, 2):
        for step in range(3):
            job.check.begin_step()
            mine = job.check.buffers
            assert (mine > 0) is (step == 1)
            assert compare(mine, 0) == compare(mine, mine) == 0
    job.generation = 3
    job.check.begin_step()
    job.check.begin_step()
    assert [compare(job.check.buffers, 5), compare(job.check.buffers, 6)] == [1, 1]
    words = "what the model sets from its batches differs among the workers (queue): each worker"
    assert caplog.messages[0].startswith(words)


def test_buffers_are_those_of_no_batch_normalisation() -> None:
    model, replica = trained()
    model[0].register_buffer("queue", torch.zeros(4))
    assert [*replica.buffers()] == ["0.queue"]
    before = replica.from_batches()
    model(torch.randn(4, 2))
    assert replica.from_batches() == before
    model[0].queue[1] = 1.0
    assert replica.from_batches().keys() == before.keys()
    assert replica.from_batches() != before


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
        job.progress.enter((0, 1))

    ring: Any = job
    ring.broadcast, ring.start_record, ring.finish_record = (
        broadcast,
        lambda row: row,
        finish_record,
    )
    switching: Any = Switching.__new__(Switching)
    switching._ring, switching.repair, switching._now_s = ring, repair, time.monotonic
    switching._coordinator, switching.progress = SimpleNamespace(released_from=""), job.progress
    with pytest.raises(StateDiffers, match="the states of w0 and w1 differ"):
        switching.finish_together(
            lambda: replace(job.row(0, job.check.now()), stop=Stop.FINISHED), job.check.compare
        )


@pytest.mark.parametrize("heals", [False, True])
def test_a_newcomer_ends_and_for_the_others_the_ring_is_broken(heals: bool) -> None:
    newcomer = Job(heals=heals, a=1, b=3)
    newcomer.progress.step = newcomer.progress.joined_after = 80
    newcomer.check.joined()
    newcomer.progress.step = 81
    newcomer.check.begin_step()
    assert newcomer.replica.asked == [WHOLE]
    with pytest.raises(NewcomerDiffers, match="w0 joined after step 80"):
        newcomer.check.compare(split_rows(newcomer))
    assert newcomer.is_broken
    old = Job(heals=heals, a=1, b=3)
    old.progress.step, old.progress.joined_after, old.joined = 81, 80, {1: 80, 2: 80}
    old.check.begin_step()
    with pytest.raises(RingBroken, match="w1, w2"):
        old.check.compare(split_rows(old))
    [(details, why)] = old.logged
    assert details == StateDiffersDetails(("w1", "w2"))
    assert "their states differ from that of w0" in why
    assert old.distrusts_parts


def test_one_that_was_right_at_first_and_differs_later_is_healed_where_the_job_heals() -> None:
    job = Job(heals=True, a=1, b=3)
    job.progress.step, job.progress.joined_after, job.joined = 82, 80, {1: 80, 2: 80}
    job.check.compare(split_rows(job))
    assert not job.logged


# --- healing ---


def split_rows(job: Job, stop: Stop = Stop.NO) -> StepRecords:
    """Return the rows of a step in which w0 has another digest than w1 and w2."""
    rows = job.rows(fold(job.replica.parts), fold(job.others), fold(job.others))
    return StepRecords.of([replace(row, stop=stop) for row in rows])


def test_who_differs_gets_the_state_of_the_majority_between_two_steps() -> None:
    job = Job(heals=True, a=1, b=3)
    job.progress.step = 2
    job.check.compare(split_rows(job))
    assert not job.replica.received
    assert not job.distrusts_parts
    job.progress.step = 3
    job.check.resync()
    job.check.resync()  # it is done
    assert job.distrusts_parts
    assert job.replica.received == [(1, Receive.RESYNC)]
    assert job.replica.asked == [WHOLE]  # who is right shows in the whole state only
    [(details, why)] = job.logged
    assert details == StateDiffersDetails(("w0",), resynced_from="w1")
    assert why.startswith(
        "the state of w0 differs from that of w1, w2 after step 3, first in b; w0 "
    )


def test_who_is_right_takes_part_and_keeps_what_it_has() -> None:
    job = Job(heals=True, a=1, b=3)
    job.progress.enter((1, 2, 0))

    def broadcast(mine: bytes, rank: int, _name: str) -> bytes:
        return job.said(job.others) if rank == 2 else mine

    job.broadcast = broadcast  # type: ignore[method-assign]
    job.check.compare(split_rows(job))
    job.check.resync()
    assert job.replica.received == [(0, Receive.NOTHING)]
    assert job.logged[0][0] == StateDiffersDetails(("w0",), resynced_from="w1")


def test_at_the_end_of_the_training_it_is_healed_at_once() -> None:
    job = Job(heals=True, a=1, b=3)
    job.check.compare(split_rows(job, Stop.FINISHED))
    assert job.replica.received == [(1, Receive.RESYNC)]


def test_without_a_majority_of_whole_states_the_job_ends_and_says_so() -> None:
    """In the group that was compared two of three agree; in another one they do not."""
    job = Job(heals=True)
    parts = itertools.cycle([{"a": 1, "b": 2}, {"a": 9, "b": 2}, {"a": 8, "b": 3}])
    job.broadcast = lambda *_: job.said(next(parts))  # type: ignore[method-assign]
    job.check.compare(job.rows(5, 5, 6))
    with pytest.raises(StateDiffers, match="first in a; no majority agrees, so nobody is resynced"):
        job.check.resync()
    assert job.logged[0][0] == StateDiffersDetails((), resynced_from=None)
    assert not job.replica.received


def test_states_that_are_equal_again_are_left_alone() -> None:
    job = Job(heals=True)
    job.check.compare(job.rows(5, 5, 6))
    job.check.resync()
    assert not job.replica.received
    assert not job.logged


def test_nobody_is_healed_in_a_ring_that_has_not_found_it() -> None:
    """A new member would not know of it, and not take part."""
    job = Job(heals=True, a=1, b=3)
    job.check.compare(split_rows(job))
    job.generation = 2
    job.check.resync()
    assert not job.replica.received
    job.check.compare(split_rows(job))
    job.check.resync()
    assert job.replica.received == [(1, Receive.RESYNC)]


class Samples:
    """Those of a data set; what a second reading gives, ``again``, counts."""

    def __init__(self, digest: int, again: int) -> None:
        self.digest, self.second = digest, again

    def digests(self, _epoch: int) -> dict[str, int]:
        return {"sample 3": self.digest}

    def again(self, _epoch: int) -> dict[str, int]:
        return {"sample 3": self.second}


def test_other_data_end_the_job_before_a_step_of_the_epoch() -> None:
    job = Job(**{"sample 3": 6})
    job.check.data = Samples(5, 5)
    job.check.begin_step()  # step 0, at the start of an epoch
    assert job.check.state == fold({"sample 3": 5})
    job.check.compare(job.rows(*[job.check.state] * 3))
    with pytest.raises(StateDiffers, match="w0 has another sample 3 in its data set than w1, w2"):
        job.check.compare(job.rows(job.check.state, *[fold(job.others)] * 2))


def test_data_that_change_by_themselves_are_compared_no_more() -> None:
    for second in (6, -1):  # equal, or not the same each time
        job = Job(**{"sample 3": 6})
        job.check.data = Samples(5, second)
        job.check.begin_step()
        job.check.compare(job.rows(job.check.state, *[fold(job.others)] * 2))
        assert (job.check.data is None) == (second == -1)


def test_data_are_compared_where_workers_join() -> None:
    job = Job()
    job.check.data = Samples(5, 5)
    job.progress.step, job.progress.joined_after = 4, 4
    job.progress._ledger = replace(job.progress.ledger, total=108)  # 8 are done
    job.check.begin_step()
    assert job.check.state == fold({**job.check._digests})
    assert "sample 3" in job.check._digests
    job.progress.step = 6
    job.check.begin_step()
    assert "sample 3" not in job.check._digests
