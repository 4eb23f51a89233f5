"""Let ``enumerate(loader)`` number the steps of a job's epoch: :func:`replace_enumerate`.

A process that trains several ranks of the script, one after the other, goes through the script's
loop once for each of them. Horovod's scripts compute a learning rate from the number that
``enumerate`` gives, and print by it. So it counts steps here: each pass of a step has the same
number, and a process that joins within an epoch begins with the number of the step that it joins.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator
from typing import Any


class StepNumbers(builtins.enumerate):  # type: ignore[type-arg]
    """Python's `enumerate`, except for iterators over batches, whose steps it numbers."""

    def __new__(cls, iterable: Iterable[Any], start: int = 0) -> Any:
        inner = getattr(iterable, "iterable", iterable)  # what a tqdm shows the progress of
        if not getattr(inner, "edl_numbers_steps", False):
            return super().__new__(cls, iterable, start)
        return _numbered(iterable, inner, start)


def _numbered(iterable: Iterable[Any], loader: Any, start: int) -> Iterator[tuple[int, Any]]:
    for item in iterable:
        yield start + loader.edl_step_in_epoch, item


def replace_enumerate() -> None:
    builtins.enumerate = StepNumbers  # type: ignore[misc]
