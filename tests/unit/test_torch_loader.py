"""What the loader makes known of a source: its fingerprint to the job, its damage to the log."""

from __future__ import annotations

import json
from collections import deque
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from tfrecords import framed
from torch.utils.data import ConcatDataset, RandomSampler, Subset, random_split

import edl.data
import edl.torch
from edl.binding.loop import BatchSteps, attach_source, attach_stream, refuse_logical
from edl.errors import UsageError
from edl.events import DataSkippedDetails, Details
from edl.policy.file import PolicyFile
from edl.spec import JobSettings
from edl.step.batching import Batching
from edl.step.engine import Batch
from edl.step.source import AlignedSource, Source, derived_seed
from edl.torch.loader import Leases, LoaderBatchSource, TensorRows, training_options
from edl.worker.worker import Worker


class Listener:
    def __init__(self) -> None:
        self.source: Source | None = None
        self.policy: PolicyFile | None = None
        self.follows = lambda: self.policy
        self.loader = SimpleNamespace(sampler=SimpleNamespace(), compare_data=lambda data: None)
        self.loader.on_pass = lambda numbers: None
        self.finishing = SimpleNamespace()
        self.logical = 0
        self.checkpointing = SimpleNamespace(settings=JobSettings())
        self.logged: list[Details] = []

    def attach_source(self, source: Source, reader: Any = None) -> None:
        self.source = source

    def log_event(self, details: Details, reason: str) -> None:
        self.logged.append(details)


def attached(dataset: Any) -> Listener:
    worker = Listener()
    edl.torch.DataLoader(dataset, batch_size=2, worker=cast(Worker, worker))
    return worker


def test_damage_is_logged_and_the_fingerprint_attached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "a"
    path.write_bytes(framed(b"one") + framed(b"two")[:9])
    dataset = edl.data.tfrecord(path, on_error="skip")
    worker = attached(dataset)
    assert worker.source == Source(1, Batching(2), False, 0, 0, dataset.fingerprint)
    assert worker.logged == [DataSkippedDetails(file=str(path), offset=19, bytes=9)]


def test_other_data_sets_have_nothing_to_log() -> None:
    worker = attached([1.0, 2.0, 3.0])
    assert worker.source == Source(3, Batching(2), False, 0, 0, "")
    assert worker.logged == []


def test_the_largest_global_batch_is_part_of_the_source() -> None:
    worker = Listener()
    given = cast(Worker, worker)
    edl.torch.DataLoader([1.0, 2.0], batch_size=2, max_global_batch=6, worker=given)
    assert worker.source == Source(2, Batching(2, 6), False, 0, 0, "")


@pytest.mark.parametrize("most", [1, True, 2.5, "6"])
def test_a_largest_global_batch_that_cannot_be(most: Any) -> None:
    given = cast(Worker, Listener())
    with pytest.raises(UsageError, match=r"max_global_batch is .* and batch_size 2; give the most"):
        edl.torch.DataLoader([1.0], batch_size=2, max_global_batch=most, worker=given)


