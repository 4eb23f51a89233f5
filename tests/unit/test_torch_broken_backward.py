"""An exception out of ``backward()`` that the script handles, such as out of memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_torch_optimizers import Script, refused, run
from test_torch_reduction import Job, Worker, ones
from torch.utils.checkpoint import checkpoint

from edl.errors import UsageError
from edl.torch.gradients import PRESENT, BackwardEnd
from edl.torch.reduction import Optimizers

Tensor = torch.Tensor


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, error: BaseException) -> Tensor:
        ctx.error = error
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        raise ctx.error


ERRORS = [torch.OutOfMemoryError("no memory"), AssertionError("odd"), KeyboardInterrupt()]


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Worker:
    return Worker(monkeypatch)


def fail(job: Job, error: BaseException = ERRORS[0]) -> None:
    first = Fails.apply(2 * job.a, error)
    loss = 4 * job.b + first
    with pytest.raises(type(error)):
        loss.backward()


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_update_without_the_batch_is_that_of_the_others(
    error: BaseException, worker: Worker
) -> None:
    job = Job(worker, "a", "b")
    worker.begin(present=ones(1, 1), a=ones(8), b=ones(6))
    fail(job, error)
    assert worker.sent == ["edl.gradient.b"], "it was on its way already"
    job.sgd.zero_grad()
    job.step()
    again = [PRESENT, "edl.gradient.a", "edl.gradient.b"]
    assert worker.sent == ["edl.gradient.b", PRESENT, "edl.gradient.a", *again]
    assert job.gradients() == {"a": 4.0, "b": 3.0}, "as if its backward() had computed nothing"
    worker.begin(present=ones(1, 1), a=ones(8), b=ones(6))
    job.sgd.zero_grad()
    (2 * job.a + 4 * job.b).backward()
    assert job.gradients() == {"a": 5.0, "b": 5.0}, "the next step is like any other"


def test_the_others_send_theirs_once_more(worker: Worker) -> None:
    job = Job(worker, "a", "b")
    worker.other_is_void = True
    worker.begin(present=ones(0, 1), b=ones(0))
    (2 * job.a + 4 * job.b).backward()
    one = {"edl.gradient.a", "edl.gradient.b"}
    assert [set(worker.sent[:2]), *worker.sent[2:]] == [one, PRESENT, PRESENT, *worker.sent[4:]]
    assert set(worker.sent[4:]) == one
    assert job.gradients() == {"a": 1.0, "b": 2.0}


@pytest.mark.parametrize("zeroes", [True, False], ids=["zero_grad", "none"])
def test_a_gradient_that_only_it_has_sent_and_forgets(zeroes: bool, worker: Worker) -> None:
    job = Job(worker, "a", "b")
    worker.begin(present=ones(1, 0), a=ones(8))
    fail(job)
    if zeroes:
        job.sgd.zero_grad()
    job.step()
    # Without zero_grad() what backward() has left is a gradient, as in PyTorch alone.
    assert job.gradients() == {"a": 4.0, "b": None if zeroes else 2.0}


def test_the_batch_may_be_tried_again(worker: Worker) -> None:
    job = Job(worker, "a", "b")
    worker.begin(present=ones(1, 1), a=ones(8), b=ones(0))
    fail(job)
    fail(job)
    job.sgd.zero_grad()
    (2 * job.a + 4 * job.b).backward()
    assert job.gradients() == {"a": 5.0, "b": 2.0}
    job.step()


def test_a_batch_in_two_halves_after_it_was_too_large(worker: Worker) -> None:
    job = Job(worker, "a", "b")
    worker.begin(present=ones(1, 1), a=ones(8), b=ones(0))
    fail(job)
    job.sgd.zero_grad()
    with job.optimizers.no_sync():
        (job.a + 2 * job.b).backward()
    (job.a + 2 * job.b).backward()
    assert job.gradients() == {"a": 5.0, "b": 2.0}


def test_gradients_may_be_clipped_in_the_handler(worker: Worker) -> None:
    job = Job(worker, "a", "b")
    worker.begin(present=ones(1, 1), a=ones(6), b=ones(8))
    fail(job)
    job.sgd.zero_grad()
    job.reduction.synchronize()
    torch.nn.utils.clip_grad_norm_(job.model.parameters(), 2.5)
    job.step()
    assert job.gradients() == pytest.approx({"a": 1.5, "b": 2.0}, rel=1e-5)


def test_the_ring_breaks_in_the_step_of_a_failed_pass(worker: Worker) -> None:
    job = Job(worker, "a", "b")
    worker.begin(present=ones(1, 1), a=ones(8), b=ones(6))
    fail(job)
    worker.breaks = [lambda: False]
    job.sgd.zero_grad()
    job.step()
    assert worker.sent == [PRESENT, "edl.gradient.a", "edl.gradient.b"], "nothing of it is void"
    assert job.gradients() == {"a": 4.0, "b": 3.0}


@pytest.mark.parametrize("end", [Optimizers.end_batch, Optimizers.skip], ids=["next", "notify"])
def test_a_batch_that_is_left_so_is_refused(
    end: Callable[[Optimizers], None], worker: Worker
) -> None:
    job = Job(worker, "a", "b")
    worker.begin(present=ones(1, 1))
    fail(job)
    job.sgd.zero_grad()
    with pytest.raises(UsageError, match=r"zero_grad\(\) and optimizer\.step\(\)"):
        end(job.optimizers)


def test_one_of_the_batches_that_are_added_up_fails_and_is_left_out(worker: Worker) -> None:
    job = Job(worker, "a", "b")
    worker.begin(present=ones(1, 1), a=ones(0), b=ones(0))
    with job.optimizers.no_sync():
        fail(job)
        job.sgd.zero_grad()
        assert job.optimizers.leave_out()
    job.optimizers.end_batch()
    worker.begin(present=ones(1, 1), a=ones(0), b=ones(0))
    (2 * job.a + 4 * job.b).backward()
    job.optimizers.end_batch()
    assert worker.sent.count("edl.gradient.b") == 1, "nothing was on its way"


def test_nothing_was_computed_yet(worker: Worker) -> None:
    job = Job(worker, "a", "b")
    worker.begin(present=ones(1, 1), a=ones(8), b=ones(6))
    with pytest.raises(torch.OutOfMemoryError):
        Fails.apply(job.a + job.b, ERRORS[0]).backward()
    job.step()
    assert worker.sent[0] == PRESENT
    assert job.gradients() == {"a": 4.0, "b": 3.0}


def test_two_optimizers_whose_common_pass_fails() -> None:
    def script(one: Script) -> None:
        for x in one.batches():
            first = Fails.apply(one.loss(0, x), ERRORS[0])
            with pytest.raises(torch.OutOfMemoryError):
                (one.loss(1, x) + first).backward()
            before = [net.weight.clone() for net in one.nets]
            for sgd in one.sgd:
                sgd.zero_grad()
            for sgd in one.sgd:
                sgd.step()
            assert all(map(torch.equal, before, (net.weight for net in one.nets)))

    run(script)


def test_two_optimizers_of_which_one_is_left_in_a_failed_pass() -> None:
    def script(one: Script) -> None:
        for x in one.batches():
            first = Fails.apply(one.loss(0, x), ERRORS[0])
            with pytest.raises(torch.OutOfMemoryError):
                (one.loss(1, x) + first).backward()

    refused(script, "raised an exception in this batch")


def test_a_pass_within_a_pass_is_no_failed_one() -> None:
    ended: list[bool] = []
    end = BackwardEnd(lambda: ended.append(end.failed))
    weight = torch.nn.Parameter(torch.ones(2))
    weight.register_post_accumulate_grad_hook(lambda _: end.expect())

    def part(x: Tensor) -> Tensor:
        return x * weight

    x = torch.ones(2, requires_grad=True)
    checkpoint(part, x, use_reentrant=True).sum().backward()
    assert ended == [False]
    with pytest.raises(torch.OutOfMemoryError):
        checkpoint(
            lambda x: part(Fails.apply(x, ERRORS[0])), x, use_reentrant=True
        ).sum().backward()
    assert (ended, end.failed) == ([False], True)


def test_a_ring_that_breaks_is_no_failed_pass(worker: Worker) -> None:
    job = Job(worker, "a", "b")
    worker.begin(present=ones(1, 1), a=ones(8), b=ones(6))
    worker.breaks = [lambda: False]
    (2 * job.a + 4 * job.b).backward()
    assert not job.optimizers.backward_end.failed


class ShortOfMemory(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        raise ERRORS[0]


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("ends", [False, True], ids=["next", "notify"])
def test_an_update_that_fails_is_no_skipped_one(ends: bool, count: int) -> None:
    def script(one: Script) -> None:
        short = one.wrap([torch.nn.Parameter(torch.ones(1, 2))], kind=ShortOfMemory)
        (weight,) = short.param_groups[0]["params"]
        for x in one.batches():
            loss = (weight * x).square().sum() + sum(one.loss(n, x) for n in range(count - 1))
            loss.backward()
            for each in one.sgd:
                each.step()
            with pytest.raises(torch.OutOfMemoryError):
                short.step()
            short.zero_grad()
            if ends:
                one.optimizers.skip()

    refused(script, "optimizer.step() raised an exception in this batch", count - 1)


def test_an_update_that_fails_may_be_made_again() -> None:
    def script(one: Script) -> None:
        fails = [True, False, False]
        (sgd,) = one.sgd

        def fail_once(*_: Any) -> None:
            if fails.pop(0):
                raise ERRORS[0]

        sgd.register_step_pre_hook(fail_once)
        for x in one.batches():
            sgd.zero_grad()
            one.loss(0, x).backward()
            if fails[0]:
                with pytest.raises(torch.OutOfMemoryError):
                    sgd.step()
            sgd.step()

    run(script, 1)


def test_another_pass_after_an_update_that_fails() -> None:
    """It begins the next step on the batch: that of the others has the update."""

    def script(one: Script) -> None:
        short = one.wrap([torch.nn.Parameter(torch.ones(1, 2))], kind=ShortOfMemory)
        (weight,) = short.param_groups[0]["params"]
        for x in one.batches():
            ((weight * x).square().sum() + one.loss(0, x)).backward()
            one.sgd[0].step()
            with pytest.raises(torch.OutOfMemoryError):
                short.step()
            one.loss(0, x).backward()

    refused(script, "optimizer.step() raised an exception in this batch", 1)
