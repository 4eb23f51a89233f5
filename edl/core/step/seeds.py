"""Derive the seed of a random number generator from parts, such as a seed, an epoch, a purpose."""

from __future__ import annotations

import hashlib


def derived_seed(*parts: int | str) -> int:
    """Return a seed from 0 to 2**63 - 1, a hash of `parts` and their order."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
