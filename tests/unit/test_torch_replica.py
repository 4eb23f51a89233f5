"""What PyTorch's replica sends and takes over, with Horovod's broadcast played by a list."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from edl.checkpoint.format import PackedState, pack_state
from edl.errors import UsageError
from edl.job.state_share import WHOLE_STATE, StateShare
from edl.torch import replica as module
from edl.torch.replica import TorchReplica
from edl.worker.progress import Receive


class Wire:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._described = b""
        self._sent: list[torch.Tensor] = []
        self._rank = 0
        self._flats: list[torch.Tensor] = []
        monkeypatch.setattr(module, "broadcast_start", self._start)
        monkeypatch.setattr(module, "finish", self._finish)

    def take_part(self, replica: TorchReplica, rank: int, receive: Receive) -> None:
        self._rank, self._flats = rank, []
        place = SimpleNamespace(rank=rank)
        ring: Any = SimpleNamespace(alone=False, place=place, generation=3, broadcast=self._message)
        replica.synchronise(ring, 0, receive)

    def _message(self, payload: bytes, _root: int, _name: str) -> bytes:
        if self._rank == 0:
            self._described = payload
        return self._described

    def _start(self, flat: torch.Tensor, _root: int, _name: str) -> int:
        if self._rank == 0:
            self._sent.append(flat.clone())
        self._flats.append(flat)
        return len(self._flats) - 1

    def _finish(self, handle: int) -> torch.Tensor:
        assert len(self._flats) == len(self._sent), "everything is under way at once"
        return self._flats[handle].copy_(self._sent[handle])


class Net(torch.nn.Module):
    def __init__(self, seed: float) -> None:
        super().__init__()
        self.large = torch.nn.Parameter(torch.full((300, 300), seed))  # goes alone
        self.narrow = torch.nn.Parameter(torch.full((3,), seed, dtype=torch.bfloat16))
        self.none = torch.nn.Parameter(torch.empty(0, 4))
        self.register_buffer("seen", torch.tensor(int(seed)))


def replica(
    seed: float, lr: float, averages_buffers: bool = False
) -> tuple[TorchReplica, Net, torch.optim.Optimizer, Any]:
    net = Net(seed)
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for parameter in net.parameters():
        parameter.grad = torch.full_like(parameter, seed)
    optimizer.step()
    scheduler.step()
    one = TorchReplica(net, optimizer, averages_buffers=averages_buffers)
    one.track({"scheduler": scheduler})
    return one, net, optimizer, scheduler


@pytest.mark.parametrize("receive", [Receive.ALL, Receive.STEP, Receive.NOTHING])
def test_what_a_worker_takes_over(receive: Receive, monkeypatch: pytest.MonkeyPatch) -> None:
    wire = Wire(monkeypatch)
    root, theirs, their_sgd, _ = replica(2.0, lr=0.5)
    mine, net, sgd, scheduler = replica(1.0, lr=0.125)
    scheduler.step()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    wire.take_part(root, 0, Receive.NOTHING)
    wire.take_part(mine, 1, receive)

    expected = before if receive is Receive.NOTHING else theirs.state_dict()
    if receive is Receive.STEP:
        expected["seen"] = before["seen"]  # no update has changed it
    for name, tensor in net.state_dict().items():
        assert torch.equal(tensor, expected[name]), name
        assert tensor.dtype == expected[name].dtype
    momenta = [sgd.state[p]["momentum_buffer"][:1] for p in net.parameters() if len(p)]
    wanted = 1.0 if receive is Receive.NOTHING else 2.0
    assert all((momentum == wanted).all() for momentum in momenta)
    rate, steps = (0.25, 1) if receive is Receive.ALL else (0.03125, 2)
    assert sgd.param_groups[0]["lr"] == rate, "the learning rate belongs to the place in the loop"
    assert scheduler.last_epoch == steps
    assert their_sgd.param_groups[0]["lr"] == 0.25


def test_a_worker_that_missed_a_step_of_logical_workers_takes_the_mean_of_buffers() -> None:
    (job, *_), (mine, net, *_) = replica(2.0, 0.5), replica(1.0, 0.5, averages_buffers=True)
    net.register_buffer("scratch", torch.tensor(3.0), persistent=False)  # which the job lacks
    mine.load(job.state(), Receive.STEP)
    assert (net.seen.item(), net.scratch.item()) == (2, 3.0)


def test_the_parts_in_which_workers_save_are_the_whole() -> None:
    """Buffers, which differ between workers, and all that is no large array are rank 0's."""
    net = torch.nn.Sequential(
        torch.nn.Linear(30, 40), torch.nn.BatchNorm1d(200), torch.nn.Linear(40, 50)
    )
    adam = torch.optim.Adam(net.parameters())
    for parameter in net.parameters():
        parameter.grad = torch.randn_like(parameter)
    adam.step()
    one = TorchReplica(net, adam)
    one.track({"average": torch.optim.swa_utils.AveragedModel(net)})

    def saved(share: StateShare) -> tuple[dict[str, bytes], PackedState]:
        packed = pack_state(one.capture(share))  # the next one writes over its arrays
        return {name: bytes(blob.data) for name, blob in packed.blobs.items()}, packed

    whole, packed = saved(WHOLE_STATE)
    parts = [saved(StateShare(rank, 3)) for rank in range(3)]
    assert sum(len(arrays) for arrays, _ in parts) == len(whole)
    assert {name: data for arrays, _ in parts for name, data in arrays.items()} == whole
    first, tree = parts[0]
    assert tree.tree == packed.tree
    assert tree.elsewhere == {name: rank for rank in (1, 2) for name in parts[rank][0]}, (
        "rank 0 knows what the others write"
    )
    own = {name for name in whole if "running" in name or name.startswith("tracked")}
    assert own
    assert own <= first.keys()
    sizes = [sum(map(len, arrays.values())) for arrays, _ in parts]
    assert max(sizes) < 0.6 * sum(sizes)


