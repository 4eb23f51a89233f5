"""Connections to the HTTP API whose requests are too large or too slow, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator

import pytest

from edl.api.listening import ListenAddress, listener

pytestmark = pytest.mark.long  # uvicorn takes 0.2 s to import

REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n"
HEAD_S = 0.5


@pytest.fixture
def port() -> Iterator[int]:
    import uvicorn

    from edl.api.embedded_server import LimitProtocol

    class Quick(LimitProtocol):
        head_s = HEAD_S

    async def app(scope, receive, send) -> None:  # type: ignore[no-untyped-def]
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"hello"})

    config = uvicorn.Config(
        app, http=Quick, lifespan="off", ws="none", log_config=None, timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    with listener(ListenAddress("127.0.0.1", 0)) as opened:
        thread = threading.Thread(target=lambda: server.run(sockets=[opened]))
        thread.start()
        yield opened.getsockname()[1]
        server.should_exit = True
        thread.join(10.0)
        assert not thread.is_alive()


async def answers(
    port: int, *parts: bytes, count: int = 1, pause_s: float = 0.0
) -> tuple[bytes, float]:
    """Send some parts on one connection; return ``count`` answers, and how long they took.

    It ends when the connection is closed, or after 5 s.
    """
    began_s = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.suppress(ConnectionError):
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause_s)
    found = b""
    with contextlib.suppress(ConnectionError, TimeoutError):
        async with asyncio.timeout(5.0):
            while part := await reader.read(65536):
                found += part
                if found.count(b"hello") == count:
                    break
    writer.close()
    return found, time.monotonic() - began_s


def test_what_is_no_http_is_answered_with_text(port: int) -> None:
    found, _ = asyncio.run(answers(port, b"hello API\r\n\r\n"))
    head, _, body = found.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"text/plain" in head
    assert body == b"Invalid HTTP request received."


def test_requests_are_answered_also_after_a_pause(port: int) -> None:
    found, _ = asyncio.run(answers(port, REQUEST))
    assert b"hello" in found
    found, _ = asyncio.run(answers(port, REQUEST, REQUEST, count=2, pause_s=2 * HEAD_S))
    assert found.count(b"200 OK") == 2


def test_several_requests_in_one_piece(port: int) -> None:
    found, _ = asyncio.run(answers(port, REQUEST * 3, count=3))
    assert found.count(b"200 OK") == 3


def test_a_body_may_come_with_its_head(port: int) -> None:
    whole = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n" + b" " * 100_000
    found, _ = asyncio.run(answers(port, whole))
    assert b"200 OK" in found


def test_a_head_without_an_end_is_cut_off(port: int) -> None:
    line = b"X: " + b"a" * 1000 + b"\r\n"
    found, _ = asyncio.run(answers(port, REQUEST[:-2], *[line] * 200))
    assert found == b""
    found, _ = asyncio.run(answers(port, b"GET /" + b"a" * 200_000))
    assert found == b""


@pytest.mark.parametrize("parts", [(), (REQUEST[:10],), (b"G", b"E", b"T")])
def test_a_slow_head_is_cut_off(port: int, parts: tuple[bytes, ...]) -> None:
    found, took_s = asyncio.run(answers(port, *parts))
    assert found == b""
    assert HEAD_S / 2 < took_s < 4.0


class Transport(asyncio.Transport):
    """A connection without a peer that keeps when it is closed and when it has got an answer."""

    def __init__(self) -> None:
        super().__init__()
        self.closed, self.answered = asyncio.Event(), asyncio.Event()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if b"hello" in bytes(data):
            self.answered.set()

    def is_closing(self) -> bool:
        return self.closed.is_set()

    def close(self) -> None:
        self.closed.set()

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


@pytest.mark.parametrize("more", [(b"\r\n",), (b"\r\n",) * 3, ()], ids=["line", "lines", "none"])
@pytest.mark.parametrize(
    ("request_", "late"),
    [(REQUEST, ()), (POST, (b"x",)), (POST, (b"x" * 9,))],
    ids=["without a body", "a part of its body", "its body"],
)
def test_an_idle_connection_is_closed_whatever_came_after_the_answer(
    request_: bytes, late: tuple[bytes, ...], more: tuple[bytes, ...]
) -> None:
    import uvicorn
    from uvicorn.server import ServerState

    from edl.api.embedded_server import LimitProtocol

    async def app(scope, receive, send) -> None:  # type: ignore[no-untyped-def]
        await send({"type": "http.response.start", "status": 401, "headers": []})
        await send({"type": "http.response.body", "body": b"hello"})

    async def meet() -> None:
        config = uvicorn.Config(app, http=LimitProtocol, log_config=None, lifespan="off", ws="none")
        config.load()
        loop = asyncio.get_running_loop()
        protocol, transport = LimitProtocol(config, ServerState(), {}, loop), Transport()
        protocol.timeout_keep_alive = 0.01  # type: ignore[assignment]
        protocol.connection_made(transport)
        protocol.data_received(request_)
        async with asyncio.timeout(5.0):
            await transport.answered.wait()
            for part in (*late, *more):
                protocol.data_received(part)
            await transport.closed.wait()
        protocol.connection_lost(None)

    asyncio.run(meet())
