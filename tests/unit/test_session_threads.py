"""Threads that share a session: a request of one is not sent while another one proves secrets."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from edl.errors import CoordinationError
from edl.zookeeper.access import Access
from edl.zookeeper.session import Session


class FakeClient:
    connected = True
    default_acl = None

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.on_answer = lambda: None

    def exists_async(self, path: str, **_: object) -> Any:
        return self.send(f"exists {path}")

    def prove(self, credential: str) -> Any:
        return self.send("proof")

    def send(self, what: str) -> Any:
        self.sent.append(what)
        return SimpleNamespace(get=lambda timeout: self.on_answer())


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Session:
    client: Any = FakeClient()
    made = Session("zk:2181")
    made._client = client
    monkeypatch.setattr("edl.zookeeper.session.Client", FakeClient)
    return made


def test_a_request_waits_while_another_thread_proves_secrets(session: Session) -> None:
    client: Any = session.client
    errors: list[str] = []

    def read() -> None:
        try:
            session.call("read", lambda client: client.send("read"))
        except CoordinationError as error:
            errors.append(str(error))

    def read_in_a_thread() -> None:
        thread = threading.Thread(target=read)
        thread.start()
        thread.join(20.0)
        assert not thread.is_alive()

    client.on_answer = read_in_a_thread
    session.request_timeout_s = 0.05
    session.identify(Access("j", "5" * 64), Access("k", "6" * 64))
    assert client.sent == ["exists /", "proof", "proof"]
    assert "another thread of this process has been proving secrets for 0.05 s" in errors[0]
    client.on_answer = lambda: None
    client.sent.clear()
    errors.clear()
    read_in_a_thread()
    assert (client.sent, errors) == (["read"], [])
