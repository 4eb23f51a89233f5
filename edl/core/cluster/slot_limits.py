"""Define how much of a host the processes of a job may use: so much for each of its slots there."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from edl.errors import UsageError

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)([KMGT]?)")
_FACTORS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
LEAST_BYTES = 64 << 20  # of a slot's memory: with less no agent starts
LEAST_TASKS = 64


@dataclass(frozen=True)
class SlotLimits:
    """The most that a job's processes, its agent included, may use on a host, for each slot."""

    memory_bytes: int | None = None  # memory, in bytes. No swap is used beside it.
    cpus: float | None = None  # processors, as a number that need not be whole
    tasks: int | None = None  # processes and threads

    @property
    def is_empty(self) -> bool:
        """Whether nothing is limited."""
        return self == NO_LIMITS

    def properties(self, slots: int) -> tuple[str, ...]:
        """Return the limits of a job with so many slots as properties of a systemd slice."""
        found = []
        if self.memory_bytes is not None:
            found += [f"MemoryMax={self.memory_bytes * slots}", "MemorySwapMax=0"]
        if self.cpus is not None:
            found.append(f"CPUQuota={max(1, round(100 * self.cpus * slots))}%")
        if self.tasks is not None:
            found.append(f"TasksMax={self.tasks * slots}")
        return tuple(found)


NO_LIMITS = SlotLimits()


def slot_limits(memory: str | None, cpus: float | None, tasks: int | None) -> SlotLimits:
    size = None if memory is None else _bytes(memory)
    if size is not None and size < LEAST_BYTES:
        raise UsageError(f"--memory-per-slot {memory} is too little to start a worker; give 64M up")
    if cpus is not None and not (math.isfinite(cpus) and cpus >= 0.01):
        raise UsageError(f"--cpus-per-slot is {cpus:g}; give at least 0.01 processors")
    if tasks is not None and tasks < LEAST_TASKS:
        raise UsageError(f"--tasks-per-slot {tasks} is too few for any worker; give 64 up")
    return SlotLimits(size, cpus, tasks)


def _bytes(text: str) -> int:
    """Return the size that `text`, like "16G", stands for, in bytes; see `slot_limits`."""
    match = _SIZE.fullmatch(text.strip().upper().removesuffix("B").removesuffix("I"))
    if match is None:
        raise UsageError(f"--memory-per-slot is {text!r}; give bytes, or a size like 16G or 500M")
    return int(float(match[1]) * (1 << _FACTORS[match[2]]))
