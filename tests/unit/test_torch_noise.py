"""What PyTorch's gradients say of their noise: squared norms, worked out by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_torch_reduction import BATCH, Job, Worker, ones

from edl.torch import reduction as noise_module


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Worker:
    found = Worker(monkeypatch)
    found.measures_noise = True
    return found


def test_the_own_gradient_and_that_of_the_job(worker: Worker) -> None:
    # Own (2, 4): 20; of the job ((2 + 8) / 2, (4 + 0) / 2) = (5, 2): 29.
    job = Job(worker, "a", "b")
    worker.begin(present=ones(1, 1), a=ones(8), b=ones(0))
    (2 * job.a + 4 * job.b).backward()
    assert worker.squares == [(pytest.approx(20.0), pytest.approx(29.0))]


def test_only_where_it_is_due_and_has_samples(worker: Worker) -> None:
    job = Job(worker, "a")
    worker.begin(samples=0, present=ones(1), a=ones(8))
    (2 * job.a).backward()
    job.step()
    worker.measures_noise = False
    worker.begin(present=ones(1), a=ones(8))
    job.sgd.zero_grad()
    (2 * job.a).backward()
    assert worker.squares == []


def test_sums_of_batches_are_means_over_their_samples(worker: Worker) -> None:
    # Of 2 samples with slope 3 and one with 9, each loss over 2: (2 * 3 + 1 * 9) / 3 = 5.
    job = Job(worker, "a")
    for samples, slope in ((BATCH, 3.0), (1, 9.0)):
        worker.begin(samples)
        with job.reduction.accumulation.no_sync():
            (slope * job.a / 2).backward()
    job.step()
    ((own, _),) = worker.squares
    assert own == pytest.approx(25.0)


def test_what_a_scaler_has_multiplied_by_is_taken_out(worker: Worker) -> None:
    job = Job(worker, "a")
    job.optimizers.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    worker.begin(present=ones(1), a=ones(0))
    (8.0 * 3.0 * job.a).backward()
    assert worker.squares == [(pytest.approx(9.0), pytest.approx(2.25))]


def test_one_that_is_alone_compares_two_steps(worker: Worker) -> None:
    # 3 and then 1, of as many samples: mean square (9 + 1) / 2, of their mean ((3 + 1) / 2)^2.
    worker.ring.alone = True
    job = Job(worker, "a")
    for slope in (3.0, 1.0):
        worker.begin()
        job.sgd.zero_grad()
        (slope * job.a).backward()
        job.step()
        worker.step += 1
    assert worker.squares == [(5.0, 4.0)]


@pytest.mark.parametrize("second", ["later", "with fewer samples"])
def test_two_steps_that_cannot_be_compared(second: str, worker: Worker) -> None:
    worker.ring.alone = True
    job = Job(worker, "a")
    worker.begin()
    (3.0 * job.a).backward()
    job.step()
    worker.step += 2 if second == "later" else 1
    worker.begin(BATCH if second == "later" else 1)
    job.sgd.zero_grad()
    job.a.backward()
    assert worker.squares == []


def test_of_adam_it_is_what_adam_makes_of_a_gradient(worker: Worker) -> None:
    # After 5 steps v / (1 - beta2^5) is 4: 6 / (2 + eps) is 3, and (6 + 0) / 2 / 2 is 1.5.
    job = Job(worker, "a")
    adam = torch.optim.Adam(job.model.parameters(), betas=(0.9, 0.5), eps=0.0)
    meter: Any = noise_module.TorchNoise(worker, adam, lambda: 1.0)  # type: ignore[arg-type]
    state = adam.state[job.a]
    state["exp_avg_sq"], state["step"] = ones(4.0)[0] * (1 - 0.5**5), torch.tensor(5.0)
    job.reduction._noise = meter
    worker.begin(present=ones(1), a=ones(0))
    (6.0 * job.a).backward()
    assert worker.squares == [(pytest.approx(9.0), pytest.approx(2.25))]
    state["step"] = torch.tensor(4.0)
    job.step()
    worker.begin(present=ones(1), a=ones(0))
    job.sgd.zero_grad()
    (6.0 * job.a).backward()
    assert worker.squares[-1] == (pytest.approx(36.0), pytest.approx(9.0)), "too young"


def test_one_that_was_alone_is_joined_between_two_steps(worker: Worker) -> None:
    """What Adam divides by is of the same part of a gradient as the gradients are."""
    worker.ring.alone = True
    model = torch.nn.Linear(4100, 1, bias=False)
    adam = torch.optim.Adam(model.parameters())
    (parameter,) = adam.param_groups[0]["params"]
    adam.state[parameter] = {"exp_avg_sq": torch.ones_like(parameter), "step": torch.tensor(5.0)}
    worker.turn = lambda step: step  # type: ignore[attr-defined]
    meter: Any = noise_module.TorchNoise(worker, adam, lambda: 1.0)  # type: ignore[arg-type]
    gradient: Any = SimpleNamespace(parameter=parameter)
    parameter.grad = torch.ones_like(parameter)
    worker.begin()
    meter.show_own([gradient])
    worker.ring.alone, worker.step = False, worker.step + 1
    worker.begin()
    meter.show_reduced([(gradient, parameter.grad)])
    assert len(worker.squares) == 1


def test_an_optimizer_that_keeps_squares_of_something_else(worker: Worker) -> None:
    job = Job(worker, "a")
    state = job.sgd.state[job.a]
    state["exp_avg_sq"], state["step"] = torch.ones(3), torch.tensor(9.0)
    worker.begin(present=ones(1), a=ones(0))
    (6.0 * job.a).backward()
    assert worker.squares == [(pytest.approx(36.0), pytest.approx(9.0))]
