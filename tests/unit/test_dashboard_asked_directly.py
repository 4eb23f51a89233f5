"""What a page learns without ZooKeeper: from workers, and from a connection to its servers."""

from __future__ import annotations

import socket

import pytest

from edl.dashboard.job_watcher import probe_servers
from edl.dashboard.view.outage import ServerProbe


def test_a_server_that_listens_and_one_that_is_gone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # nobody listens there, and nobody else gets it
        here, gone = (f"127.0.0.1:{one.getsockname()[1]}" for one in (listener, bound))
        found = probe_servers(f"{here}, {gone}/path")
        assert found == {here: ServerProbe.OPEN, gone: ServerProbe.REFUSED}


def test_a_server_that_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    def waits(*_: object) -> None:
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", waits)
    assert probe_servers("a:2181") == {"a:2181": ServerProbe.SILENT}


def test_what_is_no_address_is_left_out() -> None:
    assert probe_servers("nothing") == {}
