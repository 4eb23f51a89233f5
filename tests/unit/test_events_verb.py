"""What `edl events` says to a tenant, who may not read the event log of a cluster."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from edl.cli import events as verb
from edl.coordination.access import Access
from edl.coordination.cluster.paths import ClusterPaths
from edl.coordination.cluster.tenant_store import TenantNodes, TenantStore
from edl.errors import UsageError


def test_a_tenant_is_told_which_events_it_can_read(monkeypatch: pytest.MonkeyPatch) -> None:
    no_session: Any = None
    nodes = TenantNodes(no_session, ClusterPaths("lab"), "ann")
    store = TenantStore(nodes, Access("lab/ann", "0" * 64))
    monkeypatch.setattr(verb, "connected", lambda _: nullcontext())
    monkeypatch.setattr(verb, "store_of_job", lambda *_: store)
    with pytest.raises(UsageError, match=r"tenant ann may not read .*--cluster ''.* of a run"):
        verb.events("digits")
