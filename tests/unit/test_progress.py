"""Where a worker is in the job: what it takes over, and what it refuses to."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest

from edl.checkpoint.format import Manifest
from edl.errors import DataError, NewcomerDiffers
from edl.records import WorkerProgress, is_status_due
from edl.step.batching import Batching
from edl.step.engine import BatchStart, GradientAccumulation, PartStart, RingPlace
from edl.step.record import StepRecord, StepRecords
from edl.step.source import AlignedSource, Source, StreamSource, TrainingLength
from edl.worker.progress import LoaderProgress, Receive

SAMPLES = Source(100, Batching(4), True, 7, 0)


def progress_of(
    worker: int, fingerprint: str = "", total: int = 100, prefetch: int = 0
) -> LoaderProgress:
    one = LoaderProgress()
    data = replace(SAMPLES, total=total, prefetch_batches=prefetch, fingerprint=fingerprint)
    one.attach(data, worker)
    return one


def test_the_samples_left_are_those_of_the_updates_left() -> None:
    """100 samples an epoch; 2 workers of 4 samples each, which add up 3 batches for an update."""
    one = progress_of(0)
    one.length = TrainingLength(1000, max_steps=9)
    one.enter((0, 1))
    one.step, one.step_batches = 7, 3
    assert one.epoch_progress["left"] == 2 * 24


def train(one: LoaderProgress, batches: int = 1, updates: int = 1) -> None:
    """Let w0, which is alone, train so many batches, and make so many updates with them."""
    place = RingPlace(True, False, 4)
    for number in range(batches):
        batch = one.sampler.form(one.ledger)
        assert batch is not None
        one.engine.handle(BatchStart(batch, False, place))
        if number + 1 < batches:
            one.engine.handle(GradientAccumulation())
    for number in range(updates):
        if number:
            one.engine.handle(PartStart(place))
        row = one.row() | one.sampler.row(one.ledger, one.engine.batches.untrained)
        samples = one.engine.batches.samples
        record = replace(StepRecord(1, one.step, 0, 0, 0, 0, 0, 0, 0), **row, samples=samples)
        one.complete(StepRecords.of([record]))
    one.end_batch()


def test_the_samples_left_where_each_batch_has_two_updates() -> None:
    """As in a GAN: 80 samples for 20 updates of 40, two with each batch of 4."""
    one = progress_of(0)
    one.length, one.optimizers = TrainingLength(max_steps=40), 2
    one.engine.add_optimizer()
    one.engine.add_optimizer()
    for trained in range(4, 24, 4):
        train(one, updates=2)
        assert one.epoch_progress["epoch_done"] == trained
        assert one.epoch_progress["left"] == 80 - trained


def test_the_samples_left_where_a_script_adds_up_fewer_batches_than_before() -> None:
    """As by Lightning's GradientAccumulationScheduler({0: 8, 4: 1})."""
    one = progress_of(0, total=1000)
    one.length = TrainingLength(max_steps=50)
    train(one, batches=8)
    train(one, batches=8)
    assert one.epoch_progress["left"] == 48 * 32
    for _ in range(32):
        train(one)
    assert one.epoch_progress["left"] == 16 * 4


def test_equal_data_are_taken_over() -> None:
    root, newcomer = progress_of(0, "100 lines, digest a"), progress_of(3, "100 lines, digest a")
    root.step = 7
    newcomer.take_over(root.header(), Receive.ALL)
    assert newcomer.step == 7


@pytest.mark.parametrize(
    ("mine", "theirs", "sentence"),
    [
        (
            "100 lines, digest b",
            "100 lines, digest a",
            "of w3 are not .* Here: 100 lines, digest b. The job: 100 lines, digest a$",
        ),
        ("", "100 lines, digest a", "Here: data of unknown files. The job: 100 lines"),
    ],
)
def test_other_data_are_refused_before_anything_moves(
    mine: str, theirs: str, sentence: str
) -> None:
    root, newcomer = progress_of(0, theirs), progress_of(3, mine)
    root.step = 7
    with pytest.raises(DataError, match=sentence):
        newcomer.take_over(root.header(), Receive.ALL)
    assert newcomer.step == 0


