"""The end of a backward pass, as autograd's engine has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_ENGINE: Any = torch.autograd.Variable._execution_engine
_current_pass: Callable[[], int] = torch._C._current_graph_task_id
_current_node: Callable[[], Any] = torch._C._current_autograd_node


class BackwardEnd:
    """Calls ``ended()`` at the end of each backward pass in which :meth:`expect` was called.

    What it raises comes out of ``backward()``. On a device other than the CPU it may be called
    in a thread of the engine's, while the one that called ``backward()`` waits for it.

    A backward pass inside of another one (``torch.utils.checkpoint`` with ``use_reentrant=True``)
    ends before the gradients of the outer one are complete, so that the end of the outer one is
    waited for then.

    Attributes:
        failed: an exception has broken off a pass in which an end was expected.
    """

    def __init__(self, ended: Callable[[], None]) -> None:
        self.failed = False
        self._ended = ended
        self._expected_in = -1

    def expect(self) -> None:
        """Called in a hook of autograd's, any number of times."""
        if (this_pass := _current_pass()) != self._expected_in:
            self._expected_in = this_pass
            _ENGINE.queue_callback(_Pass(self))

    def at_end(self) -> None:
        """A pass in which its end was expected has come to it."""
        if (node := _current_node()) is None:
            self._ended()
        else:  # the node of the outer pass that runs this one; its hooks belong to the outer
            node.register_hook(self._in_outer_pass)

    def _in_outer_pass(self, *_: Any) -> None:
        self.expect()


class _Pass:
    """What autograd's engine calls at the end of a pass, and lets go of when the pass is over.

    The engine has no other word for a pass that an exception has broken off.
    """

    def __init__(self, end: BackwardEnd) -> None:
        self._end = end
        self._came = False

    def __call__(self) -> None:
        self._came = True
        self._end.at_end()

    def __del__(self) -> None:
        if not self._came:
            self._end.failed = True
