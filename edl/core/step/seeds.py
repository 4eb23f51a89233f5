"""Derive seeds from what they are used for: the same purpose gets the same random numbers."""

from __future__ import annotations

import hashlib


def derived_seed(*parts: int | str) -> int:
    """Return a seed below 2**63, a hash of ``parts``; different parts give different seeds."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
