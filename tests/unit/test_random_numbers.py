"""Random numbers: a sample's follow from (seed, epoch, sample), a worker's are its own."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.utils.data

from edl.binding import loop
from edl.binding.loop import RandomNumbers, end_alike, numpy_is_seeded, seed_alike, seed_numpy
from edl.step.source import derived_seed
from edl.torch.loader import Items, Seeded, SeededCollate, draws_nothing
from edl.torch.replica import TorchGenerators, seed_torch
from edl.worker.worker import Worker


@pytest.fixture(autouse=True)
def states() -> Iterator[None]:
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
    seed_script()
    is_so = {"id": 0, "rank": 0, "step": 0, "generation": 1, "same_random": False, "logical": 0}
    engine = SimpleNamespace(completed_by_peers=False)
    loader = SimpleNamespace(progress=SimpleNamespace(seed=-1), engine=engine)
    is_so |= {"loader": loader, "is_shared": True}
    one = cast(Worker, SimpleNamespace(**(is_so | worker)))
    numbers = RandomNumbers(one, TorchGenerators())
    numbers.describe()
    return numbers


def begun(**worker: Any) -> tuple[float, float, float]:
    numbers_of(**worker).enter()
    return draw()


def test_what_is_drawn_without_a_seed_is_alike_until_each_worker_draws_its_own() -> None:
    run = SimpleNamespace(checkpointing=SimpleNamespace(run="r1"), is_shared=True)
    worker = cast(Worker, SimpleNamespace(**vars(run), same_random=False))
    seeders = {seed_torch: False, seed_numpy: False}
    drawn = []
    for _ in range(2):
        torch.seed()
        np.random.set_bit_generator(np.random.MT19937())  # as a process begins
        assert not numpy_is_seeded()
        seed_alike(worker, seeders)
        assert numpy_is_seeded()
        drawn.append((float(torch.rand(())), float(np.random.rand())))
        end_alike()
        drawn.append((float(torch.rand(())), float(np.random.rand())))
    assert drawn[0] == drawn[2]
    assert drawn[1][0] != drawn[3][0]
    seed_script()
    before = draw()
    seed_script()
    seed_alike(worker, dict.fromkeys(seeders, True))
    assert draw() == before


def test_a_job_of_one_draws_what_the_script_seeds() -> None:
    seed_script()
    plain = draw()
    assert begun() == plain
    numbers = numbers_of()
    numbers.enter()
    numbers.step()
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
        numbers.step()
        for epoch in (0, 1):
            torch.manual_seed(100 + epoch)
            numbers.step()
            drawn.append(float(torch.rand(())))
            numbers.step()  # nothing has changed since
            drawn.append(float(torch.rand(())))
    assert len({*drawn}) == len(drawn)


def drawn_by_logical(seed: int = 0, epoch: int = 1, **worker: Any) -> list[tuple[float, ...]]:
    numbers = numbers_of(logical=8, **({"step": 3} | worker))
    torch.manual_seed(seed)
    numbers.warm_up()
    numbers.enter()
    draw()
    numbers.step()
    numbers.begin_piece(epoch, 40)
    in_pass = draw()
    numbers.step()
    numbers.end_step()
    return [in_pass, draw()]


def test_a_logical_worker_draws_the_same_on_any_worker() -> None:
    expected = drawn_by_logical()
    assert drawn_by_logical(id=7, rank=2, generation=4) == expected
    assert all(a != b for a, b in zip(drawn_by_logical(seed=1), expected, strict=True))
    assert drawn_by_logical(epoch=2)[0] != expected[0]
    numbers = numbers_of(logical=8)
    numbers.enter()
    numbers.begin_piece(1, 40)
    torch.manual_seed(1)  # the script seeds in its loop
    numbers.step()
    numbers.begin_piece(1, 40)
    assert draw() == drawn_by_logical(seed=1)[0]


def test_a_newcomer_and_a_resumed_job_go_on_with_the_seed_of_the_job() -> None:
    loader = SimpleNamespace(progress=SimpleNamespace(seed=999))  # that of the job, or checkpoint
    numbers = numbers_of(logical=8, step=13, loader=loader)
    numbers.enter()
    numbers.step()
    numbers.begin_piece(1, 40)
    assert draw() == drawn_by_logical(seed=999)[0]
    torch.manual_seed(5)
    numbers.step()
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


def test_between_steps_all_workers_draw_the_same_and_in_a_step_none_does() -> None:
    drawn, in_steps = set(), set()
    of_job = numbers_of().script
    newcomer = {"id": 5, "rank": 2, "generation": 2, "step": 9}
    for worker in ({}, {"rank": 1, "id": 1}, newcomer):
        numbers = numbers_of(**worker)
        numbers._worker.loader.progress.seed = of_job
        numbers.enter()
        numbers.between("epoch", 2)
        drawn.add(draw())
        numbers.step()
        in_steps.add(draw())
        numbers._worker.step = 9  # type: ignore[misc]
        numbers.end_step()
        drawn.add(draw())
        numbers.end_step()  # the job's stream is there already, and goes on
        drawn.add(draw())
        numbers.between("epoch", 3)
        drawn.add(draw())
        numbers.step()
        in_steps.add(draw())
    assert len(drawn) == 4
    assert len(in_steps) == 6


def test_a_worker_s_own_numbers_go_on_from_step_to_step() -> None:
    """What is drawn between two steps takes none of them; rank 0 has those of the script."""
    seed_script()
    plain = [(random.gauss(0, 1), *draw()) for _ in range(4)]
    numbers = numbers_of()
    numbers.enter()
    found = []
    for step in range(4):
        numbers.step()
        found.append((random.gauss(0, 1), *draw()))
        numbers.between("between steps", step)
        random.gauss(0, 1)
        draw()
    assert found == plain


def test_a_worker_without_the_step_draws_what_the_others_draw_after_it() -> None:
    """It has got their state, which counts the step already."""
    drawn = []
    for missed in (False, True):
        numbers = numbers_of(step=9 + missed)
        numbers._worker.loader.engine.completed_by_peers = missed  # type: ignore[misc]
        numbers.enter()
        numbers.end_step()
        drawn.append(draw())
    assert drawn[0] == drawn[1]


def test_a_seed_of_the_script_holds_until_the_next_batch() -> None:
    expected, in_steps = [], set()
    torch.manual_seed(107)
    expected = [float(torch.rand(())) for _ in range(2)]
    for rank in (0, 1, 2):
        numbers = numbers_of(rank=rank)
        numbers.enter()
        numbers.between("epoch", 7)
        torch.manual_seed(107)
        assert float(torch.rand(())) == expected[0]
        numbers.step()
        in_steps.add(float(torch.rand(())))
    assert len(in_steps) == 3
    assert expected[1] in in_steps, "rank 0 goes on as the script alone would"


def test_a_job_without_a_launcher_draws_as_without_edl() -> None:
    seed_script()
    plain = draw()
    numbers = numbers_of(is_shared=False)
    numbers.enter()
    numbers.between("epoch", 0)
    assert draw() == plain


def test_no_half_of_a_pair_of_normal_numbers_passes_between_the_streams() -> None:
    swaps, drawn = loop._GlobalGenerators(), []
    for count in (0, 1):
        seed_script()
        for _ in range(count):
            random.gauss(0, 1), np.random.randn()
        saved = swaps.save()
        swaps.seed(2**62 + 12345)
        drawn.append((random.gauss(0, 1), np.random.randn(), draw()))
        swaps.restore(saved)
    assert drawn[0] == drawn[1]


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
    items = [Items(list(batch), derived_seed(5, epoch), batch) for batch in batches]
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
        (alone,) = seeded.__getitems__(Items([3], 5, [3]))
        assert seeded.__getitems__(Items([2, 3], 5, [2, 3]))[1] == alone
        assert Seeded(Noisy(), True).__getitems__(Items([3], 5, [3])) == [alone]
    at_once = Seeded(torch.utils.data.Subset(ReadsBatches(), range(12)), in_thread=True)
    (first,) = at_once.__getitems__(Items([3], 5, [3]))
    assert at_once.__getitems__(Items([3, 2], 5, [3, 2]))[0] == first
    assert at_once.__getitems__(Items([2, 3], 5, [2, 3]))[1] != first, "one seed for the batch"


def test_the_training_thread_s_generators_go_on_as_they_were() -> None:
    seed_script()
    seeded = Seeded(Noisy(), in_thread=True)
    expected = [draw() for _ in range(2)]
    seed_script()
    assert draw() == expected[0]
    seeded.__getitems__(Items([3], 17, [3]))
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
        found = collate(seeded.__getitems__(Items([3, 4], 1, [3, 4])))
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


KEPT = """
import torch, edl.torch as edl
edl.init(logical=2)
loader = edl.DataLoader(torch.arange(8.0), batch_size=2)
model = torch.nn.Linear(1, 1)
opt = edl.Optimizer(torch.optim.SGD(model.parameters(), 0.1), model)
def endless():
    for _ in loader.epochs(9):
        yield from loader
batches = endless()
for _ in range(2):
    x = next(batches)
    model(x[:, None]).sum().backward()
    opt.step()
    opt.zero_grad()
"""


def test_an_iterator_that_is_left_open_ends_with_the_interpreter(tmp_path: Path) -> None:
    args = [sys.executable, "-c", KEPT]
    ended = subprocess.run(args, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr
