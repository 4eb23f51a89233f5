"""The rendezvous store: where the processes of one ring find each other's addresses.

Horovod's C++ client asks over plain HTTP, one connection a request: PUT, GET and DELETE of
``/<horovod scope>/<key>``. A GET of a key that is not there yet is *held* until it arrives, so
nobody polls (8 ranks: 5.6 s -> 0.65 s, facts.md 4).

Each generation has its own unguessable *scope* in front of that path, without a change to
Horovod: it builds its URL as ``http://ADDR:PORT/<horovod scope>/<key>`` and takes the host to end
at the first slash. So with ``ADDR`` = ``127.0.0.1:4711/SCOPE`` and ``PORT`` = ``4711`` it asks
127.0.0.1:4711 for ``/SCOPE:4711/<horovod scope>/<key>``.

A scope that was closed answers 410 for ever, at once to those who are held: our edited Horovod
gives up on 410 (edit "gone-is-final"), a stock one after three tries.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field

OK, NOT_FOUND, GONE, TOO_LARGE = 200, 404, 410, 413

HOLD_S = 20.0  # then 404, which makes the client ask again; below Gloo's own time-out of 30 s
SCOPE_BYTES = 64 << 20  # an address is some 100 bytes, a rank publishes one for each other rank
OPEN_SCOPES = 32  # one generation needs one; the longest unused makes room
CLOSED_SCOPES = 1024  # remembered, so that latecomers are told to give up


def rendezvous_environment(seat_address: str, port: int, scope: str) -> dict[str, str]:
    """The variables that make Horovod's next init use ``scope`` of the daemon at that port."""
    return {
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": f"{seat_address}:{port}/{scope}",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
    }


@dataclass
class _Scope:
    values: dict[str, bytes] = field(default_factory=dict)
    size: int = 0
    held: dict[str, set[asyncio.Future[bytes | None]]] = field(default_factory=dict)


class RendezvousStore:
    """Scopes of keys. A scope opens by its first use. To be used on one event loop only."""

    def __init__(self, hold_s: float = HOLD_S) -> None:
        self.hold_s = hold_s
        self._open: OrderedDict[str, _Scope] = OrderedDict()  # longest unused first
        self._closed: OrderedDict[str, None] = OrderedDict()

    def put(self, scope: str, key: str, value: bytes) -> int:
        """Store a value and answer all who are held for it; 200, 410, or 413 when full."""
        room = self._use(scope)
        if room is None:
            return GONE
        size = room.size + len(value) - len(room.values.get(key, b""))
        if size > SCOPE_BYTES:
            return TOO_LARGE
        room.values[key], room.size = value, size
        for future in room.held.pop(key, ()):
            if not future.done():
                future.set_result(value)
        return OK

    async def get(self, scope: str, key: str) -> tuple[int, bytes]:
        """200 and the value, waiting for it up to ``hold_s``, then 404; 410 once closed."""
        room = self._use(scope)
        if room is None:
            return GONE, b""
        if key in room.values:
            return OK, room.values[key]
        future: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        room.held.setdefault(key, set()).add(future)
        try:
            async with asyncio.timeout(self.hold_s):
                value = await future
        except TimeoutError:
            return NOT_FOUND, b""
        finally:
            waiting = room.held.get(key)
            if waiting is not None:
                waiting.discard(future)
                if not waiting:
                    del room.held[key]
        return (GONE, b"") if value is None else (OK, value)

    def delete(self, scope: str, key: str) -> int:
        """Forget a key; 200 whether it was there or not, 410 when closed."""
        room = self._use(scope)
        if room is None:
            return GONE
        room.size -= len(room.values.pop(key, b""))
        return OK

    def close(self, scope: str) -> None:
        """Give a scope up: frees its memory, and everyone is told 410. Idempotent."""
        self._closed[scope] = None
        self._closed.move_to_end(scope)
        while len(self._closed) > CLOSED_SCOPES:
            self._closed.popitem(last=False)
        room = self._open.pop(scope, None)
        for future in [f for held in room.held.values() for f in held] if room else ():
            if not future.done():
                future.set_result(None)

    def close_all(self) -> None:
        """Give all scopes up."""
        for scope in list(self._open):
            self.close(scope)

    @property
    def scopes(self) -> tuple[str, ...]:
        """The open scopes, longest unused first."""
        return tuple(self._open)

    def _use(self, scope: str) -> _Scope | None:
        """The scope, opened if need be; None when it was closed."""
        if scope in self._closed:
            return None
        if scope not in self._open:
            while len(self._open) >= OPEN_SCOPES:
                self.close(next(iter(self._open)))
            self._open[scope] = _Scope()
        self._open.move_to_end(scope)
        return self._open[scope]
