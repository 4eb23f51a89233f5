"""Limit how long the exchange of an HTTP request and its answer takes, and how large the answer is.

``http.client`` limits neither: its time-out begins again with each piece of data, an answer may be
endless, and it may name a length that takes all memory at once. What answers at the port of a dead
worker may be a process of another user.
"""

from __future__ import annotations

import http.client
import io
import socket
import time
from typing import Any

WHOLE = 2  # time-outs that an exchange may take: one to connect, one for the first piece of data


class ResponseTooLarge(http.client.HTTPException):
    """An answer has more bytes than the client takes."""


class LimitedConnection(http.client.HTTPConnection):
    """A connection for one request, with a deadline (not for names) and a largest answer."""

    def __init__(self, address: str, port: int, timeout_s: float, most_bytes: int) -> None:
        super().__init__(address, port, timeout=timeout_s)
        self._limits = timeout_s, time.monotonic() + WHOLE * timeout_s, most_bytes

    def connect(self) -> None:
        """Connect to the first address of the server that takes the connection."""
        failed = OSError(f"{self.host} has no address")
        for family, kind, protocol, _, where in socket.getaddrinfo(
            self.host, self.port, type=socket.SOCK_STREAM
        ):
            opened = None
            try:
                opened = LimitedSocket(family, kind, protocol)
                opened.limit(*self._limits)
                opened.connect(where)
                # The head and the body of a request are sent one after the other.
                opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError as error:  # also of a family that this system does not have
                if opened is not None:
                    opened.close()
                failed = error
            else:
                self.sock = opened
                return
        raise failed


class LimitedSocket(socket.socket):
    """A connected socket with a deadline, and a largest number of bytes to receive."""

    _limits = (0.0, 0.0, 0)

    def limit(self, timeout_s: float, deadline_s: float, most_bytes: int) -> None:
        """Set the limits, and let the next call wait no longer than they allow."""
        self._limits = timeout_s, deadline_s, most_bytes
        self.settimeout(max(0.0, min(timeout_s, deadline_s - time.monotonic())))

    def sendall(self, data: Any, flags: int = 0) -> None:
        """Send `data`; raise an OSError if that is not done in time."""
        self.limit(*self._limits)
        super().sendall(data, flags)

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """Receive bytes into `buffer`, up to `nbytes` (0: up to its size); return how many."""
        self.limit(*self._limits)
        try:
            count = super().recv_into(buffer, nbytes, flags)
        except BlockingIOError:
            raise TimeoutError("the answer is not complete in time") from None
        timeout_s, deadline_s, most_bytes = self._limits
        if count > most_bytes:
            raise ResponseTooLarge("the answer is too large")
        self._limits = timeout_s, deadline_s, most_bytes - count
        return count

    def makefile(self, *_: Any, **__: Any) -> _LimitedReader:  # type: ignore[override]
        """Return a buffered binary file that reads from this socket."""
        return _LimitedReader(super().makefile("rb", buffering=0), self._limits[-1])


class _LimitedReader(io.BufferedReader):
    """A buffered file that takes no memory for more bytes than may come."""

    def __init__(self, raw: io.RawIOBase, most_bytes: int) -> None:
        super().__init__(raw)
        self._most_bytes = most_bytes

    def read(self, size: int | None = -1, /) -> bytes:
        """Read `size` bytes, or fewer if the file ends before or has not so many."""
        if size is None or size < 0:
            return super().read()
        # CPython takes the memory for all of them before it reads the first one.
        return super().read(min(size, self._most_bytes))
