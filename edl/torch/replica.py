"""Send, load, save and compare a PyTorch script's state, which all workers of a job share.

:mod:`edl.binding.replica` has what is the same in every framework.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.amp import GradScaler
from torch.nn.modules.batchnorm import _NormBase
from torch.optim.lr_scheduler import LRScheduler

from edl.binding import replica
from edl.binding.replica import (
    Array,
    ByteRange,
    FrameworkReplica,
    Reference,
    Trackable,
    describe,
    few,
    map_leaves,
    of_bytes,
    of_value,
    references,
    transfers,
)
from edl.checkpoint.location import location
from edl.checkpoint.safetensors import Blob
from edl.checkpoint.weights import weights
from edl.errors import CheckpointError, UsageError
from edl.ring.ring import CollectiveFailed
from edl.step.state_check import STEP_VALUE
from edl.text import counted
from edl.torch.collectives import broadcast_start, finish
from edl.torch.lr_schedules import Schedulers, load_scheduler, savable, step_values
from edl.torch.optimizer_state import (
    Flags,
    LastStep,
    ParameterGroups,
    can_save,
    copied_for_step,
    extra_states,
    keeps_tensors,
    load_extra_states,
    load_state,
    named_state,
    optimizer_parameters,
    plain_name,
    same_kind,
    state_dict_names,
    state_of,
    stepping,
    with_own_options,
    with_plain_names,
)
from edl.worker.progress import Receive

logger = logging.getLogger(__name__)


# ------------------------------------------------------------
# Compute digests of tensors on the device where they are: a CRC-32, on a device other than the CPU
# that of a 64-bit checksum of the bytes, computed there.

CHUNK = 2**22  # elements that are weighted at a time: so much memory a device can spare
PRIME, ODD = 0x9E3779B97F4A7C15 - 2**64, 0x2545F4914F6CDD1D  # from the usual random generators


def size_of(value: Any) -> int | None:
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()  # sparse tensors have no nbytes
    return value.nbytes if isinstance(value, np.ndarray) else None


def digests(parts: Iterable[ByteRange]) -> dict[str, int]:
    found: dict[str, int] = {}
    sums: dict[torch.device, dict[str, torch.Tensor]] = {}
    kinds: dict[str, str] = {}
    for part in parts:
        name, value = part.name, part.value
        if not isinstance(value, torch.Tensor):
            digest = of_value(value, part.start, part.stop)
        elif value.layout is not torch.strided or value.is_quantized or value.is_meta:
            digest = None
        elif value.device.type == "cpu":
            digest = of_bytes(_kind(value), _bytes_of(value)[part.start : part.stop].numpy())
        else:
            digest, kinds[name] = 0, _kind(value)
            data = _bytes_of(value)[part.start : part.stop]
            sums.setdefault(value.device, {})[name] = weighted_word_sum(data)
        if digest is not None:
            found[name] = digest
    for on_device in sums.values():
        checksums = torch.stack([*on_device.values()]).tolist()
        for name, checksum in zip(on_device, checksums, strict=True):
            found[name] = of_bytes(kinds[name], int(checksum).to_bytes(8, "big", signed=True))
    return found


def weighted_word_sum(data: torch.Tensor) -> torch.Tensor:
    """Return the sum modulo 2**64 of the 32-bit words of `data`, weighted by their positions."""
    total = torch.zeros((), dtype=torch.int64, device=data.device)
    padded = torch.nn.functional.pad(data, (0, -len(data) % 4))
    if padded.data_ptr() % 4:
        padded = padded.clone()
    words = padded.view(torch.int32)
    for start in range(0, len(words), CHUNK):
        part = words[start : start + CHUNK].to(torch.int64)
        weights = torch.arange(start, start + len(part), device=data.device) * PRIME
        weights = (weights ^ (weights >> 29)) * ODD | 1  # odd, so any change of one word counts
        total += (part * weights).sum()
    return total


def _kind(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)}"


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.detach().resolve_conj().resolve_neg()
    return plain.contiguous().reshape(-1).view(torch.uint8)


# ------------------------------------------------------------
# Treat the buffers of models that a state may lack, and those that PyTorch cannot write to.
#
# A buffer that is registered with `persistent=False` is usually something that the model computes,
# such as an attention mask: it may be made, or enlarged, in a forward pass. PyTorch neither saves
# nor loads it. Between workers it is sent like any other tensor, and loaded where it fits.


def without(
    tensors: Mapping[str, torch.Tensor], optional: Iterable[str]
) -> dict[str, torch.Tensor]:
    free = set(optional)
    return {name: tensor for name, tensor in tensors.items() if name not in free}


def overwrite(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Copy `value` into `tensor`, which has the same shape, also if `expand()` has made it."""
    strides = tensor.stride() if tensor.layout is torch.strided else tensor.shape
    shape = zip(tensor.shape, strides, strict=True)
    expanded = [size > 1 and step == 0 for size, step in shape]
    if any(expanded):  # PyTorch refuses to write to elements that share memory
        first = tuple(slice(1) if repeats else slice(None) for repeats in expanded)
        tensor, value = tensor[first], value[first]
    tensor.copy_(value)


