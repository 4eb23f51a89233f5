"""PyTorch with logical workers on a loopback ring: the same bits in each step, whatever happens."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loopback_tensors import MEMBERS, on_loopback
from scenarios import SEEDS, Change, Fault, Scenario, faults, points, scales, some

from edl.binding.loop import BatchSteps, RandomNumbers
from edl.errors import NewcomerDiffers, UsageError
from edl.events import EventKind, ExactAuditDetails
from edl.job.state_share import WHOLE_STATE, StateShare
from edl.records import JobState
from edl.step.batching import Batching, logical_batching
from edl.step.source import AlignedSource
from edl.testing.counting import CountingBatchSource, CountingModel, Vector
from edl.testing.loopback import LoopbackJob, LoopbackWorker
from edl.torch import logical
from edl.torch.optimizer import listen
from edl.torch.optimizer_state import LastStep
from edl.torch.reduction import GradientReduction, Optimizers
from edl.torch.replica import TorchGenerators

FEWER = settings(max_examples=max(10, settings().max_examples // 2))


@pytest.fixture(autouse=True, scope="module")
def loopback() -> Iterator[None]:
    with on_loopback(logical):
        yield


class OneSeed(TorchGenerators):
    def read(self) -> int:
        return 5


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Linear(5, 7)
        self.norm = torch.nn.BatchNorm1d(7)
        self.drop = torch.nn.Dropout(0.4)
        self.last = torch.nn.Linear(7, 1)
        self.unused = torch.nn.Linear(2, 2)
        torch.nn.init.ones_(self.unused.weight)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.drop(torch.tanh(self.norm(self.first(inputs))))
        found: torch.Tensor = self.last(hidden)
        return found


class NetModel(CountingModel):
    def __init__(self, net: Net) -> None:
        self.net = net
        super().__init__(1)

    @property
    def w(self) -> Vector:
        values = [each.detach().double().flatten() for each in self.net.state_dict().values()]
        return torch.cat(values).numpy()

    @w.setter
    def w(self, values: Vector) -> None:
        if len(values) > 1:  # not that of the constructor
            at = 0
            for each in self.net.state_dict().values():
                part = torch.from_numpy(values[at : at + each.numel()])
                each.copy_(part.view(each.shape).to(each.dtype))
                at += each.numel()

    def capture(self, _share: StateShare = WHOLE_STATE) -> dict[str, Vector]:
        return {"w": self.w.copy()}

    def restore(self, state: object) -> None:
        assert isinstance(state, dict)
        self.w = state["w"]

    def digest(self) -> str:
        return hashlib.sha256(self.w.tobytes()).hexdigest()


@dataclass(frozen=True)
class LogicalNet:
    samples: int = 20
    batch_size: int = 2
    logical: int = 4
    prefetch_batches: int = 0
    exchange_every: int = 0
    epochs: int = 2
    audits: int = 0
    stray: int = -1  # the id of a worker that computes something else
    decay: float = 0.0  # of all weights, also those without a gradient
    passes: int = 1  # backward passes for the batch of a logical worker
    clip: float = 0.0  # each element of the gradients to it, as scripts do after backward()
    steers: bool = False  # counts the rate itself, in each pass of the loop

    def __call__(self, one: LoopbackWorker) -> None:
        worker = one.worker
        MEMBERS[threading.get_ident()] = one.member
        torch.set_num_threads(1)
        batching = logical_batching("the test", Batching(self.batch_size), self.logical)
        ahead = self.prefetch_batches
        worker.attach_source(
            AlignedSource(self.samples, batching, True, 7, ahead, audit_steps=self.audits)
        )
        worker.loader.sampler.rereads = True
        net = Net()
        model = one.model = NetModel(net)
        worker.attach_replica(model)
        sgd = torch.optim.SGD(net.parameters(), lr=0.1, weight_decay=self.decay)
        optimizers = Optimizers(worker)
        if self.decay:
            optimizers.never_none = frozenset(net.parameters())
        listen(sgd, GradientReduction(optimizers, sgd, net, LastStep(), self.passes))
        numbers = RandomNumbers(worker, OneSeed())
        feed = CountingBatchSource(worker, self.prefetch_batches)
        steps = BatchSteps(worker, feed, lambda: "not trained", optimizers.end_batch)
        data = torch.from_numpy(np.random.default_rng(1).normal(size=(self.samples, 5))).float()
        digests: dict[int, str] = {}
        for _ in steps.epochs(self.epochs):
            while steps.begin():
                assert feed.batch is not None
                one.compute(0.1)
                optimizers.begin_piece(numbers)  # the generators are those of all threads
                sgd.zero_grad()
                inputs = data[feed.batch.indices] * (1.0 + (worker.id == self.stray) * 1e-4)
                for part in inputs.split(-(-self.batch_size // self.passes)):
                    (net(part).square().sum() / len(inputs)).backward()
                if self.clip:
                    torch.nn.utils.clip_grad_value_(net.parameters(), self.clip)
                    for layer in (net.first, net.last):
                        layer.weight.grad.data.mul_(0.5)
                sgd.param_groups[0]["lr"] -= 1e-4 * self.steers
                sgd.step()
                if worker.warming_up or worker.loader.open:  # between two logical workers
                    continue
                digests[worker.step] = model.digest()
                self.check_unused(net.unused, worker.step)
                if self.exchange_every and worker.step % self.exchange_every == 0:
                    worker.exchange([worker.id])
        one.result = digests

    def check_unused(self, layer: torch.nn.Linear, steps: int) -> None:
        alone = torch.nn.Parameter(torch.tensor(1.0))
        sgd = torch.optim.SGD([alone], lr=0.1, weight_decay=self.decay)
        alone.grad = torch.tensor(0.0)
        for _ in range(steps):
            sgd.step()
        assert layer.weight.tolist() == [[alone.item()] * 2] * 2

    def prove(self, results: Mapping[int, dict[int, str]]) -> None:
        expected = undisturbed(self)
        assert results
        for worker, digests in results.items():
            assert digests.items() <= expected.items(), f"w{worker} has other bits"
            assert max(digests) == max(expected), f"w{worker} made another number of steps"


@cache
def undisturbed(script: LogicalNet) -> dict[int, str]:
    seen: dict[int, str] = {}

    class Alone(type(script)):  # type: ignore[misc]
        def prove(self, results: Mapping[int, dict[int, str]]) -> None:
            seen.update(results[0])

    Scenario(np=1, max_np=1, script=Alone(**vars(script))).run()
    steps = script.epochs * -(-script.samples // (script.batch_size * script.logical))
    assert len(set(seen.values())) == len(seen) == steps  # each step changes something
    return seen


@pytest.mark.parametrize("size", [2, 3, 4])
def test_any_number_of_workers(size: int) -> None:
    for workers in (1, 4, 8):  # 5 samples of a batch of 4 * 3, and a last one of 1
        Scenario(np=size, script=LogicalNet(29, 3, workers)).run()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_parameter_without_a_gradient_gets_zeros_as_under_horovod(size: int) -> None:
    Scenario(np=size, script=LogicalNet(29, 3, 4, decay=0.1)).run()


@pytest.mark.parametrize("size", [1, 3])
def test_a_batch_in_several_backward_passes(size: int) -> None:
    """28 samples: the last batch of an epoch has 4 of 6 samples, and so a pass less."""
    Scenario(np=size, script=LogicalNet(28, 6, 4, passes=3)).run()


@pytest.mark.parametrize("size", [1, 3])
def test_gradients_that_the_script_changes_after_backward(size: int) -> None:
    """In a pass before the update they are zeros, and what the script makes of them is dropped."""
    clipped = LogicalNet(29, 3, 4, clip=1e-3)
    Scenario(np=size, script=clipped).run()
    assert undisturbed(clipped) != undisturbed(LogicalNet(29, 3, 4))


@pytest.mark.parametrize("size", [1, 4])
def test_a_rate_that_the_script_changes_in_each_pass_is_refused(size: int) -> None:
    """Where each logical worker has a process, passes are steps."""
    job: LoopbackJob[dict[int, str]] = LoopbackJob(
        LogicalNet(steers=True), np=size, max_np=size, logical=4
    )
    job.run()
    if size == 4:
        assert job.memory.job.state is JobState.FINISHED, job.describe()
    else:
        assert isinstance(error := job.errors[0], UsageError)
        assert "in step 1 the learning rate was 0.0999 in one pass" in str(error)


def test_steps_that_are_audited() -> None:
    """Each logical worker is trained by two workers; an epoch's last batch has two of them."""
    done = Scenario(np=3, script=LogicalNet(29, 3, 4, audits=4)).run()
    audits = [one.details for one in done.memory.events if one.kind is EventKind.EXACT_AUDIT]
    assert audits == [ExactAuditDetails(*each) for each in ((1, 4, 4), (2, 6, 6), (1, 4, 4))]
    alone = Scenario(np=1, max_np=1, script=LogicalNet(29, 3, 4, audits=2)).run()
    audits = [one.details for one in alone.memory.events if one.kind is EventKind.EXACT_AUDIT]
    assert audits == [ExactAuditDetails(1, 4, 0), ExactAuditDetails(1, 4, 0)]


