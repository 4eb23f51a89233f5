"""RingSockets cuts what Gloo has made, and nothing else. Real sockets, made as Gloo makes them."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from edl.ring.gloo import RingSockets, open_sockets

TIMEOUT = struct.pack("@ll", 30, 0)


class Net:
    def __init__(self, stack: ExitStack) -> None:
        self.stack = stack

    def listener(self) -> socket.socket:
        one = self.stack.enter_context(socket.socket())
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind(("127.0.0.1", 0))
        one.listen()
        return one

    def plain(self, listener: socket.socket) -> tuple[socket.socket, socket.socket]:
        near = self.stack.enter_context(socket.create_connection(listener.getsockname(), 5))
        far = self.stack.enter_context(listener.accept()[0])
        far.settimeout(5)
        return near, far

    def gloo(self, listener: socket.socket) -> tuple[socket.socket, socket.socket]:
        near, far = self.plain(listener)
        near.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        for end in (near, far):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, TIMEOUT)
        return near, far


@pytest.fixture
def net() -> Iterator[Net]:
    with ExitStack() as stack:
        yield Net(stack)


def is_cut(one: socket.socket) -> bool:
    one.setblocking(False)
    try:
        return one.recv(1) == b""
    except BlockingIOError:
        return False


def test_the_connections_of_the_ring_are_cut_and_stay_open_descriptors(net: Net) -> None:
    listener, ring = net.listener(), RingSockets()
    before = ring.before()
    near, far = net.gloo(listener)
    ring.remember(before)
    assert len(ring) == 2
    assert ring.shut() == 2
    assert is_cut(near)
    assert is_cut(far)
    assert os.fstat(near.fileno())


def test_connections_that_others_made_meanwhile_are_left_alone(net: Net) -> None:
    listener, ring = net.listener(), RingSockets()
    before = ring.before()
    near, far = net.plain(listener)  # far inherits SO_REUSEADDR, as in our HTTP server
    ring.remember(before)
    assert len(ring) == 0
    assert ring.shut() == 0
    near.sendall(b"x")
    assert far.recv(1) == b"x"


def test_sockets_of_an_earlier_ring_are_not_those_of_this_one(net: Net) -> None:
    listener, ring = net.listener(), RingSockets()
    near, _ = net.gloo(listener)
    ring.remember(ring.before())
    assert ring.shut() == 0
    assert not is_cut(near)


def test_a_descriptor_that_was_given_to_somebody_else_is_not_touched(net: Net) -> None:
    listener, ring = net.listener(), RingSockets()
    before = ring.before()
    near, far = net.gloo(listener)
    ring.remember(before)
    number = near.fileno()
    other, other_far = net.gloo(listener)
    os.dup2(other.fileno(), number)  # closes near; its number is now another connection's
    assert ring.shut() == 1  # far, the other end of near
    assert is_cut(far)
    assert not is_cut(other)
    assert not is_cut(other_far)


def test_nothing_is_cut_after_forget(net: Net) -> None:
    listener, ring = net.listener(), RingSockets()
    before = ring.before()
    near, _ = net.gloo(listener)
    ring.remember(before)
    ring.forget()
    assert ring.shut() == 0
    assert not is_cut(near)


def test_a_build_under_way_is_cut_with_its_listening_sockets(net: Net) -> None:
    server, ring = net.listener(), RingSockets()
    ring.before()
    gloo_listener = net.listener()
    client, accepted = net.plain(server)
    assert ring.shut() == 1
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(gloo_listener.getsockname(), 5)
    assert not is_cut(client)
    assert not is_cut(accepted)


def test_a_build_under_way_is_freed_from_a_store_that_does_not_answer(net: Net) -> None:
    store, other, ring = net.listener(), net.listener(), RingSockets()
    early, _ = net.plain(store)
    ring.before(store.getsockname()[1])
    held, held_far = net.plain(store)
    elsewhere, _ = net.plain(other)
    assert ring.shut() == 1
    assert is_cut(held)
    assert is_cut(held_far)
    assert not is_cut(early)
    assert not is_cut(elsewhere)


def test_a_build_under_way_is_freed_from_a_store_that_cannot_be_reached(net: Net) -> None:
    store, ring = net.listener(), RingSockets()
    store.listen(0)
    net.stack.enter_context(socket.create_connection(store.getsockname()))
    # The queue is full: further connections are not answered, as on a link that is cut.
    ring.before(store.getsockname()[1])
    ended: list[OSError] = []

    def connect() -> None:
        with socket.socket() as one:
            try:
                one.connect(store.getsockname())
            except OSError as error:
                ended.append(error)

    thread = threading.Thread(target=connect)
    thread.start()
    deadline = time.monotonic() + 10
    while ring.shut() == 0:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    thread.join(10)
    assert len(ended) == 1


def test_looking_leaves_no_descriptor_behind(net: Net) -> None:
    others = len(open_sockets())
    listener, ring = net.listener(), RingSockets()
    before = ring.before()
    net.gloo(listener)
    count = len(os.listdir("/proc/self/fd"))
    ring.remember(before)
    ring.shut()
    assert len(open_sockets()) == others + 3
    assert len(os.listdir("/proc/self/fd")) == count
