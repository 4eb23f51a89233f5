"""Compute digests of tensors on the device where they are, by :func:`digests`.

A digest is a CRC-32, an integer (:mod:`edl.binding.replica`). On a device other than the CPU it is
that of a 64-bit checksum of the bytes, computed there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from edl.binding.replica import ByteRange, of_bytes, of_value

CHUNK = 2**22  # elements that are weighted at a time: so much memory a device can spare
PRIME, ODD = 0x9E3779B97F4A7C15 - 2**64, 0x2545F4914F6CDD1D  # from the usual random generators


def size_of(value: Any) -> int | None:
    """Return the size in bytes of `value`, a tensor or NumPy array; None for any other value."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()  # sparse tensors have no nbytes
    return value.nbytes if isinstance(value, np.ndarray) else None


def digests(parts: Iterable[ByteRange]) -> dict[str, int]:
    """Return the digest of each byte range in `parts`, by the name of the range's value."""
    found: dict[str, int] = {}
    sums: dict[torch.device, dict[str, torch.Tensor]] = {}
    kinds: dict[str, str] = {}
    for part in parts:
        name, value = part.name, part.value
        if not isinstance(value, torch.Tensor):
            digest = of_value(value, part.start, part.stop)
        elif value.layout is not torch.strided or value.is_quantized or value.is_meta:
            digest = None
        elif value.device.type == "cpu":
            digest = of_bytes(_kind(value), _as_bytes(value, part).numpy())
        else:
            digest, kinds[name] = 0, _kind(value)
            sums.setdefault(value.device, {})[name] = weighted_word_sum(_as_bytes(value, part))
        if digest is not None:
            found[name] = digest
    for on_device in sums.values():
        checksums = torch.stack([*on_device.values()]).tolist()
        for name, checksum in zip(on_device, checksums, strict=True):
            found[name] = of_bytes(kinds[name], int(checksum).to_bytes(8, "big", signed=True))
    return found


def weighted_word_sum(data: torch.Tensor) -> torch.Tensor:
    """Return the sum modulo 2**64 of the 32-bit words of `data`, weighted by their positions."""
    total = torch.zeros((), dtype=torch.int64, device=data.device)
    padded = torch.nn.functional.pad(data, (0, -len(data) % 4))
    if padded.data_ptr() % 4:
        padded = padded.clone()
    words = padded.view(torch.int32)
    for start in range(0, len(words), CHUNK):
        part = words[start : start + CHUNK].to(torch.int64)
        weights = torch.arange(start, start + len(part), device=data.device) * PRIME
        weights = (weights ^ (weights >> 29)) * ODD | 1  # odd, so any change of one word counts
        total += (part * weights).sum()
    return total


def _kind(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)}"


def _as_bytes(tensor: torch.Tensor, part: ByteRange) -> torch.Tensor:
    plain = tensor.detach().resolve_conj().resolve_neg()
    return plain.contiguous().reshape(-1).view(torch.uint8)[part.start : part.stop]
