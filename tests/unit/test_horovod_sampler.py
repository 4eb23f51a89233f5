"""The elastic sampler: an epoch, in any rings, is each sample once, but for its fill-up."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, DistributedSampler

from edl.binding import process
from edl.torch import elastic
from edl.torch.elastic import ElasticSampler

RINGS = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 4)), max_size=6)


def trained(
    monkeypatch: pytest.MonkeyPatch, total: int, batch: int, rings: list[tuple[int, int]]
) -> tuple[Counter[int], int]:
    """How often each sample is trained in one epoch, and the size of the last ring.

    ``rings``: sizes, and how many batches a ring trains before the next; the last one trains on.
    """
    seen: Counter[int] = Counter()
    size = [1]
    rank = [0]
    monkeypatch.setattr(process, "num_processes", lambda: size[0])
    monkeypatch.setattr(process, "rank", lambda: rank[0])
    state = ElasticSampler(range(total), seed=3).state_dict()
    for last, (size[0], batches) in [*((False, ring) for ring in rings), (True, (3, total))]:
        samplers = []
        for rank[0] in range(size[0]):
            sampler = ElasticSampler(range(total), seed=3)
            sampler.load_state_dict(state)
            samplers.append(sampler)
        assert len({len(sampler) for sampler in samplers}) == 1
        shares = [list(sampler) for sampler in samplers]
        for start in range(0, len(shares[0]) if last else batches * batch, batch):
            for sampler, share in zip(samplers, shares, strict=True):
                seen.update(share[start : start + batch])
                sampler.record_batch(start // batch, batch)
        assert len({str(sampler.state_dict()) for sampler in samplers}) == 1
        state = samplers[0].state_dict()
        if state["processed_num"] >= total:
            break
    return seen, size[0]


@given(total=st.integers(1, 120), batch=st.integers(1, 7), rings=RINGS)
def test_each_sample_once(total: int, batch: int, rings: list[tuple[int, int]]) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        seen, size = trained(monkeypatch, total, batch, rings)
    assert set(seen) == set(range(total))
    assert seen.total() - total < size


def test_an_epoch_has_an_order_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "num_processes", lambda: 1)
    monkeypatch.setattr(process, "rank", lambda: 0)
    sampler = ElasticSampler(range(50))
    first = list(sampler)
    sampler.record_batch(0, 20)
    assert list(sampler) == first  # divided anew at a reset only
    sampler.reset()
    assert list(sampler) == first[20:]
    sampler.set_epoch(1)
    assert sorted(sampler) == sorted(first)
    assert list(sampler) != first
    assert list(ElasticSampler(range(5), shuffle=False)) == [0, 1, 2, 3, 4]


def test_a_distributed_sampler_of_all_workers_follows_the_ring(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ring = SimpleNamespace(size=2, logical=0, rank=1)
    monkeypatch.setattr(process, "is_initialized", lambda: True)
    monkeypatch.setattr(process, "current_worker", lambda: ring)
    monkeypatch.setattr(process, "num_processes", lambda: ring.size)
    monkeypatch.setattr(process, "rank", lambda: ring.rank)
    state = elastic.TorchState()
    lengths = []
    followed = DistributedSampler(range(60), num_replicas=2, rank=1, seed=4)
    followed.set_epoch(5)
    loader = DataLoader(range(60), batch_size=5, sampler=followed)
    other = DistributedSampler(range(60), num_replicas=4, rank=1)
    state.register_reset_callbacks([lambda: lengths.append(len(loader))])
    ring.size, ring.rank = 3, 2
    state.on_reset()
    expected = DistributedSampler(range(60), num_replicas=3, rank=2, seed=4)
    expected.set_epoch(5)
    assert list(followed) == list(expected)
    assert (lengths, len(other)) == ([4], 15)
