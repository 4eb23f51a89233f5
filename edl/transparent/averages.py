"""Send the script's averages of the weights to newcomers and resumed jobs: :class:`ScriptAverages`.

A script for plain Horovod makes its ``AveragedModel`` (EMA, SWA) in each process, and no call says
that it belongs to the state of the training.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.optim.swa_utils import AveragedModel

from edl.errors import CheckpointError, UsageError

NONE_SAVED = (
    "an earlier edl wrote the checkpoint, and saved no averages of the weights in it, so this "
    "script's AveragedModel would begin anew: begin the training anew (edl run without --resume), "
    "or remove the AveragedModel from the script"
)
UNLIKE = (
    "an AveragedModel of this script is not like the job's: {kind} must have the same parameters "
    "and buffers when it is made, on all workers and in a resumed job ({why})"
)


class ScriptAverages:
    """The averages of the weights that a script makes, in its order; a part of the job's state."""

    edl_compared = False  # a script may make an average on rank 0 alone

    def __init__(self, passes_over: Callable[[], bool] = lambda: False) -> None:
        self._passes_over = passes_over
        self._were_saved = True  # in the checkpoint that this process has loaded, if any
        self._made: list[weakref.ref[AveragedModel]] = []
        self._waiting: list[Any] = []  # states of averages that the script has yet to make

    def add(self, average: AveragedModel) -> None:
        """Add an average that the script has just made; it gets its state in the job, if any."""
        if not self._were_saved and self._passes_over():
            raise CheckpointError(NONE_SAVED)
        self._made.append(weakref.ref(average))
        if self._waiting:
            _load([average], [self._waiting.pop(0)])

    def state_dict(self) -> dict[str, Any]:
        # None: the script has deleted the average.
        states = [None if one is None else dict(one.state_dict()) for one in self._alive()]
        return {"states": [*states, *self._waiting]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        states, alive = state["states"], self._alive()
        _load(alive, states)
        self._waiting = list(states[len(alive) :])

    def edl_state_if_missing(self) -> dict[str, Any]:
        """Return the state for a job that is resumed from a checkpoint without averages."""
        if any(one is not None for one in self._alive()):
            raise CheckpointError(NONE_SAVED)
        self._were_saved = False
        return {"states": []}

    def _alive(self) -> list[AveragedModel | None]:
        return [ref() for ref in self._made]


def _load(averages: Sequence[AveragedModel | None], states: Sequence[Any]) -> None:
    """Load into each average the state with the same index, where there are both."""
    for average, state in zip(averages, states, strict=False):
        if average is None or state is None:
            continue
        mine = average.state_dict()
        # A subclass may make buffers after its construction, as in its first update.
        new = {name: value for name, value in state.items() if name not in mine}
        device = next(average.parameters(), average.n_averaged).device
        try:
            for name, value in new.items():
                if "." not in name and isinstance(value, torch.Tensor):  # not of a submodule
                    average.register_buffer(name, value.to(device, copy=True))
            average.load_state_dict(state)
        except (RuntimeError, KeyError) as error:
            kind, why = type(average).__name__, " ".join(str(error).split())
            raise UsageError(UNLIKE.format(kind=kind, why=why)) from error


def watch_averages(averages: ScriptAverages) -> None:
    """Add all averages that the script makes from now on to `averages`; call it once."""
    # It replaces constructors, because PyTorch has no hook for that. The outermost one adds the
    # average: a subclass makes its own buffers after it has called that of `AveragedModel`.
    in_the_making: set[int] = set()  # ids of averages whose outermost constructor runs

    def watch(kind: type[AveragedModel]) -> None:
        make = kind.__init__

        @functools.wraps(make)
        def noted(self: AveragedModel, *given: Any, **named: Any) -> None:
            if id(self) in in_the_making:
                make(self, *given, **named)
                return
            in_the_making.add(id(self))
            try:
                make(self, *given, **named)
            finally:
                in_the_making.discard(id(self))
            averages.add(self)

        kind.__init__ = noted  # type: ignore[method-assign]

    def defined(kind: type[AveragedModel], /, **named: Any) -> None:
        super(AveragedModel, kind).__init_subclass__(**named)
        watch(kind)

    for kind in _with_subclasses(AveragedModel):
        watch(kind)
    AveragedModel.__init_subclass__ = classmethod(defined)  # type: ignore[assignment]


def _with_subclasses(kind: type[AveragedModel]) -> Iterator[type[AveragedModel]]:
    """Yield a class, and all its subclasses after it."""
    yield kind
    for one in kind.__subclasses__():
        yield from _with_subclasses(one)
