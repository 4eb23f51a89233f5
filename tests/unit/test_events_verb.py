"""What `edl events` says of events that cannot be read: all those of a cluster, or newer ones."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from edl.cli import events as verb
from edl.cluster.nodes import ClusterPaths
from edl.cluster.submission import TenantNodes, TenantStore
from edl.errors import UsageError
from edl.events import Event, FinishedDetails
from edl.zookeeper.access import Access
from edl.zookeeper.events import OnUnreadable


def test_a_tenant_is_told_which_events_it_can_read(monkeypatch: pytest.MonkeyPatch) -> None:
    no_session: Any = None
    nodes = TenantNodes(no_session, ClusterPaths("lab"), "ann")
    store = TenantStore(nodes, Access("lab/ann", "0" * 64))
    monkeypatch.setattr(verb, "connected", lambda _: nullcontext())
    monkeypatch.setattr(verb, "store_of_job", lambda *_: store)
    with pytest.raises(UsageError, match=r"tenant ann may not read .*--cluster ''.* of a run"):
        verb.events("digits")


def test_an_event_of_a_newer_edl_is_left_out_and_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def read_known(after: int, unreadable: OnUnreadable) -> list[tuple[int, Event]]:
        for _ in range(2):
            unreadable(7, "an event has the kind 'rescued', which this edl does not know")
        return [(8, Event(0.0, 1, 3, "trained 3 steps", FinishedDetails()))]

    over = SimpleNamespace(job=SimpleNamespace(state=SimpleNamespace(over=True)))
    log = SimpleNamespace(read_known=read_known)
    monkeypatch.setattr(verb, "connected", lambda _: nullcontext())
    monkeypatch.setattr(verb, "store_of_job", lambda *_: None)
    store = SimpleNamespace(snapshot=lambda: over, events=log)
    monkeypatch.setattr(verb, "choose_job", lambda *_, **__: store)
    verb.events("digits", as_json=True)
    shown = capsys.readouterr()
    assert "trained 3 steps" in shown.out
    assert shown.err == (
        "edl: event 7 is left out: an event has the kind 'rescued', which this edl does not know\n"
    )
