"""Keep the leases of a cluster in one term of its leader: read, decide, write, then order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from edl.coordination.cluster.store import ClusterStore
from edl.coordination.cluster.writer import ClusterWriter, event_write, leases_write
from edl.core.cluster.engine_change import table_for, without_asking
from edl.core.cluster.events import ClusterEventKind
from edl.core.cluster.lease_records import LeaseLimits, LeaseTable
from edl.core.cluster.leases import (
    LastOffer,
    LeaseDecision,
    decide_leases,
    own_offers,
    with_leases,
    with_offers,
)
from edl.core.cluster.view import ClusterView
from edl.scheduler.fleet.fleet_runner import FleetRunner


class LeaseKeeper:
    """The leases of a cluster, during one term of its leader."""

    def __init__(
        self,
        store: ClusterStore,
        writer: ClusterWriter,
        runner: FleetRunner,
        limits: LeaseLimits,
        say: Callable[[str], None],
    ) -> None:
        self._store = store
        self._writer = writer
        self._runner = runner
        self._limits = limits
        self._say = say
        self._read: tuple[LeaseTable, int] | None = None  # only this leader writes it now
        self._obstacle = ""  # why the engine is not asked, as it was said last
        # In memory only: the next leader asks for a host too many if one is silent just then.
        self._offers: dict[str, LastOffer] = {}

    def marked(self, view: ClusterView) -> ClusterView:
        """Return `view` with a mark on each host whose lease ends: jobs get no slots there."""
        return with_leases(view, self._table()[0])

    def turn(self, view: ClusterView, now_s: float) -> None:
        """Decide about the leases, write the decision, and leave the orders that follow."""
        answer, engine = self._runner.answer, self._runner.name
        table, version = self._table()
        is_former = table.engine != engine
        if is_former:
            found = LeaseDecision(without_asking(engine, table))
        else:
            self._offers = own_offers(view, self._offers, now_s)
            known = with_offers(view, self._offers)
            found = decide_leases(table, answer.leases, known, self._limits, now_s)
        obstacle = found.table.why if is_former else answer.why
        if obstacle != self._obstacle:
            self._say(obstacle or f"{engine} answers again")
            self._obstacle = obstacle
        if found.table != table:
            news = [(f"{engine}: {what}", host) for what, host in found.news]
            events = [
                self._store.events.new(ClusterEventKind.LEASE, what, host=host)
                for what, host in news
            ]
            paths = self._store.paths
            self._read = None  # read it again if this fails
            writes = [event_write(paths, event) for event in events]
            if not self._writer.commit([leases_write(paths, found.table, version), *writes]):
                return
            self._read = (found.table, version + 1)
            for what, _ in news:
                self._say(what)
        if is_former:
            return
        shape = replace(self._limits.shape, avoid=found.avoid)
        self._runner.order(answer.number, found.ask, shape, found.give_back)

    def _table(self) -> tuple[LeaseTable, int]:
        """Return the record of the leases and its version."""
        if self._read is None:
            table, version = self._store.leader.leases()
            self._read = (table_for(self._runner.name, table, self._limits.forget), version)
        return self._read