def test_without_fingerprints_the_size_must_do() -> None:
    with pytest.raises(DataError, match="the dataset of w3 has 99 samples and the job's 100"):
        progress_of(3, total=99).take_over(progress_of(0).header(), Receive.ALL)


@pytest.mark.parametrize("receive", [Receive.ALL, Receive.NOTHING])
@pytest.mark.parametrize("data", [SAMPLES, StreamSource.of(3, Batching(4), True, 7, 0)])
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"seed": 8}, "loader of w3 is 8 and the job's 7; give all workers the same seed, or a g"),
        ({"shuffle": False}, "w3 is False and the job's True; give all workers the same shuffle$"),
    ],
)
def test_another_order_is_refused_before_anything_moves(
    data: Source, receive: Receive, options: dict[str, Any], sentence: str
) -> None:
    """Or a sample would be trained twice, and another one not at all: each maps positions alone."""
    root, other = LoaderProgress(), LoaderProgress()
    root.attach(data, 0, Mock())
    other.attach(replace(data, **options), 3, Mock())
    root.step = 7
    with pytest.raises(NewcomerDiffers, match=sentence):
        other.take_over(json.loads(json.dumps(root.header())), receive)
    assert (other.step, other.has_state) == (0, False)


@pytest.mark.parametrize(
    ("data", "is_refused"),
    [
        (replace(SAMPLES, shuffle=False), False),
        (StreamSource.of(3, Batching(4), False, 7, 0), False),
        (replace(SAMPLES, sampler=lambda epoch: range(100)), False),
        (replace(SAMPLES, shuffle=False, batching=Batching(global_batch=4, logical=2)), True),
    ],
)
def test_another_seed_is_refused_only_where_it_has_to_be_the_same(
    data: Source, is_refused: bool
) -> None:
    """Scripts give a seed with the rank in it, for what they draw while they load samples."""
    root, other = LoaderProgress(), LoaderProgress()
    root.attach(data, 0, Mock())
    other.attach(replace(data, seed=8), 3, Mock())
    with pytest.raises(NewcomerDiffers) if is_refused else nullcontext():
        other.take_over(json.loads(json.dumps(root.header())), Receive.ALL)
    assert other.has_state is not is_refused


def test_workers_with_other_numbers_of_loader_processes_grant_the_same_leases() -> None:
    """Also where the step records do not say how many: in a planned leave, and in a new epoch."""
    few, many = both = (
        progress_of(0, total=4000, prefetch=2),
        progress_of(1, total=4000, prefetch=60),
    )
    for one in both:
        one.enter((0, 1, 2))
    many.take_over(json.loads(json.dumps(few.header())), Receive.ALL)
    for one in both:
        one.enter((0, 1))
    assert many.ledger.digest() == few.ledger.digest()
    for one in both:
        one.next_epoch()
    assert many.ledger.digest() == few.ledger.digest()


def between_epochs() -> tuple[LoaderProgress, LoaderProgress]:
    """w0 has begun epoch 1, and w1 not yet, when w2 dies; neither has missed a step."""
    ahead, behind = progress_of(0), progress_of(1)
    for one in (ahead, behind):
        one.enter((0, 1, 2))
        one._ledger = replace(one.ledger, free=(), leases=())
    ahead.next_epoch()
    batch = ahead.sampler.form(ahead.ledger)
    assert batch is not None
    ahead.engine.handle(BatchStart(batch, False, RingPlace(False, False, 4)))
    for one in (ahead, behind):
        one.enter((0, 1))
    return ahead, behind


