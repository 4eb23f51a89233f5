"""Combine what all members of a mesh have stored into one answer for each member.

A mesh is a set of Gloo processes that are all connected to each other. An unpatched Horovod client
asks the rendezvous store for each key in a request of its own, and receives the addresses that each
member has published for all others. With edl's patch bulk-rendezvous it makes two requests for:

- ``<horovod scope>/edl-hosts/<size>``: the values of the keys ``rank_0`` to ``rank_<last rank>``;
- ``<horovod scope>/edl-addresses/<size>/<rank>``: from the value of each key ``0`` to ``<last
  rank>`` the address that is meant for ``rank``. Gloo's value of rank i holds one address for each
  other rank, in the order of ranks and all equally long; it has none for i itself, so the entry of
  ``rank`` itself is empty.

An answer is the length of each of its ``size`` entries (32 bits, the high byte first), then the
entries: for addresses 4 + 136 bytes a member. This module only computes; :mod:`edl.ring.rendezvous`
calls :func:`question` for each key that is asked for, waits for the values, and calls
:meth:`MeshRequest.answer`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from edl.errors import RingError

MOST_MEMBERS = 1024
ADDRESS_BYTES = 136  # of Gloo's Address: a sockaddr_storage and a sequence number
MESH_BYTES = MOST_MEMBERS * (MOST_MEMBERS - 1) * ADDRESS_BYTES  # of all values of a mesh, 142 MB

_QUESTION = re.compile(r"(.+)/(?:edl-hosts/([0-9]{1,9})|edl-addresses/([0-9]{1,9})/([0-9]{1,9}))")


@dataclass(frozen=True)
class MeshRequest:
    """A request of one member to the rendezvous store for the values of all members of a mesh."""

    scope: str  # Horovod's scope, within the generation's
    size: int  # of the mesh, from 2 to 1,024 members
    rank: int  # the one that asks; -1: a request for host names

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys in the store whose values the answer needs, one for each rank, in rank order."""
        return _keys(f"{self.scope}/{'rank_' if self.rank < 0 else ''}", self.size)

    def answer(self, values: Sequence[bytes]) -> bytes:
        """Return a 32-bit length, high byte first, for each rank, then the entries (own: empty)."""
        if self.rank < 0:
            return struct.pack(f"!{self.size}I", *map(len, values)) + b"".join(values)
        stored = sorted(set(map(len, values)))
        width, rest = divmod(stored[0], self.size - 1)
        if len(stored) > 1 or rest or not width:
            raise RingError(
                f"the {self.size} members of {self.scope} stored {' or '.join(map(str, stored))} "
                f"bytes of addresses each, which is not {self.size - 1} equal parts for all"
            )
        # No value has a part for its owner, so this rank's is one place earlier in those below it.
        end, own = self.rank * width, self.rank
        below = [value[end - width : end] for value in values[:own]]
        above = [value[end : end + width] for value in values[own + 1 :]]
        lengths = [width] * len(below) + [0] + [width] * len(above)
        return struct.pack(f"!{self.size}I", *lengths) + b"".join(below + above)


def question(key: str) -> MeshRequest | None:
    """Parse `key` as a request for a whole mesh; None: it is an ordinary key."""
    match = _QUESTION.fullmatch(key)
    if match is None:
        return None
    scope, hosts, addresses, rank = match.groups()
    asked = MeshRequest(scope, int(hosts or addresses), int(rank or -1))
    if not 2 <= asked.size <= MOST_MEMBERS or asked.rank >= asked.size:
        raise RingError(
            f"{key}: a ring has 2 to {MOST_MEMBERS} members here, and their ranks begin with 0; "
            "if the job is larger, lower --max-np"
        )
    return asked


@lru_cache(maxsize=8)
def _keys(start: str, size: int) -> tuple[str, ...]:
    return tuple(f"{start}{rank}" for rank in range(size))
