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
    """A watcher that calls ``ended()`` once after each backward pass that called :meth:`expect`.

    An exception that ``ended()`` raises comes out of ``backward()``. On a device other than the CPU
    ``ended()`` may run in a thread of autograd's engine, while the thread that called
    ``backward()`` waits for the engine.

    A backward pass inside of another pass (``torch.utils.checkpoint`` with ``use_reentrant=True``)
    ends before the gradients of the outer pass are complete. In this case ``ended()`` is called at
    the end of the outer pass.

    Args:
        ended: the function to call; it has no arguments.

    Attributes:
        failed: whether an exception has ended a backward pass in which :meth:`expect` was called.
            The user of this object sets it back to False.
    """

    def __init__(self, ended: Callable[[], None]) -> None:
        self.failed = False
        self._ended = ended
        self._expected_in = -1

    def expect(self) -> None:
        """Request a call of ``ended()`` at the end of the current backward pass.

        Hooks of autograd call this, any number of times in a pass; ``ended()`` is called once.
        """
        if (this_pass := _current_pass()) != self._expected_in:
            self._expected_in = this_pass
            _ENGINE.queue_callback(_Pass(self))

    def at_end(self) -> None:
        """Call ``ended()``; in a pass inside of another pass, call it at the end of the outer pass.

        Autograd's engine calls this at the end of a backward pass.
        """
        if (node := _current_node()) is None:
            self._ended()
        else:  # the node of the outer pass that runs this one; its hooks belong to the outer
            node.register_hook(self._in_outer_pass)

    def _in_outer_pass(self, *_: Any) -> None:
        self.expect()


class _Pass:
    """The callback of one backward pass: autograd's engine calls it at the end, then releases it.

    If the engine releases the callback without having called it, an exception has ended the pass,
    and ``end.failed`` is set. The engine has no other sign of that.

    Args:
        end: the watcher whose :meth:`BackwardEnd.at_end` the callback calls.
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