@pytest.mark.parametrize("root", [0, 1])
def test_a_break_between_two_epochs_leaves_all_in_the_same_one(root: int) -> None:
    ahead, behind = both = between_epochs()
    header = both[root].header()
    for one in both:
        one.take_over(header, Receive.NOTHING)
    assert behind.ledger.finished
    behind.next_epoch()
    assert (ahead.ledger.epoch, ahead.ledger.digest()) == (1, behind.ledger.digest())
    batch = behind.sampler.form(behind.ledger)
    assert batch is not None
    order = behind.source.order(1)
    assert list(batch.indices) == list(order.at(batch.position, batch.position + 4))
    assert ahead.sampler.agrees_with(ahead.ledger)
    assert ahead.engine.batches.newest is not None


def in_pieces(members: tuple[int, ...]) -> LoaderProgress:
    """Return the progress of w0 in a ring that trains 8 samples a step, each worker 2 at once."""
    one = LoaderProgress()
    one.attach(AlignedSource(16, Batching(global_batch=8, micro_batch=2), False, 0, 0), 0)
    one.enter(members)
    return one


def test_a_step_that_begins_after_a_repair_has_the_pieces_of_the_ring_before() -> None:
    one = in_pieces((0, 1, 2, 3))
    one.enter((0, 1), in_step=True)
    batch = one.sampler.form(one.ledger)
    assert batch is not None
    assert (batch.samples, batch.follow, one.header()["pieces"]) == (2, 0, 1)


def test_an_epoch_that_begins_after_a_repair_has_the_pieces_of_its_own_ring() -> None:
    one = in_pieces((0, 1, 2, 3))
    one._ledger = replace(one.ledger, free=(), leases=())
    one.enter((0, 1), in_step=True)
    one.next_epoch()
    batch = one.sampler.form(one.ledger)
    assert batch is not None
    assert (batch.samples, batch.follow, one.header()["pieces"]) == (2, 1, 2)


def test_the_answer_of_an_exchange_reaches_who_missed_it() -> None:
    root, late = progress_of(0), progress_of(1)
    root.has_state = late.has_state = True
    root.exchanged([b"one", b""])
    header = json.loads(json.dumps(root.header()))
    assert header["answer"] == [3, 0]  # the bytes themselves go beside the header
    late.take_over(header, Receive.NOTHING)
    assert late.exchanges == 1
    newcomer = progress_of(2)
    newcomer.take_over(late.header(), Receive.ALL)
    assert newcomer.exchanges == 1


def test_an_answer_is_kept_until_a_step_or_a_planned_switch() -> None:
    """It may be large, and from then on each worker has it."""
    one = progress_of(0)
    one.exchanged([b"large"])
    one.enter((0, 1), in_step=True)
    assert one.answer == [b"large"]
    one.enter((0, 1, 2))
    assert one.header()["answer"] == []
    one.exchanged([b"large"])
    batch = one.sampler.form(one.ledger)
    assert batch is not None
    one.engine.handle(BatchStart(batch, False, RingPlace(False, False, 4)))
    row = StepRecord(1, 0, 0, batch.samples, batch.position, 1, 0, 0, 0)
    one.complete(StepRecords.of([replace(row, **one.row())]))
    assert one.answer == []


def test_nobody_misses_two_exchanges() -> None:
    """The second needs everybody, after the first."""
    root, late = progress_of(0), progress_of(1)
    root.has_state = late.has_state = True
    root.exchanged([b"1"])
    root.exchanged([b"2"])
    with pytest.raises(AssertionError):
        late.take_over(root.header(), Receive.NOTHING)


def test_each_ring_has_batches_of_its_size() -> None:
    one = LoaderProgress()
    one.attach(Source(100, Batching(4, 10), True, 7, 0), 2)
    sizes = []
    for members in ((2,), (0, 2), (0, 1, 2), (1, 2)):
        one.enter(members)
        sizes.append(one.sampler.size)
    assert sizes == [4, 4, 3, 4]
    one.enter((0, 1, 2))
    one.sampler.share(0.5)
    assert one.sampler.size == 2
    one.sampler.share(1.0)
    assert one.sampler.size == 3


