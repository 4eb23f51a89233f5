"""A controller that borrows hosts from another engine than the one before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from edl.cluster.fleet.runner import FleetStatus, LeaseManager
from edl.cluster.leases import lease_summary, table_for, without_asking
from edl.cluster.lifecycle import ClusterEvent, ClusterEventKind
from edl.cluster.nodes import ClusterPaths
from edl.cluster.records import (
    HostLease,
    HostOffer,
    LeaseLimits,
    LeaseRecord,
    LeaseState,
    LeaseTable,
    Shape,
)
from edl.cluster.view import ClusterView, HostView
from edl.zookeeper.election import Write

RUNS = LeaseRecord(4, 1.0, LeaseState.RUNNING, "n1", offered_s=2.0, idle_s=2.0)
OVER = replace(RUNS, state=LeaseState.ENDED, is_over=True)
LENT = LeaseTable("slurm", 7, {"l7": RUNS, "l6": OVER})
STRAY = LeaseTable("slurm", 7, strays={"l5": 9.0})
NEW = LeaseTable("ray", 7)


@pytest.mark.parametrize(
    ("table", "forget", "found"),
    [
        (LeaseTable("ray", 7, {"l7": RUNS}), "", LeaseTable("ray", 7, {"l7": RUNS})),
        (LeaseTable(), "", LeaseTable("ray")),
        (LENT, "", LENT),
        (LENT, "kubernetes", LENT),
        (LENT, "slurm", NEW),
        (replace(LENT, leases={"l6": OVER}), "", NEW),
        (replace(LENT, leases={}), "", NEW),
        (STRAY, "", STRAY),
    ],
)
def test_leases_of_another_engine_are_kept_until_they_are_over_or_forgotten(
    table: LeaseTable, forget: str, found: LeaseTable
) -> None:
    assert table_for("ray", table, forget) == found


def test_the_reason_says_what_to_do() -> None:
    found = without_asking("ray", replace(LENT, failures=3, not_before_s=9e9, why="it failed"))
    assert lease_summary(found) == (
        "slurm lends 1 host; ray is asked for no host while slurm has 1 lease of this cluster, "
        "which only a controller with --fleet slurm gives back: start it in place of this one, "
        "with --max-hosts 0, and drain those hosts; if slurm is gone for good, start one with "
        "--fleet ray --forget-fleet slurm"
    )
    assert replace(found, why="") == LENT, "the next failure of slurm is the first one"
    assert without_asking("ray", found) == found


class Term:
    """A term of a leader that borrows one host of Ray; what it writes, orders and says."""

    def __init__(self, stored: LeaseTable, forget: str = "") -> None:
        self.written: list[dict[str, Any]] = []
        self.orders: list[tuple[Any, ...]] = []
        self.said: list[str] = []
        store: Any = SimpleNamespace(
            leader=SimpleNamespace(leases=lambda: (stored, 3)),
            paths=ClusterPaths("lab"),
            events=SimpleNamespace(new=self._event),
        )
        writer: Any = SimpleNamespace(commit=self._commit)
        self.runner: Any = SimpleNamespace(
            name="ray", answer=FleetStatus(1, {}), order=lambda *words: self.orders.append(words)
        )
        limits = LeaseLimits(Shape(4), max_hosts=2, min_hosts=1, forget=forget)
        self.keeper = LeaseManager(store, writer, self.runner, limits, self.said.append)
        self.view = ClusterView([], [HostView("n1", HostOffer(4, lease="l7"))])

    def _event(self, kind: ClusterEventKind, reason: str, host: str = "") -> ClusterEvent:
        return ClusterEvent(1.0, kind, reason, host=host)

    def _commit(self, writes: Sequence[Write]) -> bool:
        self.written += [write.value for write in writes if "engine" in write.value]
        return True

    def turn(self) -> HostView:
        view = self.keeper.marked(self.view)
        self.keeper.turn(view, 1000.0)
        return view.hosts[0]


def test_the_present_engine_is_asked_for_nothing_while_the_former_one_lends_hosts() -> None:
    term = Term(LENT)
    assert term.turn().takes_slots, "the host keeps its jobs"
    assert [LeaseTable.from_json(one) for one in term.written] == [without_asking("ray", LENT)]
    term.runner.answer = FleetStatus(2, {"l8": HostLease(LeaseState.RUNNING)})
    term.turn()
    assert len(term.written) == 1
    assert (term.orders, term.said) == ([], [without_asking("ray", LENT).why])


def test_each_leader_says_it_though_it_is_written_already() -> None:
    term = Term(without_asking("ray", LENT))
    term.turn()
    assert (term.written, len(term.said)) == ([], 1)


def test_an_engine_that_is_gone_is_forgotten() -> None:
    term = Term(LENT, forget="slurm")
    assert not term.turn().takes_slots
    [table] = term.written
    assert (table["engine"], list(table["leases"])) == ("ray", ["l8"])
    assert term.orders[0][1] == ("l8",)
