"""What the leader of a cluster writes for and of its tenants, whatever they have written."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any

from edl.cluster.controller.tenant_requests import TenantRequests
from edl.cluster.lifecycle import ClusterEvent, JobLifecycle
from edl.cluster.nodes import ClusterPaths
from edl.cluster.plan import ClusterPlan
from edl.cluster.tenants import TenantView
from edl.cluster.writer import MAX_BYTES, byte_count
from edl.errors import CoordinationError

P = ClusterPaths("lab")


class Cluster:
    """A cluster with tenants; it refuses what ``ClusterWriter.commit`` does.

    ``refused`` are the tenants whose views fail for another reason, ``inbox`` the nodes in the
    inbox of each tenant, ``told`` and ``events`` what is written.
    """

    def __init__(
        self, *tenants: str, refused: tuple[str, ...] = (), inbox: tuple[str, ...] = ()
    ) -> None:
        self.refused = {P.tenant_view(name) for name in refused}
        self.told: dict[str, TenantView] = {}
        self.events: list[ClusterEvent] = []
        nodes: Any = SimpleNamespace(read=lambda *reads: [inbox for _ in reads], paths=P)
        records: Any = SimpleNamespace(
            records=lambda wake: dict.fromkeys(tenants), key=lambda name, about: "key"
        )
        events = SimpleNamespace(clock=lambda: 4711.0)
        store: Any = SimpleNamespace(nodes=nodes, paths=P, tenants=records, events=events)
        writer: Any = self
        self.requests = TenantRequests(store, writer, lambda: None)

    def commit(self, writes: Any) -> bool:
        *_, write = writes
        if write.sequence:
            self.events.append(ClusterEvent.from_json(write.value))
            return True
        if byte_count(writes) > MAX_BYTES or write.path in self.refused:
            raise CoordinationError("too many bytes")
        self.told[write.path] = TenantView.from_json(write.value)
        return True

    def serve(self, reasons: dict[str, str], now_s: float = 10.0) -> float:
        lives = dict.fromkeys(reasons, JobLifecycle(since_s=5.0))
        return self.requests.serve((), ClusterPlan(reasons=reasons), lives, now_s)


def test_long_reasons_of_a_tenant_do_not_end_the_turn() -> None:
    cluster = Cluster("ann")
    chance = Random(0)
    reasons = {f"ann.job-{n}": chance.randbytes(4000).hex() for n in range(300)}
    cluster.serve(reasons)
    told = cluster.told[P.tenant_view("ann")].reasons
    assert told.keys() == reasons.keys()
    assert all(reasons[job].startswith(why) and why for job, why in told.items())


def test_a_view_that_cannot_be_written_leaves_the_other_tenants_theirs() -> None:
    cluster = Cluster("ann", "bob", refused=("ann",))
    reasons = {"ann.a": "why", "bob.b": "why"}
    cluster.serve(reasons)
    assert cluster.told.keys() == {P.tenant_view("bob")}
    cluster.refused.clear()
    cluster.serve(reasons, now_s=20.0)
    assert cluster.told[P.tenant_view("ann")].reasons == {"ann.a": "why"}


def test_an_event_of_a_tenant_has_the_time_of_the_leader() -> None:
    """The events of one job are of one clock, whoever has submitted it."""
    cluster = Cluster("ann", inbox=("foo",))
    cluster.serve({})
    [event] = cluster.events
    assert (event.by, event.time_s) == ("tenant ann", 4711.0)
