"""What users ask of a cluster, with `edl.client.Cluster` and the command line, on a real ZooKeeper.

No controller runs: the test writes what the leader would write.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edl import config
from edl.cli.main import invoke
from edl.client import Cluster
from edl.coordination.access import Access
from edl.coordination.cluster_host import HostOwner
from edl.coordination.cluster_nodes import create_cluster, open_cluster
from edl.coordination.cluster_store import ClusterStore
from edl.coordination.cluster_writer import (
    ClusterWriter,
    life_write,
    reasons_write,
)
from edl.coordination.secrets import CLUSTERS, keep
from edl.coordination.session import Session
from edl.core.cluster.job_life import LifeEvent
from edl.core.cluster.records import (
    ClusterRecord,
    JobReasons,
)
from edl.errors import (
    ManifestError,
    UsageError,
)

pytestmark = pytest.mark.integration

SECRET = "fedcba9876543210" * 4
LAB = Access("lab", SECRET)
DIGITS = "name: digits\ncommand: [python, train.py]\nmin: 1\nmax: 4\n"
OWNER = HostOwner("token", "here", 1)


class Leader:
    """Writes what a leading controller would write."""

    def __init__(self, session: Session) -> None:
        self.store = ClusterStore(open_cluster(session, LAB), by="the leader")
        election = self.store.election("one", {"address": "here"})
        election.enter()
        leadership = election.leads()
        assert leadership is not None
        self.writer = ClusterWriter(self.store, leadership)

    def lives(self, job: str, *events: LifeEvent, **changes: Any) -> None:
        """Let ``events`` happen to a job."""
        stored = self.store.job(job)
        life = stored.life
        for event in events:
            life = life.after(event, f"a test lets it {event}", time.time(), **changes)
        assert self.writer.commit([life_write(self.store.paths, stored, life)])

    def says(self, **reasons: str) -> None:
        said = JobReasons(time.time(), reasons)
        assert self.writer.commit([reasons_write(self.store.paths, said)])


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zk_hosts: str) -> Path:
    """Give the test a user of its own, who knows this ZooKeeper."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("EDL_ZOOKEEPER", zk_hosts)
    for name in ("EDL_SECRET", "EDL_SECRET_FILE", "EDL_CLUSTER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(DIGITS)
    return tmp_path


@pytest.fixture
def session(zk_hosts: str) -> Iterator[Session]:
    with Session(zk_hosts, session_timeout_s=2.0) as one:
        yield one


@pytest.fixture
def leader(session: Session) -> Leader:
    """Start the cluster `lab`, whose secret this user keeps."""
    keep(config.state_dir(), "lab", SECRET, CLUSTERS)
    assert create_cluster(session, LAB, ClusterRecord())
    return Leader(session)


@pytest.fixture
def lab(leader: Leader) -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def edl(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run a verb; return its exit code, output, and what it said of an error."""

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = invoke(words)
        out, err = capsys.readouterr()
        return code, out, err.removeprefix("edl: ").rstrip("\n")

    return run


class TestSubmission:
    def test_all_kinds_of_manifests(self, lab: Cluster, home: Path) -> None:
        values = {"name": "b", "command": ["python", "x.py"], "min": 2, "max": 4, "sizes": [2, 4]}
        assert lab.submit("job.yaml") == "digits"
        assert lab.submit(DIGITS.replace("digits", "a")) == "a"
        assert lab.submit(values) == "b"
        assert lab.submit(replace(lab.show("b").manifest, name="c", cwd="sub")) == "c"
        assert [job.name for job in lab.list()] == ["digits", "a", "b", "c"]
        assert lab.show("digits").manifest.cwd == str(home)
        assert lab.show("c").manifest.cwd == str(home / "sub")

    def test_a_key_is_one_job(self, lab: Cluster, edl: Callable[..., Any]) -> None:
        for _ in range(2):
            assert edl("submit", "job.yaml", "--key", "k") == (
                0,
                "job digits is submitted to cluster lab\n",
                "",
            )
        assert len(lab.list()) == 1
        with pytest.raises(UsageError, match="submitted with the same key and another manifest"):
            lab.submit(DIGITS.replace("4", "5"), key="k")
        with pytest.raises(UsageError, match="has a job named 'digits' already, which is queued"):
            lab.submit("job.yaml")

    def test_bad_manifests_are_sentences(self, lab: Cluster, edl: Callable[..., Any]) -> None:
        Path("bad.yaml").write_text(DIGITS.replace("max: 4", "mx: 4"))
        code, _, error = edl("submit", "bad.yaml")
        assert code == 2
        assert error.startswith("bad.yaml:4: a manifest has no key 'mx'")
        code, _, error = edl("submit", "none.yaml")
        assert code == 2
        assert error.startswith("none.yaml: it cannot be read: No such file or directory; name the")
        with pytest.raises(ManifestError, match=r"^min is 'one'; it must be a whole number"):
            lab.submit({"name": "a", "command": ["x"], "min": "one", "max": 2})
        with pytest.raises(ManifestError, match="command is of type set; give texts"):
            lab.submit({"name": "a", "command": {"x"}, "min": 1, "max": 2})
        assert lab.list() == ()