def test_another_model_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = Wire(monkeypatch)
    root, *_ = replica(2.0, lr=0.5)
    mine, net, *_ = replica(1.0, lr=0.5)
    net.register_buffer("other", torch.zeros(1))
    wire.take_part(root, 0, Receive.NOTHING)
    with pytest.raises(UsageError, match="model differs from the job's in other"):
        wire.take_part(mine, 1, Receive.ALL)


def test_a_momentum_or_a_rate_that_differs_is_in_the_digest() -> None:
    one, net, sgd, _ = replica(2.0, lr=0.5)
    digests = one.digests()

    def changed() -> list[str]:
        return [name for name, digest in one.digests().items() if digest != digests[name]]

    assert changed() == []
    sgd.state[net.large]["momentum_buffer"][7, 7] += 1e-6
    sgd.param_groups[0]["lr"] *= 1 + 1e-15
    assert changed() == ["optimizer.large.momentum_buffer", "optimizer.param_groups.0.lr"]


class Labelled(torch.nn.Linear):
    def __init__(self, extra: dict[str, Any]) -> None:
        super().__init__(2, 1)
        self.extra = extra

    def get_extra_state(self) -> dict[str, Any]:
        return self.extra

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.extra = state


def of_labelled(extra: dict[str, Any]) -> TorchReplica:
    net = torch.nn.Sequential(Labelled(extra), Labelled({"seen": 8}))
    return TorchReplica(net, torch.optim.SGD(net.parameters(), lr=0.5))


@pytest.mark.parametrize(
    "odd",
    [
        np.array(["cat", "dog"], object),
        np.ma.masked_array([1, 2], [0, 1]),
        np.array([(1, 2.5)], [("step", "i4"), ("loss", "f4")]),
        np.array([(1, 2.5)], [("step", "i4"), ("loss", "f4")])[0],
        np.datetime64(1, "ns"),
        np.timedelta64(1, "ns"),
        np.complex64(1),
        1j,
    ],
    ids=repr,
)
def test_an_extra_state_that_a_file_cannot_hold_reaches_newcomers(
    odd: Any, caplog: pytest.LogCaptureFixture
) -> None:
    job, newcomer = of_labelled({"odd": odd, "seen": 7}), of_labelled({"odd": None, "seen": 0})
    newcomer.load(job.state(), Receive.ALL)
    came = newcomer.state()["extra"][0]["0"]
    assert type(came["odd"]) is type(odd)
    assert repr(came["odd"]) == repr(odd)
    assert came["seen"] == 7
    assert not caplog.records

    for _ in range(2):
        assert pack_state(job.capture())
        assert job.durable()["extra"] == [{"1": {"seen": 8}}]
    (record,) = caplog.records
    assert "leave out the extra state of 0, which" in record.getMessage()