def test_who_has_missed_an_update_knows_the_same_of_it() -> None:
    """Else its learning rate would be that of the next one."""
    root, other = progress_of(0), progress_of(1)
    root.trained, root.trained_before, root.step = 32, 24, 4
    other.take_over(root.header(), Receive.ALL)
    assert (other.trained, other.trained_before) == (32, 24)


RANGE = Source(100, Batching(batch_range=(6, 40)), True, 7, 0)


def chosen_by(one: LoaderProgress, *wished: int) -> int:
    """Return the global batch of ``one`` after a step without data, in which workers ask for it.

    Its ring has as many workers as there are ``wished`` batches.
    """
    rows = [
        StepRecord(
            generation=1,
            step=one.step,
            worker=worker,
            samples=0,
            position=-1,
            newest_generation=1,
            batch=batch,
            **one.row(),
        )
        for worker, batch in zip(one.members, wished, strict=True)
    ]
    one.complete(StepRecords.of(rows))
    return one.source.batching.of_all(len(one.members))


def test_all_take_the_batch_that_the_leader_wishes_with_the_next_step() -> None:
    one = LoaderProgress()
    one.enter((0, 1))
    one.attach(RANGE, 1)
    assert one.sampler.size == 3
    assert chosen_by(one, 0, 0) == 6
    assert chosen_by(one, 0, 20) == 20
    assert one.sampler.size == 10
    assert one.ledger.held_samples(1) >= 20  # the next step has the leases that it needs
    assert chosen_by(one, 0, 0) == 20  # a leader that wishes nothing, yet
    assert chosen_by(one, 8, 30) == 20  # two believe to lead
    assert chosen_by(one, 99, 0) == 40
    assert [size for _, size in one.batches] == [6, 20]  # 40: with the next step


def test_a_newcomer_and_a_resumed_job_have_the_batch_that_was_chosen() -> None:
    root, other, resumed = LoaderProgress(), LoaderProgress(), LoaderProgress()
    for worker, one in enumerate((root, other, resumed)):
        one.enter((0, 1))
        one.attach(RANGE, worker % 2)
    chosen_by(root, 0, 20)
    other.take_over(root.header(), Receive.ALL)
    assert other.sampler.size == 10
    source, ledger = {"chosen": 20}, root.ledger.snapshot()
    resumed.resume(Manifest("j", "r1", 1, 0, "torch", source, ledger, samples=0))
    assert resumed.sampler.size == 10
    assert resumed.place.source == root.source


def test_a_worker_that_asks_for_other_batches_is_refused() -> None:
    root, other = progress_of(0), LoaderProgress()
    other.enter((0, 1))
    other.attach(Source(100, Batching(5), True, 7, 0), 1)
    with pytest.raises(NewcomerDiffers, match=r"batch_size=5. The job: batch_size=4"):
        other.take_over(root.header(), Receive.ALL)


def test_a_status_is_written_in_each_period_and_as_soon_as_a_new_ring_trains() -> None:
    starts = WorkerProgress(generation=1)
    trains = replace(starts, samples_total=64)
    assert not is_status_due(starts, told_generation=0, passed_s=9.0, period_s=10.0)
    assert is_status_due(starts, told_generation=0, passed_s=10.0, period_s=10.0)
    assert is_status_due(trains, told_generation=0, passed_s=0.0, period_s=10.0)
    assert not is_status_due(trains, told_generation=1, passed_s=9.0, period_s=10.0)
    assert is_status_due(replace(trains, generation=2), 1, passed_s=0.0, period_s=10.0)
    alone = WorkerProgress(median_step_s=0.1)
    assert not is_status_due(alone, told_generation=0, passed_s=9.0, period_s=10.0), "no ring"
