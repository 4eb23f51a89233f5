"""Optimizers with closures, optimizers that wrap others, and complex parameters."""

from __future__ import annotations

import copy
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_torch_optimizers import Script, refused, run
from test_torch_reduction import Job, Worker
from torch.optim import LBFGS, SGD, Adam, Optimizer

from edl.torch import gradients, lr_schedules
from edl.torch.optimizer import _evaluates_again, listen
from edl.torch.optimizer_state import LastStep, after_closure, complete
from edl.torch.reduction import GradientReduction, Optimizers
from edl.torch.replica import TorchReplica
from edl.worker.progress import Receive

Tensor = torch.Tensor


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Worker:
    return Worker(monkeypatch)


@pytest.mark.parametrize("named", [False, True])
def test_a_closure_that_is_evaluated_once_makes_the_step(named: bool) -> None:
    def script(one: Script) -> None:
        for x in one.batches():

            def closure(x: Tensor = x) -> Tensor:
                one.sgd[0].zero_grad()
                loss = one.loss(0, x)
                loss.backward()
                return loss

            before = one.nets[0].weight.clone()
            loss = one.sgd[0].step(closure=closure) if named else one.sgd[0].step(closure)
            assert loss.item() > 0
            gradient = one.nets[0].weight.grad
            assert gradient is not None
            assert torch.allclose(one.nets[0].weight, before - 0.1 * gradient)
        assert one.worker.step == 2

    run(script, count=1)


class Twice(SGD):
    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        return closure()


class Never(SGD):
    def step(self, closure: Any = None) -> Any:
        return None


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [(Twice, "Twice evaluates its closure more than once"), (Never, "has not evaluated its clos")],
)
def test_a_closure_that_is_not_evaluated_once_is_refused(kind: type[SGD], sentence: str) -> None:
    def script(one: Script) -> None:
        for x in one.batches():
            one.sgd[0].step(lambda x=x: one.loss(0, x).backward())

    def wrap(self: Script, parameters: Any, passes: int = 1, **options: Any) -> SGD:
        sgd = kind(parameters, lr=0.1)
        listen(sgd, GradientReduction(self.optimizers, sgd, torch.nn.Module(), LastStep()))
        return sgd

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Script, "wrap", wrap)
        refused(script, sentence, count=1)


def test_lbfgs_is_told_before_it_has_moved_anything() -> None:
    parameters = [torch.nn.Parameter(torch.ones(1))]
    assert _evaluates_again(LBFGS(parameters))
    assert _evaluates_again(LBFGS(parameters, max_iter=1, line_search_fn="strong_wolfe"))
    assert not _evaluates_again(LBFGS(parameters, max_iter=1))


def test_hooks_of_a_step_come_after_its_closure() -> None:
    order: list[str] = []
    arguments: Any = (None, lambda: order.append("closure"))
    for name in ("first", "second"):
        arguments, named = after_closure(arguments, {}, lambda name=name: order.append(name)) or ()
    assert order == []
    arguments[1]()
    assert order == ["closure", "first", "second"]
    assert named == {}
    assert after_closure((None,), {}, lambda: order.append("now")) is None
    assert order[-1] == "now"


# --- optimizers that wrap others


class Lookahead(Optimizer):
    def __init__(self, optimizer: Optimizer, k: int = 2, alpha: float = 0.5) -> None:
        self.optimizer, self.k, self.alpha = optimizer, k, alpha
        self.param_groups = optimizer.param_groups
        self.state = defaultdict(dict)
        self.fast_state = optimizer.state
        for group in self.param_groups:
            group["counter"] = 0

    def step(self, closure: Any = None) -> Any:
        loss = self.optimizer.step(closure)
        for group in self.param_groups:
            if group["counter"] == 0:
                for fast in group["params"]:
                    state = self.state[fast]
                    slow = state.setdefault("slow", fast.detach().clone())
                    slow += (fast.detach() - slow) * self.alpha
                    fast.data.copy_(slow)
            group["counter"] = (group["counter"] + 1) % self.k
        return loss

    def state_dict(self) -> dict[str, Any]:
        slow = {id(key): value for key, value in self.state.items()}  # addresses
        return {**self.optimizer.state_dict(), "slow_state": slow}


def lookahead(seed: float) -> tuple[TorchReplica, torch.nn.Module, Lookahead]:
    net = torch.nn.Linear(2, 1)
    for parameter in net.parameters():
        torch.nn.init.constant_(parameter, seed)
    optimizer = Lookahead(Adam(net.parameters(), lr=0.5))
    complete(optimizer)
    return TorchReplica(net, optimizer), net, optimizer


