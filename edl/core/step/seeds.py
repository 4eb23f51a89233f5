"""Derive the seed of a random number generator from parts, such as a seed, an epoch, a purpose.

Only the given parts enter: the script's own seed does if the caller gives it as one of them.
"""

from __future__ import annotations

import hashlib


def derived_seed(*parts: int | str) -> int:
    """Return a seed below 2**63, a hash of ``parts``: the same parts always give the same seed.

    The parts name the use of the random numbers, such as the script's seed and the epoch.
    """
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