class Masked(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)
        self.register_buffer("mask", None, persistent=False)
        self.register_buffer("heads", torch.ones(2).expand(3, 2), persistent=False)
        self.register_buffer("seen", torch.zeros(2))

    def look(self, length: int) -> None:
        self.register_buffer("mask", torch.ones(length, length).triu(1), persistent=False)
        self.register_buffer("made", torch.ones(length), persistent=False)


def masked(*lengths: int) -> TorchReplica:
    net = Masked()
    for length in lengths:
        net.look(length)
    return TorchReplica(net, torch.optim.SGD(net.parameters(), lr=0.1))


@pytest.mark.parametrize("receive", [Receive.ALL, Receive.STEP, Receive.RESYNC])
@pytest.mark.parametrize(("here", "there"), [((), (4,)), ((4,), ()), ((3,), (4,)), ((4,), (4,))])
def test_a_newcomer_may_lack_what_a_forward_pass_makes(
    here: tuple[int, ...], there: tuple[int, ...], receive: Receive
) -> None:
    mine, theirs = masked(*here), masked(*there)
    assert mine.signature() == theirs.signature()
    assert sorted(mine.signature()) == ["layer.bias", "layer.weight", "seen"]
    state = theirs.state()
    state["model"] = {name: tensor + 1 for name, tensor in state["model"].items()}
    before = {name: tensor.clone() for name, tensor in mine.state()["model"].items()}
    mine.load(state, receive)
    for name, tensor in mine.state()["model"].items():
        there_too = name in state["model"] and state["model"][name].shape == tensor.shape
        is_taken = there_too and (receive is not Receive.STEP or name.startswith("layer"))
        expected = state["model"][name] if is_taken else before[name]
        torch.testing.assert_close(tensor, expected, rtol=0, atol=0)


def test_a_persistent_buffer_must_be_there() -> None:
    state = masked().state()
    del state["model"]["seen"]
    with pytest.raises(UsageError, match="differs from the job's in seen"):
        masked().load(state, Receive.ALL)


def test_batch_norms_averages_become_the_means_of_all() -> None:
    """Once a step, in the model and in what is tracked; synchronised layers keep their bits."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    same = torch.nn.SyncBatchNorm(2)
    mine, theirs = torch.rand(3), torch.rand(3)
    replicas = []
    for values, batches in ((mine, 5), (theirs, 8)):
        one = copy.deepcopy(model)
        ema = torch.optim.swa_utils.AveragedModel(one)
        for layer in (one[1], ema.module[1]):
            layer.running_mean.copy_(values)
            layer.num_batches_tracked.fill_(batches)
        replica = TorchReplica(one, torch.optim.SGD(one.parameters(), 0.1))
        replica.track({"ema": ema, "same": copy.deepcopy(same)})
        replicas.append((replica, one, ema))
    rows = [b"".join(each.tobytes() for each in one.averages()) for one, *_ in replicas]
    sent = []
    for replica, *_ in replicas:
        replica.average_buffers(7, lambda row: sent.append(row) or [*rows])  # type: ignore[func-returns-value]
        replica.average_buffers(7, lambda _: pytest.fail("it is done for this step"))
    assert sent == rows
    for replica, one, ema in replicas:
        for layer in (one[1], ema.module[1]):
            assert torch.equal(layer.running_mean, ((mine.double() + theirs) / 2).float())
            assert layer.num_batches_tracked == 6
        assert torch.equal(replica.things()["same"].running_var, same.running_var)  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="have 7, 19 numbers"):
        replicas[0][0].average_buffers(8, lambda row: [row[:56], row])


def test_nothing_is_sent_for_a_model_without_averages() -> None:
    model = torch.nn.Linear(1, 1)
    replica = TorchReplica(model, torch.optim.SGD(model.parameters(), 0.1))
    replica.average_buffers(1, lambda _: pytest.fail("nothing is to be sent"))
