"""A newcomer's first batch, awaited in a thread while the newcomer trains along for nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any


class FirstBatch:
    """The next one of ``batches``, which no other thread touches until :meth:`take` returns.

    ``missing``: what :meth:`take` returns when there is none.
    """

    def __init__(self, batches: Iterator[Any], missing: object) -> None:
        self._batches = batches
        self._batch: Any = missing
        self._error: Exception | None = None
        self._come = threading.Event()
        self._taken = threading.Event()
        self._wanted = True
        self._thread = threading.Thread(target=self._await, name="edl-first-batch", daemon=True)
        self._thread.start()

    @property
    def has_come(self) -> bool:
        """It is loaded, or cannot be."""
        return self._come.is_set()

    def take(self) -> Any:
        """The batch; waits for it.

        Raises:
            What loading it has raised.
        """
        self._taken.set()
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._batch

    def discard(self) -> None:
        """Nobody wants it; waits until it has come, for the loader is used again."""
        self._wanted = False
        self._taken.set()
        self._thread.join()

    def may_form(self) -> bool:
        """Called where a framework wants to load one more batch: whether it may, once it may.

        What that is depends on the steps that are trained meanwhile. So, where the framework wants
        to because this batch has come, it is held there until this one is taken.
        """
        if threading.current_thread() is self._thread:
            self._come.set()
            self._taken.wait()
        return self._wanted

    def _await(self) -> None:
        try:
            self._batch = next(self._batches, self._batch)
        except Exception as error:  # noqa: BLE001 - raised by the training thread
            self._error = error
        self._come.set()
