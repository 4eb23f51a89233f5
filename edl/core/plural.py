"""Write numbers and names for reasons and messages: "1 worker", "2 slots", "w1, w3"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def verb(count: int, one: str = "is", several: str = "are") -> str:
    """Return the verb that fits `count`: `one` if the count is 1, else `several`."""
    return one if count == 1 else several


def counted(count: int, what: str, groups: bool = False) -> str:
    """Return "2 slots", or with `groups`, as on the dashboard, "1,400 bytes"."""
    number = f"{count:,}" if groups else str(count)
    return f"{number} {verb(count, what, f'{what}s')}"


def workers(count: int) -> str:
    return counted(count, "worker")


def workers_train(count: int) -> str:
    """Return how many workers train, as a clause: "1 worker trains", "2 workers train"."""
    return f"{workers(count)} {verb(count, 'trains', 'train')}"


def names(numbers: Sequence[int]) -> str:
    """Return the names of workers in the order of their `numbers`, such as "w3, w1"."""
    return ", ".join(f"w{number}" for number in numbers)


def by_host(counts: Mapping[str, int]) -> str:
    """Return counts by host as a text, in their order: "a: 2, b: 1"."""
    return ", ".join(f"{host}: {count}" for host, count in counts.items())


def in_brackets(numbers: Sequence[int]) -> str:
    """Return " (0, 1)"; empty without numbers."""
    return f" ({', '.join(map(str, numbers))})" if numbers else ""
