"""Decide which devices `edl host` offers, one for each slot."""

from __future__ import annotations

from collections.abc import Sequence

from edl.core.host.devices import CUDA
from edl.core.plural import counted
from edl.errors import UsageError


def offered_devices(
    slots: int | None, devices: str | None, cuda: Sequence[str] | None
) -> tuple[int, ...]:
    """Return the numbers of the devices that a host offers, one for each slot."""
    if devices is not None:
        numbers = _numbers(devices)
        if cuda and max(numbers) >= len(cuda):
            raise UsageError(
                f"--devices has {max(numbers)}, and {CUDA} has {len(cuda)} entries, "
                f"numbered from 0; leave {CUDA} away, or give lower numbers"
            )
    elif cuda:
        numbers = tuple(range(len(cuda)))
    elif slots is None:
        raise UsageError("give --slots, the number of workers that fit on this host")
    else:
        numbers = tuple(range(slots))
    if slots is None:
        return numbers
    if slots < 1:
        raise UsageError(f"--slots is {slots}; a host needs at least 1")
    if slots > len(numbers) or (devices is not None and slots != len(numbers)):
        source = "--devices" if devices is not None else CUDA
        raise UsageError(
            f"--slots is {slots} and {source} names {counted(len(numbers), 'device')}; each slot "
            "needs one of its own"
        )
    return numbers[:slots]


def _numbers(devices: str) -> tuple[int, ...]:
    """Return the whole numbers in `devices`, which are separated by commas, sorted."""
    words = [word.strip() for word in devices.split(",")]
    if not all(word.isascii() and word.isdigit() for word in words):
        raise UsageError(f"--devices is {devices!r}; give numbers, like 0,1,2,3")
    numbers = tuple(sorted({int(word) for word in words}))
    if len(numbers) != len(words):
        raise UsageError(f"--devices is {devices!r}, and names a device twice")
    return numbers
