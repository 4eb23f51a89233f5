"""What scripts do with several optimizers, and what they are told: in a loopback job of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from several_optimizers import Models

from edl.binding.loop import BatchSteps
from edl.errors import UsageError
from edl.step.batching import Batching
from edl.step.source import Source
from edl.testing.counting import CountingBatchSource
from edl.testing.loopback import LoopbackJob, LoopbackWorker
from edl.torch.optimizer import listen
from edl.torch.optimizer_state import LastStep
from edl.torch.reduction import GradientReduction, Optimizers

Tensor = torch.Tensor


class Script:
    def __init__(self, one: LoopbackWorker, count: int = 2) -> None:
        torch.manual_seed(0)
        torch.set_num_threads(1)
        self.worker = one.worker
        self.worker.attach_source(Source(2, Batching(1), False, 7, 0))
        self.worker.attach_replica(Models(1, 2))
        self.optimizers = Optimizers(self.worker)
        self.nets = [torch.nn.Linear(2, 1) for _ in range(count)]
        self.sgd = [self.wrap(net.parameters()) for net in self.nets]
        self.steps = BatchSteps(
            self.worker,
            CountingBatchSource(self.worker, 0),
            lambda: "not trained",
            self.optimizers.end_batch,
        )

    def wrap(
        self, parameters: Any, passes: int = 1, kind: Any = torch.optim.SGD, **options: Any
    ) -> torch.optim.SGD:
        sgd: torch.optim.SGD = kind(parameters, lr=0.1, **options)
        model = torch.nn.Module()
        reduction = GradientReduction(self.optimizers, sgd, model, LastStep(), passes)
        listen(sgd, reduction)
        return sgd

    def batches(self) -> Any:
        for _ in self.steps.epochs(1):
            while self.steps.begin():
                yield torch.ones(1, 2)

    def loss(self, number: int, x: Tensor) -> Tensor:
        loss: Tensor = self.nets[number](x).square().sum()
        return loss


def run(script: Callable[[Script], None], count: int = 2) -> None:
    """Run a script to its end in a job, and raise what it raises.

    An EdlError ends a worker on the loopback ring, and not the test, so it is raised here.
    """
    ended: list[bool] = []

    def main(one: LoopbackWorker) -> None:
        script(Script(one, count))
        ended.append(True)

    job = LoopbackJob(main, np=1)
    job.run()
    for error in job.errors.values():
        raise error
    assert ended, job.describe()


def refused(script: Callable[[Script], None], sentence: str, count: int = 2) -> None:
    """Assert that the script is refused with ``sentence``, and its worker ends.

    So does each worker that is started in its place.
    """
    told: list[str] = []

    def tries(one: Script) -> None:
        with pytest.raises(UsageError) as caught:
            script(one)
        told.append(str(caught.value))
        raise caught.value

    job = LoopbackJob(lambda one: tries(Script(one, count)), np=1)
    job.run()
    assert told
    assert all(sentence in each for each in told)


def test_as_pytorch_alone() -> None:
    def train(nets: list[torch.nn.Linear], sgd: list[Any], batches: Any) -> list[Tensor]:
        for x in batches:
            sgd[0].zero_grad()
            nets[0](x).square().sum().backward()
            nets[0](2 * x).square().sum().backward()
            sgd[0].step()
            sgd[1].zero_grad()
            (nets[1](x) + nets[0](x)).square().sum().backward()
            sgd[1].step()
        return [parameter.detach() for net in nets for parameter in net.parameters()]

    def script(one: Script) -> None:
        torch.manual_seed(0)
        nets = [torch.nn.Linear(2, 1) for _ in range(2)]
        plain = [torch.optim.SGD(net.parameters(), lr=0.1) for net in nets]
        expected = train(nets, plain, [torch.ones(1, 2)] * 2)
        found = train(one.nets, one.sgd, one.batches())
        assert all(map(torch.equal, found, expected))

    run(script)


def test_one_backward_pass_and_two_updates_are_one_step() -> None:
    def script(one: Script) -> None:
        for number, x in enumerate(one.batches()):
            (one.loss(0, x) + one.loss(1, x)).backward()
            for sgd in one.sgd:
                sgd.step()
                sgd.zero_grad()
                assert one.worker.step == number + 1

    run(script)


def test_numbers_may_be_exchanged_between_two_updates() -> None:
    def script(one: Script) -> None:
        for x in one.batches():
            for number, sgd in enumerate(one.sgd):
                sgd.zero_grad()
                one.loss(number, x).backward()
                sgd.step()
                assert one.worker.exchange([1.0]) == [[1.0]]
        assert one.worker.step == 4

    run(script)


def test_any_of_them_may_have_no_turn() -> None:
    def script(one: Script) -> None:
        for number, x in enumerate(one.batches()):
            sgd = one.sgd[number % 2]
            sgd.zero_grad()
            one.loss(number % 2, x).backward()
            sgd.step()
        assert one.worker.step == 2

    run(script)


def test_an_update_that_the_script_skips() -> None:
    def script(one: Script) -> None:
        before = one.nets[1].weight.clone()
        for x in one.batches():
            for number in range(2):
                one.sgd[number].zero_grad()
                one.loss(number, x).backward()
            one.sgd[0].step()
        assert one.worker.step == 2
        assert torch.equal(one.nets[1].weight, before)

    run(script)


def test_a_batch_may_be_left_out_and_a_step_ended_by_the_script() -> None:
    def script(one: Script) -> None:
        for number, x in enumerate(one.batches()):
            if number:
                one.loss(0, x).backward()
                one.sgd[0].step()
            one.optimizers.skip()
            assert one.worker.step == number + 1

    run(script)


def test_a_gradient_of_another_backward_pass_is_not_taken_for_ones_own() -> None:
    def script(one: Script) -> None:
        for x in one.batches():
            one.loss(0, x).backward()
            one.sgd[0].step()
            one.sgd[0].zero_grad()
            (one.nets[1](x) + one.nets[0](x)).square().sum().backward()
            one.sgd[1].step()
            one.sgd[1].zero_grad()  # that of the first one is left

    refused(script, "the gradient of parameter.0 is still there from the step before")


def test_two_updates_of_one_backward_pass() -> None:
    def script(one: Script) -> None:
        for x in one.batches():
            one.loss(0, x).backward()
            one.sgd[0].step()
            one.sgd[0].step()

    refused(script, "optimizer.step() was called twice for the gradients of one backward()")


def test_a_mean_that_was_changed_is_not_added_to() -> None:
    def script(one: Script) -> None:
        for x in one.batches():
            one.loss(0, x).backward()
            torch.nn.utils.clip_grad_norm_(one.nets[0].parameters(), 1e-3)
            one.loss(0, x).backward()

    refused(script, "was changed between two backward passes of one step")


def test_a_mean_that_was_changed_is_refused_before_another_is_reduced() -> None:
    """Were the ring to break in that, it would have to be changed once more."""

    def script(one: Script) -> None:
        for x in one.batches():
            one.loss(0, x).backward()
            torch.nn.utils.clip_grad_norm_(one.nets[0].parameters(), 1e-3)
            one.loss(1, x).backward()

    refused(script, "was changed between two backward passes of one step")


def test_all_are_accumulated_in_the_same_batches() -> None:
    def script(one: Script) -> None:
        for x in one.batches():
            with one.optimizers.no_sync():
                one.loss(0, x).backward()
            one.loss(1, x).backward()
            one.sgd[1].step()

    refused(script, "gradients are accumulated for all of them in the same batches")


@pytest.mark.parametrize("to_none", [False, True])
def test_what_only_another_pass_computes_may_be_set_to_zero(to_none: bool) -> None:
    """A part of the first module that its own loss does not reach."""

    def script(one: Script) -> None:
        for x in one.batches():
            one.sgd[0].zero_grad(set_to_none=to_none)
            one.nets[0].weight.square().sum().backward()
            one.sgd[0].step()
            one.sgd[1].zero_grad(set_to_none=to_none)
            (one.nets[1](x) + one.nets[0](x)).square().sum().backward()
            one.sgd[1].step()
        assert one.worker.step == 4

    run(script)


def test_zeros_in_place_begin_anew() -> None:
    def script(one: Script) -> None:
        for x in one.batches():
            for net in one.nets:
                net.zero_grad(set_to_none=False)
            one.loss(0, x).backward()
            expected = one.nets[0].weight.grad
            assert expected is not None
            expected = expected.clone()
            one.sgd[0].zero_grad(set_to_none=False)
            one.loss(0, x).backward()
            found = one.nets[0].weight.grad
            assert found is not None
            assert torch.equal(found, expected)
            one.sgd[0].step()

    run(script)


def test_a_parameter_has_one_optimizer() -> None:
    refused(
        lambda one: one.wrap(one.nets[0].parameters()) and None,
        "parameter.0 is trained by two optimizers; with edl each parameter has one",
    )


def test_each_is_there_before_the_first_batch() -> None:
    def script(one: Script) -> None:
        for _ in one.batches():
            one.wrap([torch.nn.Parameter(torch.ones(1))])

    refused(script, "create each edl.Optimizer before the first batch", count=1)


def test_passes_are_not_counted_for_each() -> None:
    refused(
        lambda one: one.wrap([torch.nn.Parameter(torch.ones(1))], passes=2) and None,
        "accumulate gradients inside of edl.no_sync() in place of backward_passes_per_step",
        count=1,
    )


def test_a_group_of_batches_has_one_step() -> None:
    def script(one: Script, seldom: bool = False) -> None:
        for number, x in enumerate(one.batches()):
            if number == 0:
                with one.optimizers.no_sync():
                    (one.loss(0, x) + one.loss(1, x)).backward()
                continue
            (one.loss(0, x) + one.loss(1, x)).backward()
            one.sgd[0].step()
            if seldom:
                one.sgd[1].zero_grad()
                one.loss(1, x).backward()
            one.sgd[1].step()
        assert one.worker.step == 1

    run(script)
    refused(
        lambda one: script(one, seldom=True),
        "call backward() for all of them before the first optimizer.step()",
    )