# ------------------------------------------------------------
# Copy PyTorch state into host memory for a checkpoint, and turn such copies into tensors again.

KIND = "torch"


class Copier:
    """A copier of model state into host memory; each copy overwrites the tensors of the last."""

    def __init__(self) -> None:
        self._buffers: list[torch.Tensor] = []
        self._used = 0
        self._gpus: set[torch.device] = set()  # that copies were started on

    def copy(self, state: Any) -> Any:
        self._used = 0
        self._gpus.clear()
        copied = map_leaves(state, self._leaf)
        del self._buffers[self._used :]  # of a larger part of the state
        for gpu in self._gpus:  # a script may train on another one than the current device
            torch.cuda.synchronize(gpu)
        return copied

    def _leaf(self, value: Any, where: str) -> Any:
        if isinstance(value, np.ndarray):
            return value.copy()
        if not isinstance(value, torch.Tensor):
            return value
        if value.layout is not torch.strided or value.is_quantized or value.is_meta:
            raise CheckpointError(f"{where} is a {value.layout} tensor, which is not supported")
        source = value.detach()
        copy = self._buffers[self._used] if self._used < len(self._buffers) else None
        if copy is None or copy.shape != source.shape or copy.dtype != source.dtype:
            copy = torch.empty(
                source.shape, dtype=source.dtype, device="cpu", pin_memory=source.is_cuda
            )
            self._buffers[self._used : self._used + 1] = [copy]
        self._used += 1
        copy.copy_(source, non_blocking=source.is_cuda)
        if source.is_cuda:
            self._gpus.add(source.device)
        data = copy.reshape(-1).view(torch.uint8).numpy().data
        dtype = str(copy.dtype).removeprefix("torch.")
        return Blob(KIND, dtype, tuple(copy.shape), data, source.device.type)


def to_tensors(state: Any, *, copy: bool = False) -> Any:
    return map_leaves(state, partial(_tensor, copy=copy))


def _tensor(value: Any, where: str, copy: bool) -> Any:
    if not isinstance(value, Blob):
        return value
    dtype = getattr(torch, value.dtype, None)
    if value.kind != KIND or not isinstance(dtype, torch.dtype):
        raise CheckpointError(
            f"{where} is a {value.kind} array of {value.dtype}, which this PyTorch does not know"
        )
    if value.data.nbytes:
        flat = torch.frombuffer(value.data, dtype=torch.uint8).view(dtype)
    else:
        flat = torch.empty(0, dtype=dtype, device="cpu")
    there = value.device if value.device != "cuda" or torch.cuda.is_available() else "cpu"
    return flat.reshape(value.shape).to(there, copy=copy)  # else it may share the Blob's memory


def check_model(mine: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor]) -> None:
    if lacking := sorted(theirs.keys() - mine.keys()):
        raise CheckpointError(
            f"the checkpoint is of another model: only it has {few(lacking)}; a script that adds "
            "modules in its loop must build them before it to be resumed"
        )
    if odd := sorted(mine.keys() - theirs.keys()):
        raise CheckpointError(
            f"the checkpoint is of another model: only this script's has {few(odd)}"
        )
    shapes = [
        f"{name} has shape {tuple(theirs[name].shape)} there and {tuple(mine[name].shape)} here"
        for name in sorted(mine)
        if mine[name].shape != theirs[name].shape
    ]
    if shapes:
        raise CheckpointError(f"the checkpoint is of another model: {few(shapes)}")


# ------------------------------------------------------------
# Share the states of a script's GradScalers, so that a newcomer has the loss scale of the job.

_observe: Callable[[GradScaler], None] | None = None


