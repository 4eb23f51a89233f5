"""Store the addresses by which the processes of one ring find each other.

:class:`RendezvousServer`, the HTTP server of a worker's daemon, answers Horovod's requests from a
:class:`RendezvousStore`. :func:`rendezvous_environment` makes Horovod ask the server of rank 0.

Horovod's C++ client asks over plain HTTP, one connection a request: PUT, GET and DELETE of
``/<horovod scope>/<key>``. A GET of a key that is not there yet is *held*: it is answered when the
key is stored, or after 20 s with 404. So no process polls (8 ranks: 5.6 s -> 0.65 s,
docs/adr/0004). Our patched client asks once for the values of all members of a ring, and is held
until all members have stored theirs: five requests a member, whatever the number of members.

Horovod's client cannot authenticate itself. So each generation has its own unguessable *scope* in
front of that path. Only processes that may read the generation learn it, and a daemon serves no
scope but that of the newest generation that it knows. This needs no change to Horovod, which builds
its URL as ``http://ADDR:PORT/<horovod scope>/<key>`` and takes the host to end at the first slash.
So with ``ADDR`` = ``127.0.0.1:4711/SCOPE`` and ``PORT`` = ``4711`` it asks 127.0.0.1:4711 for
``/SCOPE:4711/<horovod scope>/<key>``. A third variable tells our patched Horovod that this store
answers requests for all members at once. Without it Horovod asks key by key, because other stores,
such as horovodrun's, have no such answer.

A request for a generation that this daemon has not heard of yet is held, for up to 20 s, until the
daemon has. A scope that was closed, or is of an earlier generation, is answered with 410 from then
on, also to requests that are held: our patched Horovod stops asking on 410 (patch gone-is-final), a
stock one after three tries.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import secrets
import struct
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar

from edl.errors import RingError
from edl.http.server import DaemonServer, HttpRequest, Response
from edl.http.signing import Authenticator

logger = logging.getLogger(__name__)


# ------------------------------------------------------------
# Combine what all members of a mesh have stored into one answer for each member.
#
# A mesh is a set of Gloo processes that are all connected to each other. An unpatched Horovod
# client asks the rendezvous store for each key in a request of its own, and receives the addresses
# that each member has published for all others. With edl's patch bulk-rendezvous it makes two
# requests for:
#
# - `<horovod scope>/edl-hosts/<size>`: the values of the keys `rank_0` to `rank_<last rank>`;
# - `<horovod scope>/edl-addresses/<size>/<rank>`: from the value of each key `0` to `<last rank>`
#   the address that is meant for `rank`. Gloo's value of rank i holds one address for each other
#   rank, in the order of ranks and all equally long; it has none for i itself, so the entry of
#   `rank` itself is empty.
#
# An answer is the length of each of its `size` entries (32 bits, the high byte first), then the
# entries: for addresses 4 + 136 bytes a member.

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


OK, NOT_FOUND, NO_MESH, GONE, TOO_LARGE, UNAVAILABLE = 200, 404, 409, 410, 413, 503
HOLD_S = 20.0  # then 404, which makes the client ask again; below Gloo's own time-out of 30 s
# A member's values of one mesh are deleted when all have connected; those of the next may come
# before. All but the global mesh are smaller, and the names of hosts are small beside them.
SCOPE_BYTES = 2 * MESH_BYTES
BULK = "HOROVOD_EDL_BULK_RENDEZVOUS"  # names the store that answers in bulk, to our patched client
EARLY = 1024  # requests held for a generation that this daemon does not know yet
Answered = TypeVar("Answered")
_PATH = re.compile(r"/([^/:]+):\d+/(.+)")
_SCOPE = re.compile(r"g([0-9]{1,15})-[0-9a-f]+")


def new_scope(generation: int) -> str:
    """Return a new scope, the unguessable first part of a rendezvous's paths: `g3-5f0e...`."""
    return f"g{generation}-{secrets.token_hex(16)}"


def rendezvous_environment(seat_address: str, port: int, scope: str) -> dict[str, str]:
    store = f"{seat_address}:{port}/{scope}"
    return {
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": store,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        BULK: store,
    }


@dataclass
class _Gathering:
    missing: set[str]  # keys that are not stored yet
    held: set[asyncio.Future[None]] = field(default_factory=set)  # released at a close, too


@dataclass
class _Scope:
    values: dict[str, bytes] = field(default_factory=dict)  # by key
    size: int = 0  # bytes of all values
    # by key, the requests that wait for this key alone; None: the scope was closed
    held: dict[str, set[asyncio.Future[bytes | None]]] = field(default_factory=dict)
    gatherings: dict[tuple[str, ...], _Gathering] = field(default_factory=dict)  # by their keys