def train(net: torch.nn.Module, optimizer: Optimizer, steps: int) -> None:
    for step in range(steps):
        for parameter in net.parameters():
            parameter.grad = torch.full_like(parameter, step + 1.0)
        optimizer.step()


@pytest.mark.parametrize("saved", [False, True], ids=["join", "checkpoint"])
def test_a_wrapper_without_init_goes_on_where_the_job_is(saved: bool) -> None:
    job, theirs, their_optimizer = lookahead(1.0)
    newcomer, mine, optimizer = lookahead(2.0)
    train(theirs, their_optimizer, 3)
    train(mine, optimizer, 2)
    if saved:
        newcomer.restore(job.capture())
    else:
        newcomer.load(copy.deepcopy(job.state()), Receive.ALL)
    assert optimizer.param_groups is optimizer.optimizer.param_groups
    assert optimizer.fast_state is optimizer.optimizer.state
    assert newcomer.digests() == job.digests()
    train(theirs, their_optimizer, 3)
    train(mine, optimizer, 3)
    assert newcomer.digests() == job.digests()
    assert torch.equal(mine.weight, theirs.weight)


def test_a_wrapper_that_missed_a_step_takes_its_counter_and_keeps_its_rate() -> None:
    job, theirs, their_optimizer = lookahead(1.0)
    survivor, mine, optimizer = lookahead(1.0)
    train(theirs, their_optimizer, 1)
    their_optimizer.param_groups[0]["lr"] = 0.25
    survivor.load(job.state(), Receive.STEP)
    assert (optimizer.param_groups[0]["counter"], optimizer.param_groups[0]["lr"]) == (1, 0.5)
    assert torch.equal(mine.weight, theirs.weight)


def test_a_wrapper_has_the_hooks_of_other_optimizers() -> None:
    _, net, optimizer = lookahead(1.0)
    order: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: order.append("before"))
    optimizer.register_step_post_hook(lambda *_: order.append("after"))
    train(net, optimizer, 1)
    optimizer.zero_grad()
    torch.optim.lr_scheduler.StepLR(optimizer, 1)  # which takes the place of step(), too
    train(net, optimizer, 1)
    assert order == ["before", "after"] * 2
    other = Lookahead(SGD(net.parameters(), lr=0.1))  # not the job's
    train(net, other, 1)
    assert order == ["before", "after"] * 2


# --- complex parameters


@pytest.mark.parametrize("samples", [2, 1], ids=["full", "weighted"])
def test_the_mean_of_complex_gradients(samples: int, worker: Worker) -> None:
    job = Job(worker, "a")
    job.model.register_parameter("c", torch.nn.Parameter(torch.ones(2, dtype=torch.complex64)))
    job.sgd.add_param_group({"params": [job.c]})
    job.reduction._hook_new()
    theirs = torch.tensor([[4.0, 2.0], [0.0, 8.0]])
    worker.begin(samples=samples, present=torch.tensor([1.0, 1.0]), c=theirs)
    (job.a + (job.c * torch.tensor([2j, 2.0])).real.sum()).backward()
    own = torch.tensor([-2j, 2.0])  # the conjugate, as PyTorch has it
    mean = (own * samples + 2 * torch.view_as_complex(theirs)) / (samples + 2)
    assert job.c.grad is not None
    assert torch.allclose(job.c.grad, mean)
    job.step()
    assert torch.allclose(job.c.detach(), 1 - mean)