def watch_scalers(observe: Callable[[GradScaler], None]) -> None:
    global _observe
    if (
        _observe is None
    ):  # PyTorch has no hook for that, and a script need not name its scaler to edl
        scale = GradScaler.scale

        @functools.wraps(scale)
        def scale_seen(self: GradScaler, outputs: Any) -> Any:
            if _observe is not None and self.is_enabled():
                _observe(self)
            return scale(self, outputs)

        GradScaler.scale = scale_seen  # type: ignore[method-assign]
    _observe = observe


class Scalers:
    """The GradScalers of a script, in the order of their first use, the same on all workers."""

    def __init__(self) -> None:
        self._seen: list[GradScaler] = []
        self._fresh: list[dict[str, Any]] = []  # their states when they were first seen
        self._awaiting: list[dict[str, Any]] = []  # states of the job's, by the same numbers

    def add(self, scaler: GradScaler) -> None:
        if any(seen is scaler for seen in self._seen):
            return
        self._seen.append(scaler)
        self._fresh.append(scaler.state_dict())
        if len(self._seen) <= len(self._awaiting):
            scaler.load_state_dict(self._awaiting[len(self._seen) - 1])

    def states(self) -> list[dict[str, Any]]:
        known = [scaler.state_dict() for scaler in self._seen]
        return known + self._awaiting[len(known) :]

    def load(self, states: Sequence[dict[str, Any]]) -> None:
        """Load `states`, the job's states of its scalers in the order of `states`."""
        self._awaiting = list(states)
        # One that was used in the warm-up only, and by nobody else yet, begins anew.
        theirs = self._awaiting + self._fresh[len(self._awaiting) :]
        for scaler, state in zip(self._seen, theirs, strict=False):
            scaler.load_state_dict(state)


# ------------------------------------------------------------
# Send PyTorch's tensors through the ring, by broadcasts.

COLLECTIVE_BYTES = 2**22  # what a worker receives and does not keep stays in the processor's cache


class TorchArrays:
    def __init__(self) -> None:
        self._reserved: dict[int, list[torch.Tensor]] = {}  # buffers in CPU memory, by their size

    def reserve(self, sent: list[Reference]) -> None:
        self._reserved.clear()
        for piece in transfers(sent):
            if piece[0].device == "cpu":
                size = sum(reference.size for reference in piece)
                # Written to now: that takes longer than the transfer, for which all workers wait.
                flat = torch.empty(size, dtype=torch.uint8).zero_()
                self._reserved.setdefault(size, []).append(flat)

    def refer(self, value: Any, index: int) -> tuple[torch.Tensor, Reference] | None:
        if not isinstance(value, torch.Tensor):
            return None
        tensor = value.detach()
        dtype = str(tensor.dtype).removeprefix("torch.")
        size = tensor.numel() * tensor.element_size()
        return tensor, Reference(index, tuple(tensor.shape), dtype, size, tensor.device.type)

    def empty(self, reference: Reference) -> torch.Tensor:
        dtype, device = getattr(torch, reference.dtype), _own_device(reference.device)
        return torch.empty(reference.shape, dtype=dtype, device=device)

    def broadcast(
        self,
        sent: list[Reference],
        arrays: list[torch.Tensor] | None,
        root: int,
        keep: bool,
    ) -> dict[int, torch.Tensor]:
        parts_sent = list(transfers(sent))
        buffers: list[torch.Tensor] = []
        handles: list[int] = []
        scratch: dict[str, torch.Tensor] = {}
        for number, piece in enumerate(parts_sent):
            size, kind = sum(reference.size for reference in piece), piece[0].device
            if arrays is not None:
                parts = [_bytes_of(arrays[reference.index]) for reference in piece]
                flat = parts[0] if len(parts) == 1 else torch.cat(parts)
            elif keep and kind == "cpu" and self._reserved.get(size):
                flat = self._reserved[size].pop()
            elif keep:
                flat = torch.empty(size, dtype=torch.uint8, device=_own_device(kind))
            else:  # one buffer for all: to touch new memory would cost more than the transfer
                if kind not in scratch:
                    device = _own_device(kind)
                    scratch[kind] = torch.empty(COLLECTIVE_BYTES, dtype=torch.uint8, device=device)
                flat = scratch[kind]
            buffers.append(flat)
            for start in range(0, size, COLLECTIVE_BYTES):
                begin = start if size <= len(flat) else 0  # each overwrites a scratch buffer
                part = flat[begin : begin + min(COLLECTIVE_BYTES, size - start)]
                handles.append(broadcast_start(part, root, f"edl.state.{number}.{start}"))
        self._reserved.clear()
        failures: list[CollectiveFailed] = []
        for handle in handles:  # all of them, so that Horovod lets go of all buffers
            try:
                finish(handle)
            except CollectiveFailed as error:
                failures.append(error)
        if failures:
            raise failures[0]
        received: dict[int, torch.Tensor] = {}
        for piece, flat in zip(parts_sent, buffers, strict=True) if keep else ():
            start = 0
            for reference in piece:
                stop = start + reference.size
                # In a shared piece a copy of its own: a view must be aligned to its type.
                own = flat if len(piece) == 1 else flat[start:stop].clone()
                received[reference.index] = own.view(getattr(torch, reference.dtype)).reshape(
                    reference.shape
                )
                start = stop
        return received


