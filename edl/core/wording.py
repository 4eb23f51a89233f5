"""How numbers of workers are said in reasons and messages: "1 worker", "w1, w3"."""

from __future__ import annotations

from collections.abc import Sequence


def verb(count: int, one: str = "is", several: str = "are") -> str:
    """What ``count`` of something do."""
    return one if count == 1 else several


def workers(count: int) -> str:
    """ "1 worker", "2 workers"."""
    return f"{count} {verb(count, 'worker', 'workers')}"


def workers_train(count: int) -> str:
    """ "1 worker trains", "2 workers train"."""
    return f"{workers(count)} {verb(count, 'trains', 'train')}"


def names(numbers: Sequence[int]) -> str:
    """ "w1, w3"."""
    return ", ".join(f"w{number}" for number in numbers)
