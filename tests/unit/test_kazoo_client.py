"""The sockets of ZooKeeper's client: how edl waits for them."""

from __future__ import annotations

import atexit
import os
import select
import socket
import time
from collections.abc import Iterator

import pytest

from edl.zookeeper.kazoo_client import PollHandler

HANDLER = PollHandler()


def test_no_exit_handler_waits_for_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A SIGTERM to a worker that ends would interrupt it with a traceback."""
    handlers: list[object] = []
    monkeypatch.setattr(atexit, "register", handlers.append)
    monkeypatch.setattr(atexit, "unregister", handlers.remove)
    handler = PollHandler()
    handler.start()
    monkeypatch.undo()
    try:
        assert handler.running
        assert handlers == []
    finally:
        handler.stop()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair()
    with left, right:
        yield left, right


def test_what_can_be_read_or_written_is_found(pair: tuple[socket.socket, socket.socket]) -> None:
    left, right = pair
    assert HANDLER.select([left], [], [], 0.0) == ([], [], [])
    assert HANDLER.select([left], [left, right], [], None) == ([], [left, right], [])
    right.send(b"x")
    assert HANDLER.select([left, right], [], [], 10.0) == ([left], [], [])
    assert HANDLER.select([left.fileno()], [left], [], 10.0) == ([left.fileno()], [left], [])


def test_it_answers_as_select_does_once_the_other_end_is_closed(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    left, right = pair
    right.close()
    asked = ([left], [left], [])
    assert HANDLER.select(*asked, 10.0) == tuple(select.select(*asked, 10.0))
    assert HANDLER.select([left], [], [], 10.0) == ([left], [], [])


def test_it_waits_as_long_as_it_is_told(pair: tuple[socket.socket, socket.socket]) -> None:
    began_s = time.monotonic()
    assert HANDLER.select([pair[0]], [], [], 0.0301) == ([], [], [])
    assert time.monotonic() - began_s >= 0.0301


def test_a_closed_socket_and_a_negative_limit_are_refused(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    """A ValueError is what kazoo takes for the end of the connection."""
    left, right = pair
    with pytest.raises(ValueError, match="non-negative"):
        HANDLER.select([left], [], [], -1.0)
    left.close()
    with pytest.raises(ValueError, match="negative"):
        HANDLER.select([left], [], [], 0.0)
    number = os.dup(right.fileno())
    os.close(number)
    with pytest.raises(ValueError, match="closed"):
        HANDLER.select([number], [], [], 0.0)


def test_descriptors_above_a_thousand_can_be_waited_for(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    """select.select cannot."""
    import fcntl
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    try:
        number = fcntl.fcntl(pair[0].fileno(), fcntl.F_DUPFD, 2000)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    try:
        assert HANDLER.select([], [number], [], 10.0) == ([], [number], [])
    finally:
        os.close(number)