exchange = functools.partial(replica.exchange_state, TorchArrays())


def _own_device(kind: str) -> torch.device:
    return (
        torch.device("cuda", torch.cuda.current_device()) if kind == "cuda" else torch.device(kind)
    )


# ------------------------------------------------------------
# Find the options of an optimizer that its own `step()` computes.
#
# The options of a parameter group are set by the script and its schedulers, such as `lr` and
# `weight_decay`. Some optimizers also keep numbers there that `step()` computes from gradients
# (Prodigy, D-Adaptation) or counts (schedule-free optimizers). A worker that missed a step needs
# these from another worker, and must keep the others, which its script has yet to change.

SCHEDULED = ("lr", "initial_lr")  # by schedulers, at any time
Numbers = list[dict[str, Any]]  # of the options of each group, by name


def option_numbers(optimizer: torch.optim.Optimizer) -> Numbers:
    # A tensor is known by its identity and count of changes: to read it would wait for its device.
    return [
        {
            name: (id(value), value._version) if isinstance(value, torch.Tensor) else value
            for name, value in group.items()
            if isinstance(value, int | float | torch.Tensor) and name not in SCHEDULED
        }
        for group in optimizer.param_groups
    ]


class ComputedOptions:
    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.names: set[str] = set()
        self._optimizer = optimizer
        self._before: list[Numbers] = []  # of steps within steps, the outermost first
        for each in dict.fromkeys((optimizer, stepping(optimizer))):
            each.register_step_pre_hook(self._begin)
            each.register_step_post_hook(self._end)

    def _begin(self, *_: Any) -> None:
        self._before.append(option_numbers(self._optimizer))

    def _end(self, *_: Any) -> None:
        before, now = self._before.pop(), option_numbers(self._optimizer)
        for old, new in zip(before, now, strict=False):
            self.names.update(name for name in new if old.get(name) != new[name])


# ------------------------------------------------------------
# Seed, save and restore PyTorch's global generators.


def seed_torch(seed: int | None) -> None:
    if seed is None:
        torch.seed()
    else:
        torch.manual_seed(seed)


def torch_generators() -> tuple[torch.Generator, ...]:
    uses_gpus = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return (torch.default_generator, *(torch.cuda.default_generators if uses_gpus else ()))


class TorchGenerators:
    def read(self) -> int:
        return torch.initial_seed()

    def seed(self, seed: int) -> None:
        """Seed all, those of GPUs that start later too; it takes 250 µs."""
        torch.manual_seed(seed)

    def save(self) -> list[torch.Tensor]:
        return [generator.get_state() for generator in torch_generators()]

    def restore(self, saved: list[torch.Tensor]) -> None:
        """Set their states; a GPU that has started since `save` goes on as it is."""
        for generator, state in zip(torch_generators(), saved, strict=False):
            generator.set_state(state)

    def seed_between(self, seed: int) -> None:
        for generator in torch_generators():
            generator.manual_seed(seed)


# ------------------------------------------------------------
# Give edl access to the model, the optimizers and the tracked objects of a script.

GROUPS = "edl: groups"  # a key in the state of an optimizer; missing in old checkpoints
COMPUTED = "computed"  # a key in the state of its groups
AVERAGES = ("running_mean", "running_var", "num_batches_tracked")  # of BatchNorm, InstanceNorm
NAMED = ("model", "requires_grad", "extra")  # the keys of a state under which names stand


