"""SyncBatchNorm over the samples of all workers, beside one process that has the whole batch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import edl.torch as edl
from edl.step.moments import Moments, combined, weighted_sum
from edl.torch import sync_batch_norm
from edl.torch.sync_batch_norm import _Normalise, _track


class Ring:
    def __init__(self, size: int) -> None:
        self._barrier = threading.Barrier(size, timeout=60)
        self._sent = [b""] * size

    def of(self, rank: int) -> Callable[[bytes], list[bytes]]:
        def exchange(payload: bytes) -> list[bytes]:
            self._sent[rank] = payload
            self._barrier.wait()
            answer = [*self._sent]
            self._barrier.wait()
            return answer

        return exchange


def in_threads(acts: Sequence[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=act) for act in acts]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)


def layer(kind: torch.dtype = torch.float64, **options: object) -> nn.SyncBatchNorm:
    torch.manual_seed(1)
    made = nn.SyncBatchNorm(3, **options).to(kind)
    if made.affine:
        with torch.no_grad():
            made.weight.uniform_(0.5, 2.0)
            made.bias.uniform_(-1.0, 1.0)
    return made


@pytest.mark.parametrize("options", [{}, {"affine": False}, {"momentum": None}])
@pytest.mark.parametrize("sizes", [(4, 4), (5, 2, 3), (4, 0, 1)])
@pytest.mark.parametrize("extent", [(), (6,), (3, 2)], ids=["1d", "2d", "3d"])
def test_workers_together_compute_what_one_does(sizes, extent, options) -> None:
    torch.manual_seed(0)
    x = torch.randn(sum(sizes), 3, *extent, dtype=torch.float64) * 3.0 + 100.0
    y = torch.randn_like(x)

    # One process: plain batch normalisation of the whole batch.
    whole = {1: nn.BatchNorm1d, 2: nn.BatchNorm1d, 3: nn.BatchNorm2d}[max(1, len(extent) + 1)]
    alone = whole(3, **options).double()
    alone.load_state_dict(layer(**options).state_dict())
    inputs = x.clone().requires_grad_()
    outputs = alone(inputs)
    F.mse_loss(outputs, y).backward()

    ring, done = Ring(len(sizes)), [False] * len(sizes)
    layers = [layer(**options) for _ in sizes]
    parts = [each.clone() for each in torch.split(x, list(sizes))]
    targets = torch.split(y, list(sizes))
    results: list[torch.Tensor] = [torch.empty(0)] * len(sizes)

    def worker(rank: int) -> Callable[[], None]:
        def act() -> None:
            mine, goal = parts[rank], targets[rank]
            if sizes[rank] == 0:  # padding: a batch that counts for nothing
                mine, goal = x[:2] * 7.0, y[:2]
            parts[rank] = mine = mine.detach().requires_grad_()
            made = layers[rank]
            results[rank], moments = _Normalise.apply(
                mine, made.weight, made.bias, made.eps, sizes[rank], ring.of(rank)
            )
            _track(made, moments)
            F.mse_loss(results[rank], goal).backward()
            done[rank] = True

        return act

    in_threads([worker(rank) for rank in range(len(sizes))])
    assert all(done)
    shares = [n / sum(sizes) for n in sizes]
    some = [rank for rank, n in enumerate(sizes) if n]
    assert torch.allclose(torch.cat([results[rank] for rank in some]), outputs)
    gradients = [parts[rank].grad * shares[rank] for rank in some]
    assert torch.allclose(torch.cat(gradients), inputs.grad, atol=1e-12)
    assert all(part.grad.isfinite().all() for part in parts)
    for name, parameter in alone.named_parameters():
        theirs = [
            share * dict(made.named_parameters())[name].grad
            for share, made in zip(shares, layers, strict=True)
        ]
        assert torch.allclose(sum(theirs), parameter.grad)
    for made in layers:
        assert torch.allclose(made.running_mean, alone.running_mean)
        assert torch.allclose(made.running_var, alone.running_var)
        assert made.num_batches_tracked == 1


def test_half_precision_is_normalised_in_float32() -> None:
    made = layer(torch.bfloat16)
    x = torch.randn(8, 3, dtype=torch.bfloat16, requires_grad=True)
    outputs, _ = _Normalise.apply(x, made.weight, made.bias, made.eps, 8, lambda sent: [sent])
    outputs.float().sum().backward()
    assert (outputs.dtype, x.grad.dtype) == (torch.bfloat16, torch.bfloat16)
    expected = F.batch_norm(x, None, None, made.weight, made.bias, training=True, eps=made.eps)
    assert torch.allclose(outputs.float(), expected.float(), atol=0.05)


def test_one_value_a_channel_is_refused_as_by_pytorch() -> None:
    x = torch.randn(1, 3)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        _Normalise.apply(x, None, None, 1e-5, 1, lambda sent: [sent])


def test_moments_are_combined_without_loss() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(1e6, 1.0, size=(40, 2))
    parts = [values[:7], values[7:8], values[8:]]
    moments = [Moments(len(p), p.mean(0), ((p - p.mean(0)) ** 2).sum(0)) for p in parts]
    whole = combined([Moments.decode(each.encode()) for each in moments])
    assert whole.elements == 40
    assert np.allclose(whole.mean, values.mean(0), rtol=1e-14)
    assert np.allclose(whole.variance, values.var(0), rtol=1e-9)
    nothing = Moments(0.0, np.full(2, np.nan), np.full(2, np.nan))
    assert combined([nothing, moments[0]]).elements == 7
    rows = [np.array([2.0, 1.0, 3.0]), np.array([0.0, np.nan, np.inf])]
    assert weighted_sum([row.tobytes() for row in rows]).tolist() == [2.0, 6.0]


@pytest.mark.parametrize("kind", [nn.SyncBatchNorm, edl.SyncBatchNorm], ids=["torch", "horovod"])
def test_without_other_workers_it_is_a_local_layer(kind, monkeypatch) -> None:
    monkeypatch.setattr(sync_batch_norm, "is_initialized", lambda: True)
    worker = SimpleNamespace(steps="the loader's", script="the script's")
    monkeypatch.setattr(sync_batch_norm, "current_worker", lambda: worker)
    x = torch.randn(6, 3, 4)
    made, plain = kind(3), nn.BatchNorm1d(3)
    assert torch.equal(made(x), plain(x))
    assert torch.equal(made.running_mean, plain.running_mean)
    made.eval(), plain.eval()
    assert torch.equal(made(x), plain(x))


def test_a_batch_of_padding_on_all_workers_leaves_no_trace() -> None:
    made = layer()
    x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    outputs, moments = _Normalise.apply(
        x, made.weight, made.bias, made.eps, 0, lambda sent: [sent, sent]
    )
    outputs.sum().backward()
    _track(made, moments)
    assert x.grad.isfinite().all()
    assert made.running_mean.tolist() == [0.0] * 3
    assert made.running_var.tolist() == [1.0] * 3
    assert made.num_batches_tracked == 0


@pytest.mark.parametrize("kind", [nn.SyncBatchNorm, edl.SyncBatchNorm], ids=["torch", "horovod"])
def test_in_a_script_with_an_elastic_state_all_workers_count_alike(kind, monkeypatch) -> None:
    """As Horovod's optimizer has it: the job's loss is the mean of the workers' losses."""
    torch.manual_seed(0)
    sizes = (4, 2)
    x, y = (torch.randn(6, 3, dtype=torch.float64) for _ in range(2))
    alone, inputs = nn.BatchNorm1d(3).double(), x.clone().requires_grad_()
    losses = torch.split((alone(inputs) - y) ** 2, list(sizes))
    (sum(each.mean() for each in losses) / 2).backward()

    ring, workers = Ring(2), threading.local()
    monkeypatch.setattr(sync_batch_norm, "is_initialized", lambda: True)
    monkeypatch.setattr(sync_batch_norm, "current_worker", lambda: workers.current)
    layers = [kind(3).double() for _ in sizes]
    parts = [each.clone().requires_grad_() for each in torch.split(x, list(sizes))]

    def worker(rank: int) -> Callable[[], None]:
        def act() -> None:
            script = SimpleNamespace(exchange=ring.of(rank))
            workers.current = SimpleNamespace(
                steps=script, script=script, warming_up=False, ring=SimpleNamespace(alone=False)
            )
            goal = torch.split(y, list(sizes))[rank]
            F.mse_loss(layers[rank](parts[rank]), goal).backward()

        return act

    monkeypatch.setattr("edl.torch.api._of_this_job", lambda: None)
    in_threads([worker(0), worker(1)])
    assert torch.allclose(torch.cat([part.grad / 2 for part in parts]), inputs.grad)
    for made in layers:
        assert torch.allclose(made.running_mean, alone.running_mean)
        assert torch.allclose(made.running_var, alone.running_var)