def test_an_audit_ends_a_job_whose_result_depends_on_the_worker() -> None:
    job: LoopbackJob[dict[int, str]] = LoopbackJob(LogicalNet(audits=1, stray=1), np=2, logical=4)
    job.run()
    assert job.memory.job.state is JobState.FAILED
    why = "step 1, logical worker 0: w0 and w1 have computed different values of the gradient of"
    assert why in job.memory.job.reason


@pytest.mark.parametrize("np", [1, 2])
def test_a_newcomer_whose_result_differs_ends_alone(np: int) -> None:
    """The others train its logical workers in the same step, and go on as without it."""
    script = LogicalNet(audits=2, stray=np, epochs=4)
    job: LoopbackJob[dict[int, str]] = LoopbackJob(script, np=np, max_np=6, logical=script.logical)
    job.after_step(3, lambda job: job.scale({"a": np + 1}))
    job.run()
    assert job.memory.job.state is JobState.FINISHED, job.describe()
    assert job.errors.keys() == {np}
    assert isinstance(job.errors[np], NewcomerDiffers)
    assert f"w{np}" in str(job.errors[np])
    script.prove(job.results)


@FEWER
@given(
    seed=SEEDS,
    np=st.integers(1, 4),
    prefetch=st.integers(0, 2),
    exchange_every=st.integers(0, 2),
    audits=st.sampled_from([0, 1, 100]),
    decay_passes_clip=st.sampled_from(
        [(0.0, 1, 0.0), (0.1, 1, 0.0), (0.0, 2, 0.01), (0.1, 2, 0.0)]
    ),
    changes=some(scales(), 0, 3),
    deaths=some(faults("kill", "cut", "fail", "freeze"), 0, 3),
)
def test_through_joins_and_deaths(
    seed: int,
    np: int,
    prefetch: int,
    exchange_every: int,
    audits: int,
    decay_passes_clip: tuple[float, int, float],
    changes: tuple[Change, ...],
    deaths: tuple[Fault, ...],
) -> None:
    decay, passes, clip = decay_passes_clip
    script = LogicalNet(
        20 * passes,
        2 * passes,
        prefetch_batches=prefetch,
        exchange_every=exchange_every,
        audits=audits,
        decay=decay,
        passes=passes,
        clip=clip,
    )
    Scenario(seed, np, 1, 5, script, deaths, changes).run()


@pytest.mark.parametrize("point", points(1, 100, 5))
def test_a_death_at_each_point(point: int) -> None:
    for worker in range(3):
        passes = 1 + point // 2 % 2
        script = LogicalNet(20 * passes, 2 * passes, audits=100 * (point % 2), passes=passes)
        scenario = Scenario(point % 2, script=script, faults=(Fault(worker, point, "kill"),))
        assert scenario.run().memory.job.state is JobState.FINISHED


@pytest.mark.parametrize("point", points(1, 70, 6))
def test_a_death_before_a_short_last_microbatch(point: int) -> None:
    """23 samples of 8 logical workers with 3 each: a step has all, and the last one has 2."""
    script = LogicalNet(23, 3, 8, exchange_every=1, epochs=3)
    for worker in range(3):
        scenario = Scenario(point % 2, script=script, faults=(Fault(worker, point, "kill"),))
        assert scenario.run().memory.job.state is JobState.FINISHED