class _Trained:
    def __init__(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, last_step: LastStep
    ) -> None:
        self.model, self.optimizer, self.last_step = model, optimizer, last_step
        self.groups = ParameterGroups(optimizer, model)
        self.computed = ComputedOptions(optimizer)


class TorchReplica(FrameworkReplica):
    framework = "torch"
    misfits = (*FrameworkReplica.misfits, RuntimeError)

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        last_step: LastStep | None = None,
        averages_buffers: bool = False,  # a step of logical workers sets buffers to their means
    ) -> None:
        super().__init__(type(optimizer).__name__)
        self._averages_buffers = averages_buffers
        self.arrays: TorchArrays = TorchArrays()
        self._scalers = Scalers()
        self._schedulers = Schedulers()
        self._schedulers.add(optimizer)
        self._trained = [_Trained(model, optimizer, last_step or LastStep())]
        self._copier = Copier()
        self._flags = Flags()
        self._unsaved: set[str] = set()  # modules with an extra state that was warned of

    def add(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, last_step: LastStep
    ) -> None:
        self._schedulers.add(optimizer)
        self._trained.append(_Trained(model, optimizer, last_step))
        self.rename([type(each.optimizer).__name__ for each in self._trained])

    def model_of(self, optimizer: torch.optim.Optimizer) -> torch.nn.Module | None:
        return next((one.model for one in self._trained if one.optimizer is optimizer), None)

    @staticmethod
    def check(objects: Mapping[str, Any]) -> None:
        for name, thing in objects.items():
            if not isinstance(thing, Trackable):
                raise UsageError(
                    f"edl.track({name}=...): a {type(thing).__name__} has no state_dict() and "
                    "load_state_dict()"
                )

    def objects_from_gradients(self) -> dict[str, Trackable]:
        """Return, by name, the tracked objects whose state a script may compute from gradients."""
        # A scaler learns of a missed step by its gradients, and to read it waits for the device.
        things = self.compared_things().items()
        return {n: thing for n, thing in things if not isinstance(thing, torch.amp.GradScaler)}

    def add_scaler(self, scaler: torch.amp.GradScaler) -> None:
        """Add the state of `scaler`, which the script is about to use, to the shared state."""
        if not any(thing is scaler for thing in self.things().values()):
            self._scalers.add(scaler)

    def begin(self) -> None:
        self._flags.begin(self._parameters())
        for each in self._trained:
            each.groups.begin()

    def state(self) -> dict[str, Any]:
        return {
            "model": {name: tensor.detach() for name, tensor in self._model_tensors().items()},
            "non_persistent": sorted(self._non_persistent()),
            "optimizers": [
                {
                    **state_of(each.optimizer),
                    GROUPS: {**each.groups.state(), COMPUTED: sorted(each.computed.names)},
                }
                for each in self._trained
            ],
            "requires_grad": self._flags.changed(self._parameters()),
            "extra": [extra_states(model) for model in self._models()],
            "scalers": self._scalers.states(),
            "schedulers": self._schedulers.states(self.things().values()),
            "skipped": [bool(each.last_step.skipped) for each in self._trained],
            "tracked": self.states_of_things(),
        }

    def expect_state(self) -> None:
        """Allocate the memory into which this newcomer will receive the job's state."""
        self.arrays.reserve(references(describe(self.state(), [], self.arrays.refer)))

    def compared(self) -> dict[str, Any]:
        prefixes = self._prefixes()
        models = dict(zip(prefixes, self._models(), strict=True))
        compared = {
            f"{prefix}{plain_name(name)}": parameter
            for prefix, model in models.items()
            for name, parameter in model.named_parameters()
        }
        optimizers = {}
        for number, each in enumerate(self._trained):
            trained = dict(optimizer_parameters(each.optimizer, each.model))
            compared |= self._outside(each, trained.items())
            optimizers[str(number)] = named_state(state_of(each.optimizer), list(trained))
        return {
            "model": compared,
            "optimizer": optimizers if len(optimizers) > 1 else optimizers["0"],
            "tracked": {
                name: dict(thing.named_parameters())
                if isinstance(thing, torch.nn.Module)
                else thing.state_dict()
                for name, thing in self.compared_things().items()
            },
            "scalers": self._scalers.states(),
        }

    def equal_on_all(self, state: dict[str, Any]) -> Iterable[Any]:
        equal = [state["model"][name] for name in self._parameters()]
        map_leaves(state["optimizers"], lambda value, _: equal.append(value))
        return equal

    def signature(self) -> dict[str, str]:
        # A forward pass may make or enlarge buffers that are not persistent.
        tensors = without(self._model_tensors(), self._non_persistent())
        return {name: str(tuple(one.shape)) for name, one in tensors.items()}

    size_of = staticmethod(size_of)

    def buffers(self) -> dict[str, Any]:
        return {
            f"{prefix}{path}{'.' * bool(path)}{name}": buffer
            for prefix, model in zip(self._prefixes(), self._models(), strict=True)
            for path, module in model.named_modules()
            if not isinstance(module, _NormBase)
            for name, buffer in module.named_buffers(recurse=False)
        }

    def digested(self, parts: Iterable[ByteRange]) -> dict[str, int]:
        return digests(parts)

    def _averages(self) -> list[torch.Tensor]:
        tracked = (thing for thing in self.things().values() if isinstance(thing, torch.nn.Module))
        named = [each for one in (*self._models(), *tracked) for each in one.named_buffers()]
        found = dict.fromkeys(t for name, t in named if name.rpartition(".")[2] in AVERAGES)
        return list(found)

    def averages(self) -> list[Array]:
        return [each.detach().cpu().double().numpy() for each in self._averages()]

    def set_averages(self, means: Sequence[Array]) -> None:
        with torch.no_grad():
            for tensor, mean in zip(self._averages(), map(torch.from_numpy, means), strict=True):
                overwrite(tensor, mean if tensor.is_floating_point() else mean.round())

    def learning_rates(self) -> dict[str, float]:
        return rates_of([each.optimizer for each in self._trained])

    def load(self, state: dict[str, Any], receive: Receive) -> None:
        """Load what `receive` says of `state`, which is changed; its tensors may be shared."""
        mine, optional = self._model_tensors(), self._optional(state)
        sent: dict[str, torch.Tensor] = state["model"]
        if odd := sorted((mine.keys() ^ sent.keys()) - optional):
            raise UsageError(f"this worker's model differs from the job's in {', '.join(odd)}")
        if len(self._trained) != len(state["optimizers"]):
            raise UsageError(
                f"this worker has {counted(len(self._trained), 'edl.Optimizer')}, and the job "
                f"{len(state['optimizers'])}"
            )
        taken = [
            name
            for name, tensor in mine.items()
            if name not in optional or (name in sent and sent[name].shape == tensor.shape)
        ]
        exact = all(same_kind(mine[name], sent[name]) for name in taken)
        if receive is Receive.STEP:
            # The script changes all others: an average of the weights, a target network, a buffer.
            trained: set[torch.Tensor] = set()
            for each in self._trained:
                trained |= {one for _, one in optimizer_parameters(each.optimizer, each.model)}
                if self._averages_buffers:
                    trained |= {*each.model.buffers()}
            taken = [name for name in taken if mine[name] in trained]
        with torch.no_grad():
            for name in taken:
                overwrite(mine[name], sent[name])
        came = {name: sent[name] for name in taken}
        for each, theirs, skipped in zip(
            self._trained, state["optimizers"], state["skipped"], strict=True
        ):
            each.last_step.skipped = skipped
            if receive is Receive.STEP:
                state_again = self._load_step(each, theirs, exact)
                weights = {} if keeps_tensors(each.optimizer) else came

                def put_back(
                    weights: dict[str, torch.Tensor] = weights,
                    state_again: Callable[[], None] = state_again,
                ) -> None:  # some optimizers change them without gradients
                    now = self._model_tensors()
                    with torch.no_grad():
                        for name, tensor in weights.items():
                            now[name].copy_(tensor)
                    state_again()

                each.last_step.missed = put_back
            else:
                self._load_optimizer(each, theirs, exact)
        if receive is Receive.ALL:
            self._flags.follow(self._parameters(), state.get("requires_grad", {}))
            for model, extra in zip(self._models(), state.get("extra", ()), strict=False):
                load_extra_states(model, extra)
        if receive is not Receive.STEP:
            self._scalers.load(state["scalers"])
            self.load_things(state["tracked"], receive)
            if odd := self._schedulers.load(state["schedulers"], self.things().values()):
                logger.warning(
                    "the job has the state of a %s, and this script has made no such LR scheduler "
                    "for an edl.Optimizer yet: make it before the loop, else it begins anew",
                    " and a ".join(odd),
                )

    def load_thing(self, thing: Trackable, state: Any) -> None:
        if isinstance(thing, LRScheduler):
            load_scheduler(thing, state)
        else:
            super().load_thing(thing, state)

    @staticmethod
    def _load_step(each: _Trained, theirs: dict[str, Any], exact: bool) -> Callable[[], None]:
        """Load the result of a step that was missed; return what writes the same once more."""
        groups, own = theirs.pop(GROUPS), each.optimizer
        if groups["now"] != each.groups.names:  # its parameters are numbered as on this worker
            names = [name for group in groups["now"] for name in group]
            mine = [name for group in each.groups.names for name in group]
            numbers = {name: number for number, name in enumerate(mine)}
            theirs["state"] = {
                numbers[names[key]] if isinstance(key, int) else key: value
                for key, value in theirs["state"].items()
                if not isinstance(key, int) or names[key] in numbers
            }
        computed = groups[COMPUTED]
        # Its own options stay: its script and schedulers have yet to make the sender's changes.
        kept = copied_for_step(own, theirs)
        load_state(own, with_own_options(own, theirs, computed), exact)
        return lambda: load_state(own, with_own_options(own, kept, computed), exact)

    @staticmethod
    def _load_optimizer(each: _Trained, theirs: dict[str, Any], exact: bool) -> None:
        groups = theirs.pop(GROUPS, None)
        if groups is not None:
            options = [
                {name: value for name, value in group.items() if name != "params"}
                for group in theirs["param_groups"]
            ]
            each.groups.follow(groups, options)
        load_state(each.optimizer, theirs, exact)

    def durable(self) -> dict[str, Any]:
        names: dict[str, str] = {}
        besides: dict[str, Any] = {}
        for prefix, model in zip(self._prefixes(), self._models(), strict=True):
            found, rest = state_dict_names(model)
            names |= {f"{prefix}{name}": f"{prefix}{tensor}" for name, tensor in found.items()}
            besides |= {f"{prefix}{name}": value for name, value in rest.items()}
        state = super().durable()
        extra = state["extra"]
        state["extra"] = [
            {name: value for name, value in states.items() if can_save(value)} for states in extra
        ]
        for states, saved in zip(extra, state["extra"], strict=True):
            if unsaved := states.keys() - saved.keys() - self._unsaved:
                self._unsaved |= unsaved
                logger.warning(
                    "checkpoints leave out the extra state of %s, which a file cannot hold: "
                    "newcomers get it, but not a job that continues from a checkpoint",
                    ", ".join(sorted(name or "the model" for name in unsaved)),
                )
        state["schedulers"] = savable(state["schedulers"])
        return {**state, "state_dict": {"names": names, "besides": besides}}

    def copied(self, state: dict[str, Any]) -> Any:
        return self._copier.copy(state)

    def uncopied(self, state: Any) -> dict[str, Any]:
        loaded: dict[str, Any] = to_tensors(state, copy=True)  # `copied` overwrites that memory
        named = [name for name in NAMED if name in loaded]
        loaded |= {name: with_plain_names(loaded[name]) for name in named}
        for each in loaded["optimizers"]:
            if GROUPS in each:
                each[GROUPS] = with_plain_names(each[GROUPS])
        optional = self._optional(loaded)
        check_model(without(self._model_tensors(), optional), without(loaded["model"], optional))
        return loaded

    def _model_tensors(self) -> dict[str, torch.Tensor]:
        tensors: dict[str, torch.Tensor] = {}
        for prefix, model in zip(self._prefixes(), self._models(), strict=True):
            named = (*model.named_parameters(), *model.named_buffers())
            tensors |= {f"{prefix}{plain_name(name)}": tensor for name, tensor in named}
        for each in self._trained:
            tensors |= self._outside(each, optimizer_parameters(each.optimizer, each.model))
        return tensors

    def _non_persistent(self) -> set[str]:
        return {  # buffers that are not in a `state_dict()`
            f"{prefix}{plain_name(f'{path}.{name}' if path else name)}"
            for prefix, model in zip(self._prefixes(), self._models(), strict=True)
            for path, module in model.named_modules()
            for name in module._non_persistent_buffers_set
        }

    def _optional(self, state: Mapping[str, Any]) -> set[str]:
        return self._non_persistent() | set(state.get("non_persistent", ()))

    def _parameters(self) -> dict[str, torch.Tensor]:
        tensors = self._model_tensors().items()
        return {n: tensor for n, tensor in tensors if isinstance(tensor, torch.nn.Parameter)}

    def _outside(
        self, each: _Trained, trained: Iterable[tuple[str, torch.nn.Parameter]]
    ) -> dict[str, torch.nn.Parameter]:
        """Return the parameters of one optimizer that belong to no model of the state, by name."""
        inside = {parameter for model in self._models() for parameter in model.parameters()}
        prefix = self._prefixes()[self._models().index(each.model)]
        return {f"{prefix}{name}": each for name, each in trained if each not in inside}

    def _models(self) -> list[torch.nn.Module]:
        return list(dict.fromkeys(each.model for each in self._trained))

    def _prefixes(self) -> list[str]:
        models = self._models()
        return [f"{number}." for number in range(len(models))] if len(models) > 1 else [""]