def test_the_ring_breaks_with_complex_gradients_on_their_way(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(worker, "a")
    job.model.register_parameter("c", torch.nn.Parameter(torch.ones(2, dtype=torch.complex64)))
    job.sgd.add_param_group({"params": [job.c]})
    job.reduction._hook_new()
    worker.begin(present=torch.tensor([1.0, 1.0]))
    waited: list[int] = []
    finish = gradients.finish

    def wait(handle: int) -> Any:
        waited.append(handle)
        if waited.count(handle) > 1:
            return None
        if len(waited) == 3:
            worker.breaks = [lambda: False]
        return finish(handle)

    monkeypatch.setattr(gradients, "finish", wait)
    (job.a + job.c.real.sum()).backward()
    assert job.c.grad is not None
    assert torch.equal(job.c.grad, torch.full((2,), 0.5 + 0j))


def test_complex_parameters_reach_a_newcomer() -> None:
    def script(seed: float) -> tuple[TorchReplica, torch.nn.Module]:
        net = torch.nn.Linear(2, 1, dtype=torch.complex128)
        torch.nn.init.constant_(net.weight, seed)
        optimizer = Adam(net.parameters(), lr=0.5)
        train(net, optimizer, 2)
        return TorchReplica(net, optimizer), net

    job, newcomer = script(1.0), script(2.0)
    newcomer[0].load(job[0].state(), Receive.ALL)
    assert newcomer[0].digests() == job[0].digests()


# --- sharpness-aware minimization


class Sam(Optimizer):
    """Two backward passes for an update: the second at weights that are moved by the first's."""

    def __init__(self, parameters: Any, lr: float, rho: float = 1.0) -> None:
        super().__init__(parameters, {"lr": lr, "rho": rho})
        self.base_optimizer = SGD(self.param_groups, lr=lr, momentum=0.5)
        self.param_groups = self.base_optimizer.param_groups

    def parameters(self) -> list[torch.nn.Parameter]:
        every = (p for group in self.param_groups for p in group["params"])
        return [each for each in every if each.grad is not None]

    @torch.no_grad()
    def first_step(self) -> None:
        for each in self.parameters():
            self.state[each]["old"] = each.detach().clone()
            each.add_(each.grad, alpha=self.param_groups[0]["rho"])
        self.zero_grad()

    @torch.no_grad()
    def second_step(self) -> None:
        for each in self.parameters():
            each.copy_(self.state[each]["old"])
        self.base_optimizer.step()
        self.zero_grad()

    def step(self, closure: Any = None) -> None:
        self.first_step()
        closure()
        self.second_step()


@pytest.mark.parametrize("has_closure", [False, True], ids=["two steps", "closure"])
def test_sharpness_aware_training_is_that_of_one_process(has_closure: bool) -> None:
    def passes(net: torch.nn.Module, optimizer: Any, x: Tensor) -> None:
        def loss() -> None:
            net(x).square().sum().backward()

        loss()
        if has_closure:
            optimizer.step(loss)
        else:
            optimizer.first_step()
            loss()
            optimizer.second_step()

    alone = torch.nn.Linear(2, 1)
    plain = Sam(alone.parameters(), lr=0.01)

    def wrap(self: Script, parameters: Any, passes: int = 1, **options: Any) -> Any:
        sam = Sam(parameters, lr=0.01)
        listen(sam, GradientReduction(self.optimizers, sam, torch.nn.Module(), LastStep()))
        return sam

    def script(one: Script) -> None:
        alone.load_state_dict(one.nets[0].state_dict())
        for x in one.batches():
            passes(alone, plain, x)
            passes(one.nets[0], one.sgd[0], x)
            assert torch.equal(one.nets[0].weight, alone.weight)
        assert one.worker.step == 2

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Script, "wrap", wrap)
        run(script, count=1)


def test_the_inner_momentum_of_sharpness_aware_training_reaches_a_newcomer() -> None:
    def script(seed: float) -> tuple[TorchReplica, Sam, torch.nn.Module]:
        net = torch.nn.Linear(2, 1)
        torch.nn.init.constant_(net.weight, seed)
        optimizer = Sam(net.parameters(), lr=0.5)
        train(net, optimizer.base_optimizer, 2)
        return TorchReplica(net, optimizer), optimizer, net

    job, theirs, _ = script(1.0)
    newcomer, mine, net = script(2.0)
    theirs.base_optimizer.state[theirs.param_groups[0]["params"][0]]["momentum_buffer"] += 1
    assert newcomer.digests() != job.digests()
    newcomer.load(copy.deepcopy(job.state()), Receive.ALL)
    assert newcomer.digests() == job.digests()
    assert mine.base_optimizer.param_groups[0]["params"][0] is net.weight


class Growing(Optimizer):
    def __init__(self, parameters: Any) -> None:
        start = {"lr": 1.0, "d": 1e-6, "most": torch.tensor(0.0), "k": 0, "weight_decay": 0.1}
        super().__init__(parameters, start)

    def step(self, closure: Any = None) -> Any:
        loss = None if closure is None else closure()
        for group in self.param_groups:
            group["k"] += 1
            given = [each for each in group["params"] if each.grad is not None]
            total = sum(float(each.grad.abs().sum()) for each in given)
            group["d"] = max(group["d"], total)
            group["most"].fill_(group["d"])
            for each in given:
                each.data.add_(each.grad, alpha=-group["d"] * group["lr"])
        return loss


