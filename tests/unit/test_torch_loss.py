"""Losses that are no mean over the samples are named, once; others are not."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F

from edl.torch.loss_check import CHECKS, LossCheck
from edl.worker.worker import Worker

N, T, C = 6, 10, 5
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    weights = torch.nn.Parameter(torch.randn(C, C))
    for longest in (T, 4):
        labels = torch.randint(0, C, (N, T))
        for row, length in enumerate(torch.randint(1, longest, (N,))):
            labels[row, int(length) :] = -100
        yield torch.randn(N, T, C) @ weights, labels


def worker(**differs: Any) -> Worker:
    loader = SimpleNamespace(open=True, batch_weight=N)
    one = {"is_shared": True, "warming_up": False, "rank": 0, "loader": loader, **differs}
    return cast(Worker, SimpleNamespace(**one))


def said(loss: Loss) -> str:
    look = LossCheck(worker())
    found = [look.why_no_mean(loss(scores, labels), N) for scores, labels in batches()]
    return " ".join(filter(None, found))


def each(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(scores.transpose(1, 2), labels, reduction="none")


def flat(scores: torch.Tensor, labels: torch.Tensor, **options: Any) -> torch.Tensor:
    return F.cross_entropy(scores.flatten(0, 1), labels.flatten(), **options)


def vae(scores: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    reconstruction = F.mse_loss(scores, torch.zeros_like(scores), reduction="sum")
    return reconstruction - 0.5 * torch.sum(1 + scores - scores.exp())


MASKED: dict[str, Loss] = {
    "ignore_index": flat,
    "of rows": lambda s, y: F.cross_entropy(s.transpose(1, 2), y),
    "scaled": lambda s, y: flat(s, y) / 4 * 65536.0,
    "sum by tokens": lambda s, y: flat(s, y, reduction="sum") / (y >= 0).sum(),
    "masked sum": lambda s, y: (each(s, y) * (y >= 0)).sum() / (y >= 0).sum(),
    "selected": lambda s, y: each(s, y)[y >= 0].mean(),
    "selected before": lambda s, y: F.cross_entropy(s[y >= 0], y[y >= 0]),
    "selected squares": lambda s, y: F.mse_loss(s[y >= 0], torch.zeros_like(s[y >= 0])),
    "class weights": lambda s, y: F.cross_entropy(
        s[:, 0], y[:, 0], weight=torch.arange(1.0, C + 1)
    ),
    "beside another": lambda s, y: s.pow(2).mean() + flat(s, y),
    "label smoothing": lambda s, y: flat(s, y, label_smoothing=0.1),
}
SUMS: dict[str, Loss] = {
    "sum": lambda s, _: s.sum(),
    "cross entropy": lambda s, y: F.cross_entropy(s[:, 0], y[:, 0], reduction="sum"),
    "vae": vae,
    "halved": lambda s, _: 0.5 * F.mse_loss(s, torch.zeros_like(s), reduction="sum"),
}
MEANS: dict[str, Loss] = {
    "mean": lambda s, _: s.pow(2).mean(),
    "cross entropy": lambda s, y: F.cross_entropy(s[:, 0], y[:, 0]),
    "sum by samples": lambda s, _: s.sum() / len(s),
    "times": lambda s, _: s.sum() * (1 / N),
    "of samples": lambda s, y: (each(s, y).sum(1) / (y >= 0).sum(1)).mean(),
    "constant": lambda s, y: flat(s, y, reduction="sum") / (len(s) * 4.5),
    "class weights": lambda s, y: F.cross_entropy(
        s[:, 0], y[:, 0], weight=torch.arange(1.0, C + 1), reduction="none"
    ).mean(),
    "accumulated": lambda s, _: F.mse_loss(s, torch.zeros_like(s)) / 4,
    "list": lambda s, _: torch.stack([s.mean(), s.pow(2).mean()]).sum(),
    "double": lambda s, _: s.double().mean(),
    "annealed": lambda s, y: s.pow(2).mean() * 0.01 * float((y >= 0).sum()),
    "annealed sum": lambda s, y: s.pow(2).sum() / len(s) * (0.01 * float((y >= 0).sum())),
    "label smoothing": lambda s, y: F.cross_entropy(s[:, 0], y[:, 0], label_smoothing=0.1),
    "soft targets": lambda s, _: F.cross_entropy(s[:, 0], torch.full((N, C), 1 / C)),
    "learned divisor": lambda s, _: s.sum() / len(s) / s.exp().sum() + s.mean(),
    "entropy of the mean": lambda s, _: s[:, :N, 0].mean(0).pow(2).sum(),
}


@pytest.mark.parametrize("name", MASKED)
def test_a_mean_over_what_is_not_masked_is_named(name: str) -> None:
    why = said(MASKED[name])
    assert " in a batch of 6 samples and over " in why
    assert "times a constant, such as" in why


@pytest.mark.parametrize("name", SUMS)
def test_a_sum_is_named(name: str) -> None:
    assert "is a sum over the 6 samples" in said(SUMS[name])


@pytest.mark.parametrize("name", MEANS)
def test_a_mean_over_the_samples_is_not(name: str) -> None:
    assert not said(MEANS[name])


def test_a_penalty_on_the_weights_is_not() -> None:
    weights = torch.nn.Parameter(torch.randn(N, C))
    penalties = (weights.pow(2).sum(), weights.abs().sum(), (weights * weights).sum())
    of_bayes = (F.softplus(weights).pow(2) + weights.pow(2) - F.softplus(weights).log()).sum()
    of_all = torch.cat([weights.view(-1), weights.view(-1)]).abs().sum()
    for penalty in (*penalties, weights[0].abs().mean(), of_bayes, of_all):
        for factor in (0.01, 2.0):
            look = LossCheck(worker())
            for scores, _ in batches():
                assert look.why_no_mean(scores.mean() + factor * penalty, N) is None


class Sum(torch.autograd.Function):
    """A function of a script's own: its node has a name of PyTorch's and keeps nothing."""

    @staticmethod
    def forward(context: Any, entries: torch.Tensor) -> torch.Tensor:
        context.shape = entries.shape
        return entries.sum()

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0].expand(context.shape)


def test_a_graph_that_cannot_be_read_does_not_end_a_step(
    plain: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    LossCheck(worker()).begin()
    scores = torch.nn.Parameter(torch.ones(N))
    Sum.apply(scores).backward()  # type: ignore[no-untyped-call]
    assert scores.grad is not None
    assert torch.equal(scores.grad, torch.ones(N))
    assert torch.autograd.backward is plain
    assert not caplog.records


@pytest.fixture
def plain() -> Iterator[Callable[..., None]]:
    before = torch.autograd.backward
    yield before
    torch.autograd.backward = before


def test_one_warning_on_rank_0_and_then_pytorchs_own_function(
    plain: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    for differs, warnings in (({}, 1), ({"rank": 1}, 0), ({"warming_up": True}, 0)):
        caplog.clear()
        torch.autograd.backward = plain
        LossCheck(worker(**differs)).begin()
        with caplog.at_level(logging.WARNING):
            for scores, labels in (*batches(), *batches()):
                flat(scores, labels).backward()
        assert len(caplog.records) == warnings
        assert (torch.autograd.backward is plain) == bool(warnings)


def test_a_mean_is_looked_at_a_few_times_only(plain: Callable[..., None]) -> None:
    LossCheck(worker()).begin()
    scores = torch.nn.Parameter(torch.ones(N))
    for _ in range(CHECKS):
        assert torch.autograd.backward is not plain
        scores.mean().backward()
    assert torch.autograd.backward is plain
    assert torch.allclose(scores.grad if scores.grad is not None else scores, scores * CHECKS / N)


def test_a_job_of_one_is_not_looked_at(plain: Callable[..., None]) -> None:
    LossCheck(worker(is_shared=False)).begin()
    assert torch.autograd.backward is plain