def test_a_fixed_global_batch_is_that_of_all_workers() -> None:
    worker = Listener()
    given = cast(Worker, worker)
    edl.torch.DataLoader([1.0, 2.0], global_batch=6, seed=3, worker=given)
    assert worker.source == AlignedSource(2, Batching(global_batch=6), False, 3, 0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"global_batch": 6, "batch_size": 2}, "and batch_size or max_global_batch, too"),
        ({"global_batch": 6, "max_global_batch": 8}, "and batch_size or max_global_batch, too"),
        ({"global_batch": 0}, "global_batch is 0; it must be at least 1"),
        ({"global_batch": 1.5}, "global_batch is 1.5; edl.DataLoader needs a whole number"),
    ],
)
def test_a_fixed_global_batch_that_cannot_be(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        edl.torch.DataLoader([1.0], worker=cast(Worker, Listener()), **options)


@pytest.mark.parametrize(
    "dataset", [[1.0, 2.0], edl.data.stream([0, 1], lambda shard, offset: iter([shard]))]
)
def test_seed_and_shuffle_are_values_that_a_checkpoint_can_hold(dataset: Any) -> None:
    worker = Listener()
    options: dict[str, Any] = {"seed": np.int64(3), "shuffle": np.bool_(True)}
    loader = edl.torch.DataLoader(dataset, worker=cast(Worker, worker), **options)
    assert worker.source is not None
    assert json.dumps([worker.source.seed, worker.source.shuffle]) == "[3, true]"
    worker.loader.epoch = 1
    items = loader._feed._as_sent(Batch(0, np.arange(1)))
    assert items.epoch_seed == derived_seed(3, 1), "the same with each version of NumPy"


@pytest.mark.parametrize(
    ("options", "seed"),
    [
        ({}, 0),
        ({"seed": 3}, 3),
        ({"seed": 0, "generator": torch.Generator().manual_seed(5)}, 0),
        ({"generator": torch.Generator().manual_seed(5)}, 5),
        ({"generator": torch.Generator().manual_seed(5), "order": range(2)}, 0),
        ({"generator": torch.Generator().manual_seed(5), "shuffle": False}, 0),
    ],
)
def test_the_order_follows_from_the_seed_or_the_generator(
    options: dict[str, Any], seed: int
) -> None:
    worker = Listener()
    if order := options.get("order"):
        options = {**options, "order": Mock(total=len(order))}
    options = {"shuffle": True, **options}
    edl.torch.DataLoader([1.0, 2.0], worker=cast(Worker, worker), **options)
    assert worker.source is not None
    assert worker.source.seed == seed


@pytest.mark.parametrize("generator", [None, torch.Generator()])
@pytest.mark.parametrize(("shuffle", "logical"), [(True, 0), (False, 0), (False, 4)])
def test_an_epoch_draws_from_pytorchs_generator_what_its_own_sampler_draws(
    shuffle: bool, logical: int, generator: torch.Generator | None
) -> None:
    """Logical workers draw nothing between their passes, which are seeded."""
    options: dict[str, Any] = {"shuffle": shuffle, "generator": generator}
    given: Any = Listener()
    given.logical = logical
    own = options if not logical else {**options, "shuffle": True}
    loader = edl.torch.DataLoader(cast(Any, range(4)), worker=given, **own)
    loader._steps = Mock(begin=lambda: False, looping=nullcontext)
    plain = torch.utils.data.DataLoader(cast(Any, range(4)), **options)
    drawn = []
    with torch.random.fork_rng():
        for epoch in (loader, plain.sampler):
            torch.manual_seed(0)
            for _ in epoch:
                pass
            drawn.append(float(torch.rand(())))
    assert drawn[0] == drawn[1]


def options_of_order() -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(5)
    return [
        {"shuffle": True},
        {"shuffle": True, "generator": generator},
        {"shuffle": False, "generator": generator},
        {"sampler": RandomSampler(range(4))},
        {"sampler": RandomSampler(range(4), generator=generator)},
        {"sampler": RandomSampler(range(4)), "generator": generator},
    ]


@pytest.mark.parametrize("options", options_of_order())
def test_a_loop_with_a_loader_of_pytorchs_draws_what_that_one_draws(options: Any) -> None:
    """So dropout of a job of one, with Lightning or Accelerate, is that of PyTorch alone."""
    plain = torch.utils.data.DataLoader(cast(Any, range(4)), batch_size=2, **options)
    leases: deque[Batch] = deque()
    given: Any = Listener()
    given.warming_up = False
    given.loader.sampler = SimpleNamespace(form=lambda _: leases.popleft() if leases else None)
    given.loader.sampler.has_more = lambda _: bool(leases)
    given.loader.ledger = None
    loader = edl.torch.DataLoader(**training_options(plain), worker=given)
    loader._steps = Mock(begin=lambda: bool(leases and loader._feed.next()), looping=nullcontext)

    def epoch_of_edl(epoch: int) -> Any:
        loader._feed.restart()
        given.loader.epoch = epoch
        leases.extend(Batch(0, np.arange(at, at + 2)) for at in (0, 2))
        return loader

    drawn = []
    with torch.random.fork_rng():
        for epoch_of in (epoch_of_edl, lambda _: plain):
            torch.manual_seed(0)
            drawn.append([float(torch.rand(())) for epoch in (0, 1) for _ in epoch_of(epoch)])
    assert drawn[0] == drawn[1]
    assert len(drawn[0]) == 4


@pytest.mark.parametrize(
    ("options", "seed"), [*zip(options_of_order(), (0, 5, 0, 0, 5, 0), strict=True)]
)
def test_the_generator_of_the_order_may_be_that_of_the_sampler(options: Any, seed: int) -> None:
    plain = torch.utils.data.DataLoader(cast(Any, range(4)), batch_size=2, **options)
    worker = Listener()
    edl.torch.DataLoader(**training_options(plain), worker=cast(Worker, worker))
    assert worker.source is not None
    assert worker.source.seed == seed


def test_a_seed_may_be_none_in_each_framework() -> None:
    numbered, stream = Listener(), Listener()
    how = Batching(2), False, None, 0
    attach_source(cast(Worker, numbered), [1.0], 1, *how)
    attach_stream(cast(Worker, stream), edl.data.stream([0], lambda *_: iter([0])), *how)
    assert numbered.source is not None
    assert stream.source is not None
    assert (numbered.source.seed, stream.source.seed) == (0, 0)


@pytest.mark.parametrize("seed", [1.0, "7", True, torch.tensor(7)])
@pytest.mark.parametrize(
    "dataset", [[1.0, 2.0], edl.data.stream([0, 1], lambda shard, offset: iter([shard]))]
)
def test_a_seed_that_is_no_whole_number_is_refused(dataset: Any, seed: Any) -> None:
    worker = Listener()
    with pytest.raises(UsageError, match=r"^seed is .*; give a whole number, the same on all"):
        edl.torch.DataLoader(dataset, seed=seed, worker=cast(Worker, worker))
    assert worker.source is None


def test_logical_workers_have_the_batch_that_the_script_gives() -> None:
    worker = Listener()
    worker.logical = 4
    edl.torch.DataLoader([1.0] * 9, batch_size=2, worker=cast(Worker, worker))
    batching = Batching(2, global_batch=8, micro_batch=2, logical=4)
    assert worker.source == AlignedSource(9, batching, False, 0, 0)


def test_logical_workers_are_refused_in_a_sentence() -> None:
    worker = Listener()
    worker.logical = 4
    of_logical = cast(Worker, worker)
    with pytest.raises(UsageError, match="cannot be shared evenly by the job's 4 logical workers"):
        edl.torch.DataLoader([1.0], worker=of_logical, global_batch=6)
    with pytest.raises(UsageError, match="asks for batch_size=4, micro_batch=2; give it"):
        edl.torch.DataLoader([1.0], worker=of_logical, batch_size=4, micro_batch=2)
    stream = edl.data.stream([0, 1], lambda shard, offset: iter([shard]))
    with pytest.raises(UsageError, match="which of them a logical worker trains: leave out"):
        edl.torch.DataLoader(stream, worker=of_logical)
    with pytest.raises(UsageError, match=r"4 logical workers, and edl\.tensorflow trains without"):
        refuse_logical(of_logical, "edl.tensorflow trains")
    worker.policy = PolicyFile("", batch=Batching(4))
    with pytest.raises(UsageError, match=r"and its policy has a table \[batch\], too"):
        edl.torch.DataLoader([1.0], worker=of_logical)


def test_nobody_can_tell_the_global_batches_of_a_stream() -> None:
    stream = edl.data.stream([0, 1], lambda shard, offset: iter([shard]))
    with pytest.raises(UsageError, match="the samples of a stream have no numbers"):
        edl.torch.DataLoader(stream, global_batch=2, worker=cast(Worker, Listener()))


def test_the_jobs_policy_says_how_large_batches_are() -> None:
    worker = Listener()
    worker.policy = PolicyFile("", batch=Batching(batch_range=(8, 64)))
    edl.torch.DataLoader([1.0, 2.0], batch_size=32, worker=cast(Worker, worker))
    assert worker.source == Source(2, Batching(batch_range=(8, 64)), False, 0, 0)
    most = Listener()
    most.policy = PolicyFile("", batch=Batching(0, 64))
    edl.torch.DataLoader([1.0, 2.0], batch_size=32, worker=cast(Worker, most))
    assert most.source == Source(2, Batching(32, 64), False, 0, 0)


@pytest.mark.parametrize("name", ["max_global_batch", "global_batch"])
def test_who_says_it_twice_is_refused(name: str) -> None:
    worker = Listener()
    worker.policy = PolicyFile("", batch=Batching(4))
    sentence = f"edl.DataLoader was given {name}, and the job's policy has a table"
    with pytest.raises(UsageError, match=sentence):
        edl.torch.DataLoader([1.0], worker=cast(Worker, worker), **{name: 8})


@pytest.mark.parametrize(
    ("keeps", "made_in"),
    [(True, [("alone", 0)]), (False, [("alone", 0), ("alone", 0), ("in the ring", 1)])],
)
def test_loader_processes_start_anew_in_each_epoch(
    keeps: bool, made_in: list[tuple[str, int]]
) -> None:
    """Those of the warm-up end before a newcomer joins; new leases start no others."""
    leases: deque[Any] = deque()
    sampler = SimpleNamespace(
        form=lambda _: leases.popleft() if leases else None,
        has_more=lambda _: bool(leases),
        warm_up=lambda: [0],
    )
    worker = SimpleNamespace(
        warming_up=True, loader=SimpleNamespace(sampler=sampler, ledger=None, epoch=0)
    )
    made: list[tuple[str, int]] = []

    def make(form: Any) -> torch.utils.data.DataLoader[Any]:
        made.append(("alone" if worker.warming_up else "in the ring", worker.loader.epoch))
        batches = cast(Any, Leases(form, lambda batch: cast(Any, batch)))
        return torch.utils.data.DataLoader(cast(Any, range(3)), batch_sampler=batches)

    source = LoaderBatchSource(cast(Worker, worker), lambda batch: cast(Any, batch), make, keeps)
    source.restart()  # before the first batch: no process has started
    assert source.next() == ([0], False)
    source.restart()  # as before it joins
    worker.warming_up = False
    for epoch in (0, 1):
        source.restart()
        worker.loader.epoch = epoch
        for batch in ([1], [2]):
            leases.append(batch)
            assert source.next() == (batch, False)
            assert source.data.tolist() == batch
    assert made == made_in


def test_a_newcomer_drops_the_batches_of_its_warm_up_before_it_joins() -> None:
    """Its loader processes may end then, while no other worker waits for it."""
    calls = Mock()
    calls.worker.warming_up = True
    calls.worker.loader.progress.optimizers = 1
    steps = BatchSteps(calls.worker, calls.feed, str)
    steps.enter()
    made = [name for name, *_ in calls.mock_calls]
    assert made.index("feed.restart") < made.index("worker.join")
    calls.reset_mock()
    calls.worker.warming_up = False
    steps.enter()
    assert not calls.feed.restart.called


def test_subsets_of_other_samples_have_other_fingerprints() -> None:
    data = torch.utils.data.TensorDataset(torch.arange(10.0))

    def fingerprint(dataset: Any) -> str:
        source = attached(dataset).source
        assert source is not None
        return source.fingerprint

    def split(seed: int) -> list[Any]:
        return random_split(data, [0.5, 0.5], torch.Generator().manual_seed(seed))

    assert fingerprint(data) == ""
    (one, rest), (other, _) = split(0), split(1)
    assert fingerprint(one) == fingerprint(split(0)[0])
    assert fingerprint(one).startswith("a Subset of 5 samples (")
    both = ConcatDataset([data, one]), ConcatDataset([data, other])
    nested = Subset(one, [0, 1]), Subset(other, [0, 1]), Subset(one, torch.tensor([1, 0]))
    assert len({*map(fingerprint, (one, other, rest, *both, *nested))}) == 8
    assert fingerprint(ConcatDataset([data, data])) == ""


def test_loader_processes_stay_if_the_script_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[bool] = []

    def noted(*given: Any) -> Any:
        kept.append(given[-1])
        return SimpleNamespace(data=None)

    monkeypatch.setattr("edl.torch.loader.LoaderBatchSource", noted)
    for options in ({}, {"persistent_workers": True}, {"persistent_workers": False}):
        edl.torch.DataLoader([1.0], worker=cast(Worker, Listener()), num_workers=1, **options)
    assert kept == [True, True, False]


class Pairs(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return torch.zeros(100_000), index


@pytest.mark.parametrize(
    ("dataset", "options", "shared"),
    [
        (Pairs(), {"num_workers": 1}, [True, False]),  # labels come by value
        (torch.utils.data.TensorDataset(torch.zeros(2), torch.ones(2)), {}, [False, False]),
    ],
)
def test_how_samples_are_read(
    dataset: Any, options: Any, shared: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    monkeypatch.setattr(
        "edl.torch.loader.LoaderBatchSource",
        lambda _worker, _as_sent, make, _keeps: made.append(make) or SimpleNamespace(data=None),
    )
    worker = Listener()
    worker.loader.epoch = 0
    edl.torch.DataLoader(dataset, batch_size=2, worker=cast(Worker, worker), **options)
    batches = deque([Batch(0, np.arange(2))])
    loader = made[0](lambda: batches.popleft() if batches else None)
    assert isinstance(loader.dataset, TensorRows) == isinstance(
        dataset, torch.utils.data.TensorDataset
    )
    ((x, y),) = loader
    assert [x.is_shared(), y.is_shared()] == shared
    assert y.tolist() in ([0, 1], [1, 1])
