"""What the page of a cluster reads of a real ZooKeeper, which goes away and comes back.

No controller runs: the test writes what one would write. The pages themselves are in
``browser/test_cluster_dashboard.py``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edl import config
from edl.cli.main import invoke
from edl.cluster.client.client import job_manifest
from edl.cluster.client.history_file import HistoryFile
from edl.cluster.nodes import create_cluster, open_cluster
from edl.cluster.records import ClusterRecord
from edl.cluster.store import ClusterStore
from edl.cluster.submission import submit_job
from edl.dashboard.cluster_watcher import ClusterWatcher
from edl.dashboard.view.page import JobChoice
from edl.testing.zookeeper import ensemble
from edl.zookeeper.access import CLUSTERS, Access, keep, new_secret
from edl.zookeeper.session import Session

pytestmark = [pytest.mark.integration, pytest.mark.long]

LAB = Access("lab", new_secret())
WAIT_S = 60.0


def sections(watcher: ClusterWatcher) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(watcher.page.patch())["sections"]
    return found


def turns_until(watcher: ClusterWatcher, holds: Callable[[dict[str, Any]], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds(sections(watcher)):
        assert time.monotonic() < deadline, sections(watcher)
        watcher.turn()


def test_it_follows_the_cluster_and_survives_zookeeper(tmp_path: Path) -> None:
    with (
        ensemble(tmp_path, 1) as (server,),
        Session(server.hosts, 4.0, 10.0) as writing,
        Session(server.hosts, 4.0, 10.0) as own,
    ):
        assert create_cluster(writing, LAB, ClusterRecord())
        lab = ClusterStore(open_cluster(writing, LAB), by="ann@a")
        watcher = ClusterWatcher(
            ClusterStore(open_cluster(own, LAB)), HistoryFile(tmp_path / "history.sqlite")
        )
        watcher.turn()
        header = sections(watcher)["header"]
        assert (header["words"], header["jobs"]) == ("no controller leads", {})

        def submit(name: str) -> None:
            values = {"name": name, "command": ["true"], "min": 1, "max": 2}
            submit_job(lab, job_manifest(values), None)

        submit("before")
        turns_until(watcher, lambda page: page["header"]["jobs"] == {"queued": 1})
        assert sections(watcher)["events"]["counts"] == {"user": 1}
        [job] = watcher.jobs(JobChoice()).jobs
        assert job.reason == "no controller of the cluster has seen it yet"

        server.kill()
        turns_until(watcher, lambda page: page["notice"] is not None)
        found = sections(watcher)
        assert found["notice"]["text"].startswith("The cluster could not be read for 0 seconds")
        assert found["header"]["jobs"] == {"queued": 1}, "what was known stays"
        server.start()
        turns_until(watcher, lambda page: page["notice"] is None)
        submit("after")
        turns_until(watcher, lambda page: page["header"]["jobs"] == {"queued": 2})
        assert sections(watcher)["events"]["counts"] == {"user": 2}


def test_a_job_of_a_cluster_that_never_started_has_no_page(
    tmp_path: Path,
    zk_hosts: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    keep(config.state_dir(), "lab", LAB.secret, CLUSTERS)
    with Session(zk_hosts, 4.0, 10.0) as session:
        assert create_cluster(session, LAB, ClusterRecord())
        lab = ClusterStore(open_cluster(session, LAB), by="ann@a")
        manifest = job_manifest({"name": "j", "command": ["true"], "min": 1, "max": 2})
        submit_job(lab, manifest, None)
    at = ("--zookeeper", zk_hosts, "--port", "0")
    refusals = {
        ("j",): "job j has not started yet, so it has no page",
        ("j", "--cluster", "lab"): "job j has not started yet, so it has no page",
        ("none", "--cluster", "lab"): "'none'",
        ("--cluster", "other"): "other",
    }
    for words, why in refusals.items():
        assert invoke(["dashboard", *words, *at]) in (2, 94)
        assert why in capsys.readouterr().err
