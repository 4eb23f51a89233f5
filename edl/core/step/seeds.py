"""Seeds that follow from what they are for, so that equal causes have equal random numbers."""

from __future__ import annotations

import hashlib


def derived_seed(*parts: int | str) -> int:
    """Return a seed below 2**63 that follows from ``parts``; of other parts it is another one."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
