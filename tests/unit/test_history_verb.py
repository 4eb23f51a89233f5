"""How `edl history` shows what is known of jobs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from edl.cli import dashboard as verb
from edl.cli.dashboard import history_table, slot_lines
from edl.cluster.client.history_file import HistoryFile, history_path
from edl.cluster.history import JobHistory, SlotInterval
from edl.cluster.lifecycle import ClusterEvent, ClusterEventKind, LifeResult, LifeState
from edl.cluster.nodes import ClusterPaths
from edl.cluster.submission import TenantNodes, TenantStore
from edl.errors import UsageError
from edl.zookeeper.access import Access

DAY_S = 86400.0


def test_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edl.cli.dashboard.moment", lambda time_s: f"day {time_s / DAY_S:g}")
    jobs = (
        JobHistory(
            9,
            "a",
            "ann@a",
            DAY_S,
            0.0,
            3 * DAY_S,
            LifeState.ENDED,
            LifeResult.FAILED,
            "",
            3,
            5400.0,
        ),
        JobHistory(7, "letters", state=LifeState.RUNNING, runs=1),
    )
    assert [line.rstrip() for line in history_table(jobs, 5 * DAY_S)] == [
        "JOB      STATE    RUNS  SLOT HOURS  SUBMITTED  LASTED  BY",
        "a        failed   3     1.50        day 1      48h     ann@a",
        "letters  running  1     0.00        -          -       -",
    ]
    slots = (
        SlotInterval(9, "a", "h0", 2, DAY_S, 3 * DAY_S),
        SlotInterval(9, "a", "h1", 1, 3 * DAY_S, None),
    )
    assert slot_lines(slots, 5 * DAY_S) == [
        "  day 1 to day 3 (48h): 2 slots of h0",
        "  day 3 to now (48h): 1 slot of h1",
    ]


def test_a_tenant_sees_no_history_and_empties_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    file = HistoryFile(history_path("lab"))
    event = ClusterEvent(1.0, ClusterEventKind.SUBMITTED, "a test", job="a", by="ann@a")
    file.fill(lambda after: [(0, event)], "5-0")
    assert [one.job for one in file.jobs(2.0)] == ["a"]

    @contextmanager
    def as_ann(*_: Any) -> Iterator[TenantStore]:
        nodes = TenantNodes(None, ClusterPaths("lab"), "ann")  # type: ignore[arg-type]
        yield TenantStore(nodes, Access("lab/ann", "0" * 64))

    monkeypatch.setattr(verb, "connected_cluster", as_ann)
    with pytest.raises(UsageError, match=r"tenant ann may not see the history of the cluster"):
        verb.history()
    assert [one.job for one in file.jobs(2.0)] == ["a"]
