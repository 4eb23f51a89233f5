"""An HTTP answer that drips, or has no end, holds up nobody who asks a worker."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from edl.errors import RendezvousFailed
from edl.http import client
from edl.http import server as limited_connection
from edl.http.client import HEALTH_BYTES, ask, fetch
from edl.http.server import LimitedConnection, LimitedSocket
from edl.records import Liveness

HEAD = b"HTTP/1.1 200 OK\r\n"
TIMEOUT_S = 4.0
Answers = Callable[..., None]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Answers]:
    """Return a function that lets every server answer with bytes, which it has sent already.

    With ``closes`` the server closes the connection then.
    """
    ends: list[socket.socket] = []
    said = [(b"", True)]

    def connect(self: LimitedConnection) -> None:
        own, other = socket.socketpair()
        self.sock = LimitedSocket(fileno=own.detach())
        self.sock.limit(*self._limits)
        ends.append(other)
        answer, closes = said[0]
        other.sendall(answer)
        if closes:
            other.shutdown(socket.SHUT_WR)

    def set_answer(answer: bytes, closes: bool = True) -> None:
        said[0] = answer, closes

    monkeypatch.setattr(LimitedConnection, "connect", connect)
    yield set_answer
    for end in ends:
        end.close()


@pytest.fixture
def step_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now, step = [0.0], [0.0]

    def monotonic() -> float:
        now[0] += step[0]
        return now[0]

    monkeypatch.setattr(limited_connection, "time", SimpleNamespace(monotonic=monotonic))
    return step


def test_an_answer_in_time_is_taken_whole(answers: Answers) -> None:
    body = b"x" * 50_000
    answers(HEAD + b"Content-Length: 50000\r\n\r\n" + body, closes=False)
    assert fetch("h", 1, "/log", TIMEOUT_S) == (200, body)
    answers(
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n", closes=False
    )
    assert fetch("h", 1, "/log", TIMEOUT_S) == (200, b"abc")
    answers(HEAD + b"\r\n" + body)
    assert fetch("h", 1, "/log", TIMEOUT_S) == (200, body)


def test_an_answer_that_drips_ends_after_two_time_outs(
    answers: Answers, step_s: list[float]
) -> None:
    step_s[0] = TIMEOUT_S / 2  # for each piece, so none is too late by itself
    answers(HEAD + b"Content-Length: 60000\r\n\r\n" + b"x" * 50_000, closes=False)
    with pytest.raises(RendezvousFailed, match="TimeoutError the answer is not complete in time"):
        fetch("h", 1, "/health", TIMEOUT_S)
    assert ask("h", 1, TIMEOUT_S).liveness is Liveness.SILENT


def test_what_has_come_in_time_is_read_late(answers: Answers, step_s: list[float]) -> None:
    """This process was suspended, or had no processor."""
    step_s[0] = 3 * TIMEOUT_S
    answers(HEAD + b"Content-Length: 50000\r\n\r\n" + b"x" * 50_000, closes=False)
    assert fetch("h", 1, "/health", TIMEOUT_S) == (200, b"x" * 50_000)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 100 Continue\r\n\r\n" * 4000,
        HEAD + b"\r\n" + b"x" * 60_000,
        HEAD + b"Content-Length: 60000\r\n\r\n" + b"x" * 60_000,
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nea60\r\n" + b"x" * 60_000,
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"a: b\r\n" * 10_000,
    ],
    ids=["heads", "without a length", "with a length", "a chunk", "trailers"],
)
def test_an_answer_that_is_too_large_is_not_read_on(answers: Answers, answer: bytes) -> None:
    answers(answer, closes=False)
    with pytest.raises(RendezvousFailed, match="ResponseTooLarge the answer is too large"):
        fetch("h", 1, "/health", TIMEOUT_S, most_bytes=30_000)


@pytest.mark.parametrize(
    "said",
    [
        b"Content-Length: 99999999999999999\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffff\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n-5\r\n",
    ],
)
def test_a_length_of_an_answer_takes_no_memory(answers: Answers, said: bytes) -> None:
    answers(HEAD + said + b"x")
    with pytest.raises(RendezvousFailed, match=r"IncompleteRead|ValueError"):
        fetch("h", 1, "/health", TIMEOUT_S)


def test_a_worker_s_health_may_have_a_mebibyte(monkeypatch: pytest.MonkeyPatch) -> None:
    """32 workers are asked at the same time."""
    asked = []

    def answer(*words: object) -> tuple[int, bytes]:
        asked.append(words)
        return 200, b"[" * HEALTH_BYTES

    monkeypatch.setattr(client, "fetch", answer)
    assert ask("h", 1, TIMEOUT_S) == client.Health(Liveness.ALIVE)
    assert asked == [("h", 1, "/health", TIMEOUT_S, HEALTH_BYTES)]


@pytest.mark.parametrize("address", ["a..b", "a b", "a" * 70, "a\0b"])
def test_an_address_that_is_none_is_silent(address: str) -> None:
    assert ask(address, 1, TIMEOUT_S).liveness is Liveness.SILENT


def test_all_addresses_of_a_name_share_one_deadline(
    monkeypatch: pytest.MonkeyPatch, step_s: list[float]
) -> None:
    waits: list[float | None] = []

    def connect(self: LimitedSocket, where: object) -> None:
        waits.append(self.gettimeout())
        raise TimeoutError(errno.ETIMEDOUT, "timed out")

    one = (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("192.0.2.1", 1))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [one] * 4)
    monkeypatch.setattr(LimitedSocket, "connect", connect)
    step_s[0] = TIMEOUT_S
    assert ask("many", 1, TIMEOUT_S).liveness is Liveness.SILENT
    assert waits == [TIMEOUT_S, 0.0, 0.0, 0.0]


def test_a_family_that_this_system_lacks_leaves_the_other_addresses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A name that has ::1 first, where the kernel has no IPv6."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        lacking = (255, socket.SOCK_STREAM, 0, "", ("::1", port, 0, 0))
        there = (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port))
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [lacking, there])
        connection = LimitedConnection("both", port, TIMEOUT_S, 1000)
        connection.connect()
        assert connection.sock.getpeername() == ("127.0.0.1", port)
        connection.close()
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [lacking] * 2)
        with pytest.raises(OSError, match="not supported"):
            LimitedConnection("lacking", port, TIMEOUT_S, 1000).connect()