class RendezvousStore:
    """Bytes by key for the rendezvous of the newest generation, on one event loop's thread."""

    def __init__(self, hold_s: float = HOLD_S) -> None:
        self.hold_s = hold_s
        self._newest = 0  # the newest generation's number
        self._scope = ""
        self._room: _Scope | None = None  # None: closed
        self._early: set[asyncio.Future[None]] = set()
        self._turn = asyncio.Lock()  # held while one answer for a whole mesh is made
        self._refused: set[str] = set()  # reasons, of this scope; each is logged once

    def announce(self, scope: str) -> None:
        """Serve `scope`, with no values yet, and close the scope that was open before."""
        number = _generation(scope)
        if number is None or number <= self._newest:
            return
        self.close(self._scope)
        self._newest, self._scope, self._room = number, scope, _Scope()
        self._refused.clear()
        _answer_all(self._early, None)

    async def put(self, scope: str, key: str, value: bytes) -> int:
        """Store `value` under `key`, replacing an older one, and answer requests for the key."""
        try:
            async with asyncio.timeout(self.hold_s):
                room = await self._enter(scope)
        except TimeoutError:
            return UNAVAILABLE  # not 404, which Horovod would take for success
        if isinstance(room, int):
            return room
        size = room.size + len(value) - len(room.values.get(key, b""))
        if size > SCOPE_BYTES:
            return TOO_LARGE
        room.values[key], room.size = value, size
        _answer_all(room.held.pop(key, ()), value)
        for keys, gathering in list(room.gatherings.items()):
            gathering.missing.discard(key)
            if not gathering.missing:
                _answer_all(room.gatherings.pop(keys).held, None)
        return OK

    async def get(self, scope: str, key: str) -> tuple[int, bytes]:
        """Return the value of `key` in `scope`, waiting up to `hold_s` seconds for it."""
        try:
            async with asyncio.timeout(self.hold_s):
                room = await self._enter(scope)
                if isinstance(room, int):
                    return room, b""
                if (asked := question(key)) is not None:
                    return await self._ask_mesh(room, asked)
                value = room.values[key] if key in room.values else await _arrival(room, key)
        except TimeoutError:
            return NOT_FOUND, b""
        except RingError as error:
            if str(error) not in self._refused:
                self._refused.add(str(error))
                logger.warning("the rendezvous refused a ring: %s", error)
            return NO_MESH, b""
        return (GONE, b"") if value is None else (OK, value)

    def delete(self, scope: str, key: str) -> int:
        room = self._find(scope)
        if isinstance(room, int):
            return room
        if room is None:
            return NOT_FOUND
        room.size -= len(room.values.pop(key, b""))
        return OK

    def close(self, scope: str) -> None:
        """Close `scope`: free its memory, and answer waiting and later requests for it with 410."""
        if scope != self._scope or self._room is None:
            return
        room, self._room = self._room, None
        for held in room.held.values():
            _answer_all(held, None)
        for gathering in room.gatherings.values():
            _answer_all(gathering.held, None)

    def close_all(self) -> None:
        self.close(self._scope)
        self._newest, self._scope = sys.maxsize, ""
        _answer_all(self._early, None)

    @property
    def held(self) -> int:
        room = self._room or _Scope()
        gathering = sum(len(each.held) for each in room.gatherings.values())
        return len(self._early) + gathering + sum(map(len, room.held.values()))

    def _find(self, scope: str) -> _Scope | int | None:
        """Return the open scope if it is `scope`; None: not announced yet; else a status."""
        number = _generation(scope)
        if number is None:
            return NOT_FOUND
        if number > self._newest:
            return None
        if self._room is None or not hmac.compare_digest(scope, self._scope):
            return GONE
        return self._room

    async def _enter(self, scope: str) -> _Scope | int:
        while (room := self._find(scope)) is None:
            if len(self._early) >= EARLY:
                return UNAVAILABLE
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._early.add(future)
            try:
                await future
            finally:
                self._early.discard(future)
        return room

    async def _ask_mesh(self, room: _Scope, asked: MeshRequest) -> tuple[int, bytes]:
        await _gather(room, asked.keys)
        async with self._turn:
            await asyncio.sleep(0)  # 1,024 answers at once would block the loop
            if room is not self._room:
                return GONE, b""
            try:
                values = [*map(room.values.__getitem__, asked.keys)]
            except KeyError:  # deleted meanwhile
                return NOT_FOUND, b""
            return OK, asked.answer(values)


def _answer_all(futures: Iterable[asyncio.Future[Answered]], value: Answered) -> None:
    for future in futures:
        if not future.done():
            future.set_result(value)


async def _gather(room: _Scope, keys: tuple[str, ...]) -> None:
    gathering = room.gatherings.get(keys)
    if gathering is None:
        missing = set(keys) - room.values.keys()
        if not missing:
            return
        gathering = room.gatherings[keys] = _Gathering(missing)
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    gathering.held.add(future)
    try:
        await future
    finally:
        gathering.held.discard(future)
        if not gathering.held and room.gatherings.get(keys) is gathering:
            del room.gatherings[keys]


async def _arrival(room: _Scope, key: str) -> bytes | None:
    future: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
    room.held.setdefault(key, set()).add(future)
    try:
        return await future
    finally:
        waiting = room.held.get(key)
        if waiting is not None:
            waiting.discard(future)
            if not waiting:
                del room.held[key]


def _generation(scope: str) -> int | None:
    match = _SCOPE.fullmatch(scope)
    return int(match[1]) if match else None


class RendezvousServer(DaemonServer):
    """The HTTP server of a worker's daemon, which also serves the rendezvous store to Horovod."""

    def __init__(
        self,
        address: str,
        port: int = 0,
        health: Callable[[], Mapping[str, Any]] | None = None,
        store: RendezvousStore | None = None,
        guard: Authenticator | None = None,
    ) -> None:
        super().__init__(address, port, health, guard)
        self.store = store or RendezvousStore()

    def announce(self, scope: str) -> None:
        self.in_loop(lambda: self.store.announce(scope))

    def close_scope(self, scope: str) -> None:
        self.in_loop(lambda: self.store.close(scope))

    async def answer_other(self, request: HttpRequest) -> Response:
        match = _PATH.fullmatch(request.path)
        if match is None:
            return Response(404)
        scope, key = match.groups()
        if request.method == "GET":
            return Response(*await self.store.get(scope, key))
        if request.method == "PUT":
            return Response(await self.store.put(scope, key, request.body))
        if request.method == "DELETE":
            return Response(self.store.delete(scope, key))
        return Response(405)

    def let_go(self) -> None:
        self.store.close_all()