class Forced(Optimizer):
    """Of the kind of Muon: a parameter without a gradient gets zeros."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    def step(self, closure: Any = None) -> Any:
        loss = None if closure is None else closure()
        for each in (each for group in self.param_groups for each in group["params"]):
            gradient = torch.zeros_like(each) if each.grad is None else each.grad
            momentum = self.state[each].setdefault("momentum", torch.zeros_like(each))
            momentum.mul_(0.9).add_(gradient)
            each.data.sub_(momentum, alpha=0.1)
        return loss


KINDS: dict[str, Any] = {
    "Lookahead": lambda parameters: Lookahead(Adam(parameters, lr=0.5)),
    "LBFGS": lambda parameters: LBFGS(parameters, lr=0.1, max_iter=1),
    "Prodigy": Growing,
    "Muon": Forced,
    "Adam": Adam,
}


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_changes_in_a_step_that_others_have_completed(kind: str, worker: Worker) -> None:
    def script() -> tuple[TorchReplica, torch.nn.Module, Any]:
        net = torch.nn.Linear(2, 1)
        for parameter in net.parameters():
            torch.nn.init.constant_(parameter, 1.0)
        optimizer = KINDS[kind](net.parameters())
        complete(optimizer)
        replica = TorchReplica(net, optimizer)
        for _ in range(2):
            optimizer.step(lambda: computed(net, 2.0))
        return replica, net, optimizer

    def computed(net: torch.nn.Module, scale: float) -> Tensor:
        net.zero_grad()
        loss = (net(torch.ones(2, 2)) * scale).square().sum()
        loss.backward()
        return loss

    job, theirs, their_optimizer = script()
    survivor, net, optimizer = script()
    assert survivor.digests() == job.digests()
    last_step = survivor._trained[0].last_step
    reduction = GradientReduction(Optimizers(worker), optimizer, net, last_step)
    listen(optimizer, reduction)
    their_optimizer.step(lambda: computed(theirs, 3.0))

    def completed_by_peers() -> bool:
        survivor.load(copy.deepcopy(job.state()), Receive.STEP)
        return True

    worker.begin(present=torch.ones(2))
    worker.breaks = [completed_by_peers]
    loss = computed(net, 3.0)
    worker.breaks = []
    optimizer.step(lambda: loss)
    assert survivor.digests() == job.digests()
    assert optimizer.state_dict()["param_groups"] == their_optimizer.state_dict()["param_groups"]


def test_what_a_script_sets_in_the_groups_is_its_own_after_a_missed_step() -> None:
    """It has yet to make the sender's changes: a rate that decays would decay twice."""
    replicas, optimizers = [], []
    for _ in range(2):
        net = torch.nn.Linear(2, 1)
        optimizer = Growing(net.parameters())
        replicas.append(TorchReplica(net, optimizer))
        optimizers.append(optimizer)
        train(net, optimizer, 2)
    job, survivor = replicas
    theirs = optimizers[0].param_groups[0]
    train(job._trained[0].model, optimizers[0], 1)
    theirs["lr"] *= 0.5
    theirs["weight_decay"] *= 0.5
    survivor.load(copy.deepcopy(job.state()), Receive.STEP)
    (mine,) = optimizers[1].param_groups
    assert (mine["lr"], mine["weight_decay"]) == (1.0, 0.1)
    assert (mine["k"], mine["d"], mine["most"]) == (3, theirs["d"], theirs["most"])
    mine["lr"] *= 0.5  # before its optimizer.step(), which puts back what was received
    optimizers[1].step()
    put_back = survivor._trained[0].last_step.missed
    assert put_back is not None
    put_back()
    (mine,) = optimizers[1].param_groups
    assert (mine["lr"], mine["weight_decay"], mine["k"]) == (0.5, 0.1, 3)


@pytest.mark.parametrize("has_closure", [False, True], ids=["two steps", "closure"])
def test_a_rate_by_samples_is_set_before_the_update_of_both_forms(
    has_closure: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = SimpleNamespace(loader=SimpleNamespace(update=7))
    monkeypatch.setattr(lr_schedules, "current_worker", lambda: worker)
    net = torch.nn.Linear(2, 1)
    sam: Any = Sam(net.parameters(), lr=0.5)
    sam.synchronize = lambda: None
    updates: list[Any] = []
    lr_schedules.before_each_update(sam, updates.append, "edl.LRSchedule")
    net(torch.ones(1, 2)).sum().backward()
    if has_closure:
        sam.step(lambda: net(torch.ones(1, 2)).sum().backward())
    else:
        sam.first_step()
        net(torch.ones(1, 2)).sum().backward()
        sam.second_step()
    assert updates == [7]
