"""Load a newcomer's first batch in a thread (:class:`FirstBatch`), while it trains padding batches.

A newcomer is a worker that has just joined the ring; the weight of a padding batch is 0.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any


class FirstBatch:
    """A thread that loads a newcomer's first batch; until it ends, only it uses the iterator."""

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
        """Whether `take` need not wait: the batch is loaded, there is none, or it failed."""
        return self._come.is_set()

    def take(self) -> Any:
        """Wait until the batch is loaded, and return it; return `missing` if there is no batch."""
        self._taken.set()
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._batch

    def discard(self) -> None:
        """Wait until the batch is loaded, and drop it, or the error that loading it has raised."""
        self._wanted = False
        self._taken.set()
        self._thread.join()

    def may_form(self) -> bool:
        """Return whether the framework's loader may form one more batch; False after a discard."""
        if threading.current_thread() is self._thread:
            self._come.set()
            # The samples of the second batch depend on the steps that are trained until `take`.
            self._taken.wait()
        return self._wanted

    def _await(self) -> None:
        try:
            self._batch = next(self._batches, self._batch)
        except Exception as error:  # noqa: BLE001 - raised by the training thread
            self._error = error
        self._come.set()
