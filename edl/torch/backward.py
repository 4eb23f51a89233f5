"""Call a function at the end of each backward pass, by callbacks of autograd's engine.

:class:`BackwardEnd` is the watcher that calls it; gradient hooks call its ``expect()``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_ENGINE: Any = torch.autograd.Variable._execution_engine
_current_pass: Callable[[], int] = torch._C._current_graph_task_id
_current_node: Callable[[], Any] = torch._C._current_autograd_node


class BackwardEnd:
    """A watcher that calls `ended()` once after each backward pass that called `expect`."""

    # On a GPU that may be in a thread of autograd's engine, while the one of `backward()` waits.

    def __init__(self, ended: Callable[[], None]) -> None:
        self.failed = False  # whether an exception has ended such a pass; the user resets it
        self._ended = ended
        self._expected_in = -1

    def expect(self) -> None:
        """Request a call of `ended()` at the end of the current backward pass."""
        if (this_pass := _current_pass()) != self._expected_in:
            self._expected_in = this_pass
            _ENGINE.queue_callback(_Pass(self))

    def at_end(self) -> None:
        # Inside of another pass (a reentrant checkpoint), whose gradients are not complete yet, it
        # is called at the end of that.
        if (node := _current_node()) is None:
            self._ended()
        else:  # the node of the outer pass that runs this one; its hooks belong to the outer
            node.register_hook(self._in_outer_pass)

    def _in_outer_pass(self, *_: Any) -> None:
        self.expect()


class _Pass:
    """The callback of one backward pass: if the engine drops it uncalled, the pass has failed."""

    def __init__(self, end: BackwardEnd) -> None:
        self._end = end
        self._came = False

    def __call__(self) -> None:
        self._came = True
        self._end.at_end()

    def __del__(self) -> None:
        if not self._came:
            self._end.failed = True
