"""Let each logical worker of a step begin with the same buffers: those that the step began with.

Buffers are what a model keeps beside its parameters, such as BatchNorm's averages. At the end of
the step each buffer is the mean over all logical workers (:class:`LogicalBuffers`).

After each pass the buffers are compared with their values at the beginning of the step, and what
the pass has changed is kept. On a GPU the processor would have to wait for the pass there. So small
buffers on a GPU are kept whether they have changed or not, and compared at the end of the step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from edl.framework.exact_mean import Summands
from edl.torch.exact_tensors import Tensors, by_type, is_launched

SMALL = 1 << 20  # elements; a larger buffer seldom changes, and to keep it takes memory


class _Buffer(NamedTuple):
    """A buffer of a module, and a copy of its values at the beginning of the step."""

    path: str
    module: torch.nn.Module
    name: str
    buffer: torch.Tensor
    copy: torch.Tensor

    def is_replaced(self) -> bool:
        """Return whether a forward pass has put another tensor, or None, in the buffer's place."""
        return self.module._buffers.get(self.name) is not self.buffer

    def take_back(self) -> torch.Tensor | None:
        """Set the buffer to the copy; return the values that it had; None: they are the same."""
        now = self.module._buffers.get(self.name)
        if now is None or (now is self.buffer and torch.equal(now, self.copy)):
            return None
        values = now.detach().clone()
        self.module._buffers[self.name] = self.buffer
        with torch.no_grad():
            self.buffer.copy_(self.copy)
        return values


class _GpuBuffers:
    """Small buffers of one type on one GPU, each operation on which takes all of them."""

    def __init__(self, buffers: Sequence[torch.Tensor]) -> None:
        self._buffers = buffers
        self._before = self._values()
        self._after: list[torch.Tensor] = []  # by logical worker
        self.copies = self._divide(self._before)

    def end_piece(self, counts: bool) -> list[torch.Tensor]:
        """Set the buffers to the copies, and return the values that they had."""
        values = self._values()
        with torch.no_grad():
            torch._foreach_copy_([*self._buffers], self.copies)
        if counts:
            self._after.append(values)
        return self._divide(values)

    def changes(self) -> list[torch.Tensor]:
        """Return for each buffer 1.0 where some pass has changed it, else 0.0."""
        if not self._after:
            return []
        changed = (torch.stack(self._after) != self._before).any(dim=0)
        return self._divide(changed.float())

    def _values(self) -> torch.Tensor:
        return torch.cat([buffer.detach().reshape(-1) for buffer in self._buffers])

    def _divide(self, values: torch.Tensor) -> list[torch.Tensor]:
        parts = values.split_with_sizes([buffer.numel() for buffer in self._buffers])
        return [part.view(buffer.shape) for part, buffer in zip(parts, self._buffers, strict=True)]


class LogicalBuffers:
    """The buffers of a model in a step of logical workers."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._before: list[_Buffer] = []
        self._gpu: list[tuple[list[int], _GpuBuffers]] = []  # with their indices in _before
        self._after: list[list[torch.Tensor | None]] = []  # by logical worker; None: unchanged
        self._changed: set[int] = set()  # the indices of what some pass has changed for certain

    def begin_step(self) -> None:
        """Keep a copy of all buffers, with which each logical worker of the step begins."""
        known: dict[int, tuple[str, torch.nn.Module, str, torch.Tensor]] = {}
        for path, module in self._model.named_modules():
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    full = f"{path}.{name}" if path else name
                    known.setdefault(id(buffer), (full, module, name, buffer))
        buffers = [each[-1] for each in known.values()]
        small = [index for index, buffer in enumerate(buffers) if _is_compared_later(buffer)]
        self._gpu = []
        copies: dict[int, torch.Tensor] = {}
        for group in by_type([buffers[index] for index in small]):
            indices = [small[each] for each in group]
            together = _GpuBuffers([buffers[index] for index in indices])
            self._gpu.append((indices, together))
            copies.update(zip(indices, together.copies, strict=True))
        self._before = [
            _Buffer(*each, copies[index] if index in copies else each[-1].detach().clone())
            for index, each in enumerate(known.values())
        ]
        self._after, self._changed = [], set()

    @property
    def names(self) -> list[str]:
        """A description of each buffer of the step, by its name in the model."""
        return [f"the buffer {each.path}" for each in self._before]

    def end_piece(self, counts: bool) -> list[torch.Tensor]:
        """Put the copies back; return what the pass made of the buffers, kept if it `counts`."""
        after: list[torch.Tensor | None] = [None] * len(self._before)
        looked_at = set(range(len(self._before)))
        for indices, together in self._gpu:
            for index, values in zip(indices, together.end_piece(counts), strict=True):
                if not self._before[index].is_replaced():
                    after[index] = values
                    looked_at.remove(index)
        changed = set()
        for index in looked_at:
            after[index] = self._before[index].take_back()
            if after[index] is not None:
                changed.add(index)
        if counts:
            self._after.append(after)
            self._changed |= changed
        pairs = zip(self._before, after, strict=True)
        return [each.copy if one is None else one for each, one in pairs]

    def summands(self, pieces: int) -> Iterator[Summands]:
        """Yield for each buffer what this worker adds to its mean."""
        changed = self._changed | self._compared()
        for index, (_, _, _, buffer, copy) in enumerate(self._before):
            after = [one[index] for one in self._after]
            own = [(copy if one is None else one, 1.0) for one in after]
            yield Summands(buffer, own, float(pieces), index in changed, copy)

    def _compared(self) -> set[int]:
        """Return the indices of the small buffers on a GPU that some pass has changed."""
        order, changes = [], []
        for indices, together in self._gpu:
            if found := together.changes():
                order += indices
                changes += found
        largest = Tensors().largest(changes)
        return {index for index, most in zip(order, largest, strict=True) if most > 0.0}


def _is_compared_later(buffer: torch.Tensor) -> bool:
    """Return whether a buffer is compared at the end of the step, and put back in any case."""
    shape = zip(buffer.shape, buffer.stride(), strict=True)
    shares = any(size > 1 and step == 0 for size, step in shape)  # so it cannot be written to
    return is_launched(buffer.device) and buffer.numel() <= SMALL and not shares