def rates_of(optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, float]:
    rates, values = {}, {}
    for number, optimizer in enumerate(optimizers):
        of = f" of optimizer {number}" if len(optimizers) > 1 else ""
        groups = optimizer.param_groups
        for index, group in enumerate(groups):
            where = f" of parameter group {index}" if len(groups) > 1 else ""
            if "lr" in group:
                rates[f"learning rate{where}{of}"] = float(group["lr"])
        for index, value in enumerate(step_values(optimizer)):
            values[f"{STEP_VALUE}{f' of scheduler {index}' if index else ''}{of}"] = value
    return rates | values


EXTRA = "_extra_state"  # the last part of the name of what get_extra_state() gives


def load_weights(
    path: str | os.PathLike[str], model: torch.nn.Module | None = None, prefix: str = ""
) -> dict[str, torch.Tensor]:
    """Return the weights in a checkpoint, on the CPU, by the names that ``state_dict()`` has.

    It needs no job and no ``edl.init()``.

    Args:
        path: a checkpoint, a directory with checkpoints (the newest undamaged one is taken), or a
            file of ``edl checkpoint export``.
        model: a model into which the weights are loaded, on the device where it is; None: the
            weights are only returned.
        prefix: load only names that begin with it, and remove it from them: ``1.`` is for the
            second of several models, in the order of their optimizers. Empty: load all.

    Raises:
        CheckpointError: there is no undamaged file, or the model has other names or shapes; the
            model is then unchanged.
    """

    def on_cpu(leaf: Any, _where: str) -> Any:
        return replace(leaf, kind=KIND, device="cpu") if isinstance(leaf, Blob) else leaf

    blobs = {
        name.removeprefix(prefix): map_leaves(value, on_cpu)
        for name, value in weights(location(path)).items()
        if name.startswith(prefix)
    }
    found: dict[str, torch.Tensor] = to_tensors(blobs)
    if model is not None:
        _load(model, found, path)
    return found


