"""Random numbers: a sample's follow from (seed, epoch, sample), a worker's are its own."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.utils.data

from edl.core.step.seeds import derived_seed
from edl.framework.random_numbers import RandomNumbers
from edl.torch.seeding import Items, Seeded, SeededCollate, draws_nothing
from edl.worker.worker import Worker


@pytest.fixture(autouse=True)
def states() -> Iterator[None]:
    """Leave the generators of this process as they were."""
    python, numpy_, torch_ = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(python)
    np.random.set_state(numpy_)
    torch.set_rng_state(torch_)


def seed_script(seed: int = 0) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


# --- of the training thread


def numbers_of(**worker: Any) -> RandomNumbers:
    """Those of a worker whose script has seeded everything with 0."""
    seed_script()
    is_so = {"id": 0, "rank": 0, "step": 0, "generation": 1, "same_random": False, "logical": 0}
    loader = SimpleNamespace(progress=SimpleNamespace(seed=-1))
    one = cast(Worker, SimpleNamespace(**(is_so | {"loader": loader} | worker)))
    return RandomNumbers(one, torch.initial_seed, torch.manual_seed)


def begun(**worker: Any) -> tuple[float, float, float]:
    numbers_of(**worker).enter()
    return draw()


def test_a_job_of_one_draws_what_the_script_seeds() -> None:
    seed_script()
    plain = draw()
    assert begun() == plain
    numbers = numbers_of()
    numbers.enter()
    numbers.look()
    assert draw() == plain


def test_each_worker_draws_its_own_numbers_and_the_same_again_in_another_run() -> None:
    newcomers = [{"id": 3, "generation": 2, "step": 9}, {"id": 4, "generation": 2, "step": 9}]
    resumed = {"id": 0, "rank": 0, "step": 500}
    workers: list[dict[str, Any]] = [{}, {"rank": 1, "id": 1}, {"rank": 2, "id": 2}]
    drawn = [begun(**one) for one in (*workers, *newcomers, resumed)]
    for kind in range(3):
        assert len({one[kind] for one in drawn}) == len(drawn)
    assert [begun(**one) for one in (*workers, *newcomers, resumed)] == drawn
    # Which of them registered first says nothing: the rank in the first ring counts.
    assert begun(rank=1, id=2) == drawn[1]


def test_a_newcomer_has_other_numbers_in_its_warm_up() -> None:
    numbers = numbers_of(id=3, generation=0, rank=2)
    numbers.warm_up()
    first = draw()
    seed_script()
    assert first != draw()


def test_a_seed_that_is_set_while_training_becomes_the_worker_s_own() -> None:
    drawn = []
    for rank in (1, 2):
        numbers = numbers_of(rank=rank)
        numbers.enter()
        numbers.look()
        for epoch in (0, 1):
            torch.manual_seed(100 + epoch)
            numbers.look()
            drawn.append(float(torch.rand(())))
            numbers.look()  # nothing has changed since
            drawn.append(float(torch.rand(())))
    assert len({*drawn}) == len(drawn)


def drawn_by_logical(seed: int = 0, epoch: int = 1, **worker: Any) -> list[tuple[float, ...]]:
    """Return what a worker draws in the pass of a logical worker, and after the step."""
    numbers = numbers_of(logical=8, **worker)
    torch.manual_seed(seed)
    numbers.warm_up()
    numbers.enter()
    draw()
    numbers.look()
    numbers.begin_piece(epoch, 40)
    in_pass = draw()
    numbers.look()
    numbers.end_step(3)
    return [in_pass, draw()]


def test_a_logical_worker_draws_the_same_on_any_worker() -> None:
    expected = drawn_by_logical()
    assert drawn_by_logical(id=7, rank=2, step=30, generation=4) == expected
    assert all(a != b for a, b in zip(drawn_by_logical(seed=1), expected, strict=True))
    assert drawn_by_logical(epoch=2)[0] != expected[0]
    numbers = numbers_of(logical=8)
    numbers.enter()
    numbers.begin_piece(1, 40)
    torch.manual_seed(1)  # the script seeds in its loop
    numbers.look()
    numbers.begin_piece(1, 40)
    assert draw() == drawn_by_logical(seed=1)[0]


def test_a_newcomer_and_a_resumed_job_go_on_with_the_seed_of_the_job() -> None:
    """The script seeds once more while it trains; a worker that comes later has not run that."""
    loader = SimpleNamespace(progress=SimpleNamespace(seed=999))  # that of the job, or checkpoint
    numbers = numbers_of(logical=8, step=13, loader=loader)
    numbers.enter()
    numbers.look()
    numbers.begin_piece(1, 40)
    assert draw() == drawn_by_logical(seed=999)[0]
    torch.manual_seed(5)
    numbers.look()
    assert loader.progress.seed == 5


def test_an_update_draws_the_same_on_all_workers() -> None:
    drawn = []
    for position in (0, 8):
        numbers = numbers_of(logical=8)
        numbers.enter()
        numbers.begin_piece(1, position)
        draw()
        numbers.begin_update(3)
        drawn.append(draw())
    assert drawn[0] == drawn[1]


def test_all_workers_draw_the_same_if_the_script_wants_it() -> None:
    seed_script()
    plain = draw()
    assert begun(rank=1, same_random=True) == begun(rank=2, same_random=True) == plain


# --- while a batch is loaded


class Noisy(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[int, float, float, float]:
        return index, *draw()


def mixup(samples: list[Any]) -> tuple[list[Any], float]:
    return samples, float(np.random.beta(1.0, 1.0))


def loaded(batches: Sequence[Sequence[int]], processes: int, epoch: int = 0) -> list[Any]:
    in_thread = processes == 0
    items = [Items.of(list(batch), derived_seed(5, epoch), batch) for batch in batches]
    loader = torch.utils.data.DataLoader(
        Seeded(Noisy(), in_thread),
        batch_sampler=cast(Any, items),
        num_workers=processes,
        collate_fn=SeededCollate(mixup, in_thread),
    )
    return [*loader]


def samples_of(batches: list[Any]) -> dict[int, Any]:
    return {sample[0]: sample[1:] for samples, _ in batches for sample in samples}


def test_a_sample_has_the_same_numbers_wherever_it_is_loaded() -> None:
    seed_script()
    before = random.getstate(), np.random.get_state()[1].tolist()
    one = loaded([[0, 1, 2], [3, 4, 5]], processes=0)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
    other = loaded([[5, 0], [4, 1], [2, 3]], processes=2)
    assert samples_of(one) == samples_of(other)
    assert len({*samples_of(one).values()}) == 6
    assert samples_of(loaded([[0, 1, 2]], 0, epoch=1))[0] != samples_of(one)[0]
    # What makes a batch of them goes by its first sample.
    assert one[0][1] != one[1][1]
    assert loaded([[3, 1]], 0)[0][1] == one[1][1]


class ReadsBatches(Noisy):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


def test_a_sample_behind_a_subset_has_the_same_numbers_in_any_batch() -> None:
    """A Subset has ``__getitems__`` whether or not its data set reads a batch at once."""
    for kept in (
        torch.utils.data.Subset(Noisy(), range(12)),
        torch.utils.data.Subset(torch.utils.data.Subset(Noisy(), range(12)), range(12)),
    ):
        seeded = Seeded(kept, in_thread=True)
        (alone,) = seeded.__getitems__(Items.of([3], 5, [3]))
        assert seeded.__getitems__(Items.of([2, 3], 5, [2, 3]))[1] == alone
        assert Seeded(Noisy(), True).__getitems__(Items.of([3], 5, [3])) == [alone]
    at_once = Seeded(torch.utils.data.Subset(ReadsBatches(), range(12)), in_thread=True)
    (first,) = at_once.__getitems__(Items.of([3], 5, [3]))
    assert at_once.__getitems__(Items.of([3, 2], 5, [3, 2]))[0] == first
    assert at_once.__getitems__(Items.of([2, 3], 5, [2, 3]))[1] != first, "one seed for the batch"


def test_the_training_thread_s_generators_go_on_as_they_were() -> None:
    seed_script()
    seeded = Seeded(Noisy(), in_thread=True)
    expected = [draw() for _ in range(2)]
    seed_script()
    assert draw() == expected[0]
    seeded.__getitems__(Items.of([3], 17, [3]))
    assert draw() == expected[1]
    assert torch.initial_seed() == 0


def test_a_sample_that_is_drawn_on_a_gpu_follows_from_its_seed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A second generator of the CPU stands for that of a GPU."""
    gpu = torch.Generator()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "default_generators", (gpu,))

    class OnGpu(Noisy):
        def __getitem__(self, index: int) -> Any:
            return float(torch.rand((), generator=gpu))

    def drawn(script_seed: int) -> tuple[list[float], bool]:
        gpu.manual_seed(script_seed)
        before = gpu.get_state()
        seeded = Seeded(OnGpu(), in_thread=True)
        collate = SeededCollate(lambda one: [*one, float(torch.rand((), generator=gpu))], True)
        found = collate(seeded.__getitems__(Items.of([3, 4], 1, [3, 4])))
        return found, torch.equal(gpu.get_state(), before)

    found, kept = drawn(1)
    assert kept
    assert drawn(2) == (found, True)
    assert len(set(found)) == 3


def test_data_sets_that_draw_nothing_are_known() -> None:
    x = torch.utils.data.TensorDataset(torch.zeros(4))
    assert draws_nothing(x)
    assert draws_nothing(torch.utils.data.Subset(x, [1]))
    assert draws_nothing(torch.utils.data.ConcatDataset([x, x]))
    assert not draws_nothing(Noisy())
    assert not draws_nothing(torch.utils.data.ConcatDataset([x, Noisy()]))


def test_the_data_set_shows_through() -> None:
    noisy = Noisy()
    seeded = Seeded(noisy, in_thread=True)
    seeded.scale = 2  # as a worker_init_fn does with get_worker_info().dataset
    assert (noisy.scale, seeded.scale) == (2, 2)  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        seeded.nothing_of_the_kind  # noqa: B018 - it raises
