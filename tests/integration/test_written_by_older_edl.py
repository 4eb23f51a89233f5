"""Read what edl at 6db29ec9 has written: records in ZooKeeper, events, a checkpoint, history.

`written_by_6db29ec9` was made once by that version: a cluster with a host, a queue, a tenant, a
secret and five jobs (running, halted, waiting, failed twice), a job with a policy and a profile
(`p`), and two that were stopped; the nodes were read while they ran. The paths are changed.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forked
import pytest
from kazoo.client import KazooClient
from kazoo.security import ACL, Id

from edl.client import Cluster, Job
from edl.cluster.client.history_file import HistoryFile
from edl.cluster.lifecycle import ClusterEvent
from edl.events import Event
from edl.zookeeper.access import CLUSTERS, JOBS, Access, announce, keep

WRITTEN = Path(__file__).with_name("written_by_6db29ec9")

RESUMES = """
import torch
from torch.utils.data import TensorDataset
import edl.torch as edl

edl.init()
model = torch.nn.Linear(2, 1)
optimizer = edl.Optimizer(torch.optim.Adam(model.parameters(), lr=0.01), model)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
data = TensorDataset(torch.arange(24.).reshape(12, 2), torch.arange(12.))
loader = edl.DataLoader(data, batch_size=2, shuffle=True, seed=3)
edl.checkpoint("checkpoint", every_s=1000)
for epoch in loader.epochs(3):
    print("begins", epoch, [round(v, 4) for v in model.weight[0].tolist()], flush=True)
    for x, y in loader:
        optimizer.zero_grad()
        ((model(x)[:, 0] - y) ** 2).mean().backward()
        optimizer.step()
    scheduler.step()
print("rate", optimizer.param_groups[0]["lr"], "step", edl.step())
"""


@pytest.fixture(scope="module")
def nodes() -> dict[str, Any]:
    with gzip.open(WRITTEN / "zookeeper.json.gz") as file:
        read: dict[str, Any] = json.load(file)
    return read


@pytest.fixture
def old(
    nodes: dict[str, Any], zk_hosts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """Write the old nodes into this test's chroot, and the secrets where this user has them."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("EDL_ZOOKEEPER", zk_hosts)
    client = KazooClient(zk_hosts, timeout=10.0)
    client.start()
    for of, secrets in ((JOBS, nodes["jobs"]), (CLUSTERS, {"main": [nodes["clusters"]["main"]]})):
        for name, each in secrets.items():
            for secret in each:
                announce(tmp_path / "state" / "edl", name, secret, of)
                client.add_auth("digest", Access(name, secret).credential)
            keep(tmp_path / "state" / "edl", name, each[-1], of)
    try:
        created = client.transaction()  # edl creates a job's nodes in one, too
        for path, text, acl, ephemeral in sorted(nodes["nodes"])[1:]:
            acl = [ACL(perms, Id(scheme, name)) for perms, scheme, name in acl]
            created.create(path, text.encode(), acl, ephemeral=bool(ephemeral))
        assert {*created.commit()} == {path for path, *_ in nodes["nodes"][1:]}
        yield zk_hosts
    finally:
        client.stop()
        client.close()


def test_jobs_with_their_policy_profile_and_events(old: str) -> None:
    with Job("p", old) as job:
        status = job.status()
        assert (status.state, [one.id for one in status.members]) == (
            "running",
            ["w0", "w2"],
        )
        assert (status.leader, status.generation, status.epoch) == ("w0", 4, 25)
        assert [(p.np, round(p.throughput)) for p in job.curve().points] == [(1, 442), (2, 736)]
        explained = job.explain_policy()
        assert "stays at 2" in str(explained)
        spans = job.history().spans
        assert [span.np for span in spans] == [1, 2, 1, 2]
    with Job("old", old) as job:
        assert job.status().state == "stopped"


def test_no_event_is_unknown(nodes: dict[str, Any]) -> None:
    written = [
        json.loads(text)
        for path, text, *_ in nodes["nodes"]
        if path.startswith("/edl/jobs/") and "/events/e-" in path
    ]
    assert len(written) > 80
    kinds = {one["kind"] for one in written}
    assert len(kinds) >= 13
    for one in written:
        event = Event.from_json(one)
        assert event.kind == one["kind"]
        assert one["details"].items() <= event.to_json()["details"].items()


def test_a_cluster(old: str) -> None:
    with Cluster("main", old) as cluster:
        listed = {job.name: (str(job.state), job.outcome, job.slots) for job in cluster.list()}
        assert listed == {
            "a": ("ended", "failed", 0),
            "b": ("halted", "halted", 0),
            "c": ("queued", "queued", 0),
            "d": ("ended", "failed", 0),
            "e": ("running", "running", 3),
        }
        shown = cluster.show("e")
        assert (shown.job.priority, shown.manifest.max, shown.manifest.secrets) == (
            4,
            3,
            ("wandb",),
        )
        assert [one.kind for one in shown.history][:2] == ["submitted", "state"]
        assert [host.host for host in cluster.status().hosts] == ["vm"]
        assert [queue.queue for queue in cluster.queues.list()] == ["research"]
        assert cluster.tenants.list() == ("alice",)
        assert [secret.name for secret in cluster.secrets.list()] == ["wandb"]
        kinds = {event.kind for _, event in cluster.events()}
        assert kinds >= {"submitted", "state", "slots", "wanted", "queue", "tenant", "secret"}


def test_the_history_of_a_cluster(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    shutil.copy(WRITTEN / "history.sqlite", path)
    with sqlite3.connect(path) as db:
        ((uid,),) = db.execute("SELECT uid FROM cluster")
    history = HistoryFile(path)
    ((number, newest),) = sqlite3.connect(path).execute("SELECT number, event FROM log")
    event = ClusterEvent.from_json(json.loads(newest))
    assert history.fill(lambda after: [(number, event)], uid) == 0
    jobs = {one.job: (str(one.state), one.runs) for one in history.jobs(2e9)}
    assert jobs == {
        "a": ("ended", 4),
        "b": ("halted", 3),
        "c": ("queued", 0),
        "d": ("ended", 1),
        "e": ("queued", 3),
    }
    assert len(history.slots(0.0, 2e9)) == 11
    assert len(history.audit()) == 15


def test_a_checkpoint(tmp_path: Path, zk_hosts: str) -> None:
    shutil.copytree(WRITTEN / "checkpoint", tmp_path / "checkpoint")
    (tmp_path / "train.py").write_text(RESUMES)
    command = ("run", "-np", "1", "--resume", sys.executable, "train.py")
    own = {"EDL_ZOOKEEPER": zk_hosts, "XDG_STATE_HOME": str(tmp_path / "state")}
    words = [sys.executable, "-m", "edl.cli.main", *command]
    done = forked.by_exec(words, 120, cwd=tmp_path, env=os.environ | own)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "begins 2 [0.0797, 0.4647]" in done.stdout, "as the older edl has printed at its end"
    assert "begins 1" not in done.stdout
    assert "rate 0.001 step 18" in done.stdout