def _load(
    model: torch.nn.Module, found: Mapping[str, torch.Tensor], path: str | os.PathLike[str]
) -> None:
    mine = model.state_dict(keep_vars=True)
    theirs = {plain_name(name): value for name, value in found.items()}
    firsts: dict[int, str] = {}  # by id of a tensor: a name of it in the file
    for name, value in mine.items():
        if plain_name(name) in theirs:
            firsts.setdefault(id(value), plain_name(name))
    wanted = {name: firsts.get(id(value), plain_name(name)) for name, value in mine.items()}
    wanted |= {name: plain for name in mine if (plain := plain_name(name)) in theirs}
    passed_over = {plain_name(name) for name, _ in model.named_buffers()}  # in an older checkpoint
    extra = {name for name in theirs if name.endswith(EXTRA)}
    odd = (
        [f"{name} is not there" for name in sorted(mine) if wanted[name] not in theirs]
        or [
            f"{name} has shape {tuple(theirs[wanted[name]].shape)} there and "
            f"{tuple(value.shape)} here"
            for name, value in sorted(mine.items())
            if isinstance(value, torch.Tensor) and theirs[wanted[name]].shape != value.shape
        ]
        or [
            f"only it has {name}"
            for name in sorted(theirs.keys() - {*wanted.values()} - passed_over - extra)
        ]
    )
    if odd:
        raise CheckpointError(f"{path} is of another model: {few(odd)}")
    model.load_state_dict({name: theirs[wanted[name]] for name in mine})
