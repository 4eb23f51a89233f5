"""The nodes of a cluster on a real ZooKeeper: who may read them, submissions, hosts, the leader."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from edl.cluster import submission
from edl.cluster.lifecycle import ClusterEventKind, JobLifecycle, LifeEvent, LifeResult, LifeState
from edl.cluster.manifest import JobManifest
from edl.cluster.nodes import CLUSTERS, cluster_names, create_cluster, open_cluster
from edl.cluster.records import (
    AllocationRecord,
    ClusterRecord,
    Goal,
    HostAssignment,
    HostOffer,
    HostReport,
    JobAssignment,
    JobReport,
    Wanted,
)
from edl.cluster.store import ClusterQueues, ClusterStore, HostOwner, HostRegistration
from edl.cluster.submission import submit_job
from edl.cluster.view import HostView
from edl.cluster.writer import (
    ENDED_KEPT_S,
    GONE_KEPT_S,
    ClusterWriter,
    allocation_write,
    assigned_write,
    event_write,
    hosts_to_remove,
    jobs_to_remove,
    life_write,
)
from edl.errors import (
    AccessDenied,
    ConfigError,
    CoordinationError,
    HostTaken,
    LeadershipLost,
    ManifestError,
    UnknownCluster,
    UnknownJob,
    UsageError,
)
from edl.zookeeper.access import Access
from edl.zookeeper.reads import acl as acl_of
from edl.zookeeper.reads import get
from edl.zookeeper.session import Session

pytestmark = pytest.mark.integration

Wait = Callable[..., None]
LAB = Access("lab", "fedcba9876543210" * 4)
STRANGER = Access("lab", "0" * 64)
A = HostOwner("token-a", "alpha", 4711)
B = HostOwner("token-b", "alpha", 4712)


def manifest(name: str = "digits", **changes: Any) -> JobManifest:
    return replace(JobManifest(name, ("python", "train.py"), 1, 4), **changes)


@pytest.fixture
def lab(zk_hosts: str) -> Iterator[Session]:
    with Session(zk_hosts, session_timeout_s=2.0) as one:
        assert create_cluster(one, LAB, ClusterRecord(policy="fifo"))
        yield one


@pytest.fixture
def store(lab: Session) -> ClusterStore:
    return ClusterStore(open_cluster(lab, LAB), by="me@here")


@pytest.fixture
def other(lab: Session, zk_hosts: str) -> Iterator[ClusterStore]:
    with Session(zk_hosts, session_timeout_s=2.0) as one:
        yield ClusterStore(open_cluster(one, LAB), by="you@there")


def lead(store: ClusterStore, name: str = "one") -> ClusterWriter:
    election = store.leader.election(name, {"address": "here"})
    election.enter()
    leadership = election.leads()
    assert leadership is not None
    return ClusterWriter(store, leadership)


def end(store: ClusterStore, writer: ClusterWriter, job: str, event: LifeEvent) -> None:
    """Let a job end with ``event``, whatever it was before."""
    stored = store.jobs.get(job)
    life = JobLifecycle(
        LifeState.HALTING if event is not LifeEvent.FINISH else LifeState.RUNNING
    ).after(event, "a test", 5.0)
    assert writer.commit([life_write(store.paths, stored, life)])


def kinds(store: ClusterStore) -> list[ClusterEventKind]:
    return [event.kind for _, event in store.events.read()]


class TestAccess:
    def test_it_is_created_once(self, lab: Session, zk_hosts: str) -> None:
        with Session(zk_hosts) as another:
            assert not create_cluster(another, LAB, ClusterRecord(policy="jsa"))
            store = ClusterStore(open_cluster(another, LAB))
            assert store.snapshot().settings.policy == "fifo"
            assert cluster_names(another) == ("lab",)

    def test_another_secret_opens_nothing(self, lab: Session, zk_hosts: str) -> None:
        with Session(zk_hosts) as stranger:
            for tried in (open_cluster, lambda s, a: create_cluster(s, a, ClusterRecord())):
                with pytest.raises(AccessDenied, match="cluster lab has another secret than the"):
                    tried(stranger, STRANGER)
            assert cluster_names(stranger) == ("lab",)

    def test_one_that_anybody_may_have_written_is_not_opened(
        self, lab: Session, zk_hosts: str
    ) -> None:
        with Session(zk_hosts) as stranger:
            stranger.call("test", lambda c: c.create_async(f"{CLUSTERS}/open"))
            with pytest.raises(AccessDenied, match="cluster open has another secret"):
                open_cluster(stranger, Access("open", LAB.secret))

    def test_one_that_is_not_there(self, lab: Session) -> None:
        with pytest.raises(UnknownCluster) as caught:
            open_cluster(lab, Access("lib", LAB.secret))
        assert str(caught.value) == "there is no cluster named 'lib'; known clusters: lab"
        with pytest.raises(ConfigError, match="'a/b' cannot be the name of a cluster"):
            open_cluster(lab, Access("a/b", LAB.secret))

    def test_nothing_is_written_with_the_secret_of_a_job(self, store: ClusterStore) -> None:
        store.nodes.session.identify(Access("digits", "1" * 64))
        for write in (
            lambda: submit_job(store, manifest()),
            lambda: store.leader.election("one", {}),
            lambda: HostRegistration(store.nodes, "a", A).register(HostOffer(1), lambda _: True),
        ):
            with pytest.raises(CoordinationError, match="only be written in a session of its own"):
                write()


class TestSubmission:
    def test_it_is_there_when_it_is_answered(
        self, store: ClusterStore, other: ClusterStore
    ) -> None:
        first = manifest("digits", priority=5, env={"A": "ü"})
        assert submit_job(store, first) == "digits"
        assert submit_job(store, manifest("apples")) == "apples"
        digits, apples = other.snapshot().jobs
        assert (digits.name, apples.name) == ("digits", "apples")
        assert digits.order < apples.order
        assert digits.submitted_s > 1.7e9
        assert digits.manifest == first
        assert digits.wanted == Wanted(Goal.RUN, 5)
        assert digits.life == JobLifecycle()
        assert digits.wants_slots
        assert other.jobs.get("apples") == apples
        assert other.jobs.list() == (digits, apples)
        event = other.events.read()[0][1]
        assert (event.kind, event.job, event.by) == ("submitted", "digits", "me@here")
        assert event.reason == "job digits was submitted, for 1 to 4 workers"

    def test_the_same_key_twice_is_one_job(self, store: ClusterStore, other: ClusterStore) -> None:
        command: Any = list(manifest().command)
        for one in (manifest(), manifest(), manifest(command=command)):
            assert submit_job(other, one, key="k 1/ä") == "digits"
            assert submit_job(store, one, key="k 1/ä") == "digits"
        assert len(store.jobs.list()) == 1
        assert kinds(store) == ["submitted"]
        for changed in (manifest(max=5), manifest("other")):
            with pytest.raises(UsageError, match="job digits was submitted with the same key and"):
                submit_job(store, changed, key="k 1/ä")
        with pytest.raises(UsageError, match="the key is empty"):
            submit_job(store, manifest(), key=" ")

    def test_many_at_once_with_one_key_are_one_job(
        self, store: ClusterStore, other: ClusterStore
    ) -> None:
        found: list[str] = []

        def submit(one: ClusterStore) -> None:
            found.append(submit_job(one, manifest(), key="k"))

        threads = [threading.Thread(target=submit, args=(one,)) for one in (store, other) * 4]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20.0)
        assert found == ["digits"] * 8
        assert kinds(store) == ["submitted"]

    def test_a_name_in_use(self, store: ClusterStore) -> None:
        submit_job(store, manifest())
        with pytest.raises(UsageError) as caught:
            submit_job(store, manifest(), key="another")
        assert str(caught.value) == (
            "cluster lab has a job named 'digits' already, which is queued; choose another name, "
            "or remove it with `edl delete digits`"
        )
        with pytest.raises(ManifestError, match="min is 9 and max is 4"):
            submit_job(store, manifest("other", min=9))

    @pytest.mark.parametrize("written", [True, False])
    def test_an_answer_that_is_lost(
        self, written: bool, store: ClusterStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As when the connection breaks, or the client's process is stopped, at that moment."""
        transact, session = store.nodes.session.transact, store.nodes.session

        def lost(*args: Any) -> Any:
            monkeypatch.undo()
            if written:
                transact(*args)
            raise CoordinationError("the answer is lost")

        monkeypatch.setattr(session, "transact", lost)
        assert submit_job(store, manifest()) == "digits"
        assert kinds(store) == ["submitted"]
        assert len(store.jobs.list()) == 1

    def test_zookeeper_that_stays_away_is_said(
        self, store: ClusterStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def away(*_: Any) -> None:
            raise CoordinationError("away")

        monkeypatch.setattr(store.nodes.session, "transact", away)
        with pytest.raises(CoordinationError, match="away"):
            submit_job(store, manifest())

    def test_an_ended_job_gives_its_name_to_the_next(self, store: ClusterStore) -> None:
        writer = lead(store)
        submit_job(store, manifest(), key="first")
        secret = writer.job_secret("digits")
        first = store.jobs.get("digits")
        end(store, writer, "digits", LifeEvent.FINISH)
        assert submit_job(store, manifest(), key="first") == "digits"
        assert store.jobs.get("digits").life.result is LifeResult.FINISHED
        assert submit_job(store, manifest(max=8), key="second") == "digits"
        second = store.jobs.get("digits")
        assert (second.manifest.max, second.life) == (8, JobLifecycle())
        assert second.order > first.order
        assert writer.job_secret("digits") == secret  # it opens what the last run has left
        assert not writer.commit(
            [life_write(store.paths, replace(first, life_version=1), first.life)]
        )
        with pytest.raises(UsageError, match="has a job named 'digits' already"):
            submit_job(store, manifest(), key="first")  # the key has gone with the job

    def test_manifests_must_be_smaller_the_more_jobs_there_are(
        self, store: ClusterStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(submission, "SMALL_BYTES", 2000)
        monkeypatch.setattr(submission, "SHARED_BYTES", 20_000)
        for number in range(3):
            submit_job(store, manifest(f"j{number}", env={"A": "x" * 4000}))
        with pytest.raises(UsageError) as caught:
            submit_job(store, manifest("k", env={"A": "x" * 4500}))
        assert re.fullmatch(
            r"the manifest of job k takes 5\d\d\d bytes, and cluster lab, which has 3 jobs, takes "
            r"at most 5000; shorten it, or wait until some have ended",
            str(caught.value),
        )
        for number in range(20):
            submit_job(store, manifest(f"k{number}"))

    def test_there_is_a_limit(self, store: ClusterStore, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(submission, "MAX_JOBS", 3)
        accepted = []
        for number in range(10):
            try:
                accepted.append(submit_job(store, manifest(f"j{number}")))
            except UsageError as error:
                sentence = str(error)
        assert accepted == ["j0", "j1", "j2"]
        assert sentence == (
            "cluster lab has 3 jobs, and may have 3; wait until some have ended, or remove some "
            "with `edl delete`"
        )
        assert kinds(store) == ["submitted"] * 3  # what is refused leaves nothing
        writer = lead(store)
        end(store, writer, "j1", LifeEvent.FINISH)
        submit_job(store, manifest("j1"), key="an ended name is no further job")
        end(store, writer, "j1", LifeEvent.FINISH)
        assert writer.remove_job(store.jobs.get("j1"))
        assert submit_job(store, manifest("j9")) == "j9"


SUBMITTER = """
import sys
from edl.zookeeper.access import Access
from edl.cluster.nodes import open_cluster
from edl.cluster.store import ClusterQueues
from edl.cluster.store import ClusterStore
from edl.cluster.submission import submit_job
from edl.zookeeper.session import Session
from edl.cluster.manifest import JobManifest

with Session(sys.argv[1]) as session:
    store = ClusterStore(open_cluster(session, Access("lab", sys.argv[2])))
    for number in range(10_000):
        name = submit_job(store, JobManifest(f"j{number}", ("x",), 1, 2), key=str(number))
        print(name, flush=True)
"""


@pytest.mark.long
def test_a_submitter_that_is_killed_leaves_whole_jobs(store: ClusterStore, zk_hosts: str) -> None:
    """What was acknowledged is there, what was begun is there as a whole or not at all."""
    command = [sys.executable, "-c", SUBMITTER, zk_hosts, LAB.secret]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        acknowledged = [process.stdout.readline().strip() for _ in range(20)]
        process.kill()
        acknowledged += process.stdout.read().split()
    names = [job.name for job in store.jobs.list()]
    assert names[: len(acknowledged)] == acknowledged
    assert len(names) - len(acknowledged) <= 1
    client, p = store.nodes.session.client, store.paths
    assert len(client.get_children(p.keys)) == len(client.get_children(p.jobs)) == len(names)
    assert kinds(store) == ["submitted"] * len(names)
    again = [submit_job(store, manifest_of(n), key=str(n)) for n in range(len(names) + 1)]
    assert again == [*names, f"j{len(names)}"]
    assert len(store.jobs.list()) == len(names) + 1


def manifest_of(number: int) -> JobManifest:
    return JobManifest(f"j{number}", ("x",), 1, 2)


class TestWanted:
    def test_a_change_is_written_once(self, store: ClusterStore, other: ClusterStore) -> None:
        submit_job(store, manifest())
        for one in (store, other):
            now = one.jobs.change_wanted("digits", lambda wanted: replace(wanted, goal=Goal.HALT))
            assert now == Wanted(Goal.HALT)
        other.jobs.change_wanted("digits", lambda _: Wanted(Goal.RUN, 7))
        events = [event for _, event in store.events.read()][1:]
        assert [(event.reason, event.by) for event in events] == [
            ("halt is wanted, no longer run", "me@here"),
            ("run is wanted, no longer halt, and the priority is 7, no longer 0", "you@there"),
        ]
        assert store.jobs.get("digits").wanted == Wanted(Goal.RUN, 7)

    def test_who_is_not_there(self, store: ClusterStore) -> None:
        submit_job(store, manifest())
        jobs = store.jobs
        for call in (jobs.get, lambda job: jobs.change_wanted(job, lambda wanted: wanted)):
            with pytest.raises(UnknownJob) as caught:
                call("digit")
            assert str(caught.value) == "there is no job named 'digit'; known jobs: digits"

    def test_a_deletion_that_is_sent_again_ends_no_other_job(self, store: ClusterStore) -> None:
        submit_job(store, manifest())
        seen_s = store.jobs.get("digits").submitted_s
        assert store.jobs.delete("digits", seen_s) == Wanted(Goal.GONE)
        end(store, lead(store), "digits", LifeEvent.DELETE)
        assert store.jobs.delete("digits", seen_s) == Wanted(Goal.GONE), "the records stay"
        submit_job(store, manifest())
        with pytest.raises(UnknownJob, match="a new one of that name has taken its place"):
            store.jobs.delete("digits", seen_s)
        assert store.jobs.get("digits").wanted == Wanted()

    def test_the_policy_can_be_changed(self, store: ClusterStore) -> None:
        for _ in range(2):
            store.settings.change(lambda now: replace(now, policy="jsa", parameters={"a": 1}))
        assert store.snapshot().settings.policy == "jsa"
        [(_, event)] = store.events.read()
        assert event.reason == "policy is jsa, parameters is {'a': 1}"


class TestSecrets:
    def test_they_are_sealed_and_given_by_name(
        self, store: ClusterStore, other: ClusterStore
    ) -> None:
        mine, theirs = store.secrets, other.secrets
        assert [mine.set("wandb", b"hf_123"), theirs.set("wandb", b"hf_123")] == [True, False]
        assert theirs.set("key", bytes(range(256)))
        assert theirs.contents(["wandb", "key", "none"]) == {
            "wandb": b"hf_123",
            "key": bytes(range(256)),
        }
        assert [(one.name, one.by) for one in mine.list()] == [
            ("key", "you@there"),
            ("wandb", "me@here"),
        ]
        assert store.snapshot().secrets == {"key", "wandb"}
        path = store.paths.user_secret("wandb")
        data, acl = store.nodes.read(get(path), acl_of(path))
        assert b"hf_123" not in data[0]
        assert LAB.opens(acl[0])
        assert "hf_123" not in str(store.events.read())
        assert mine.set("wandb", b"hf_456")
        assert theirs.contents(["wandb"]) == {"wandb": b"hf_456"}
        mine.delete("wandb")
        assert (mine.names(), store.snapshot().secrets) == (("key",), {"key"})
        with pytest.raises(UsageError, match="cluster lab has no secret 'wandb'; it has key"):
            theirs.delete("wandb")
        reasons = [event.reason for _, event in store.events.read()]
        assert reasons == [
            "the secret wandb was set",
            "the secret key was set",
            "the secret wandb was set anew",
            "the secret wandb was deleted",
        ]

    def test_what_cannot_be_one(self, store: ClusterStore) -> None:
        secrets = store.secrets
        with pytest.raises(ConfigError, match="'a/b' cannot be the name of a secret"):
            secrets.set("a/b", b"x")
        with pytest.raises(UsageError, match="the secret a would be empty"):
            secrets.set("a", b"")
        with pytest.raises(UsageError, match="the secret a has more than 65536 bytes"):
            secrets.set("a", bytes(65537))
        with pytest.raises(UsageError, match="cluster lab has no secret 'a', and no other"):
            secrets.delete("a")

    def test_a_job_that_asks_for_one_that_is_not_there_is_refused(
        self, store: ClusterStore
    ) -> None:
        asks = manifest(secrets=("wandb-token",))
        sentence = (
            "cluster lab has no secret 'wandb-token', for which job digits asks; give it one with "
            "`edl secret set wandb-token`"
        )
        with pytest.raises(UsageError, match=f"^{sentence}$"):
            submit_job(store, asks, "night-7")
        store.secrets.set("wandb-token", b"x")
        submit_job(store, asks, "night-7")
        store.secrets.delete("wandb-token")
        assert submit_job(store, asks, "night-7") == "digits", "it was submitted"


class TestQueues:
    def test_they_are_set_read_and_deleted(self, store: ClusterStore) -> None:
        queues = store.queues
        assert store.snapshot().queues == {}
        queues.change("prod", lambda queue: replace(queue, quota=4))
        queues.change("prod", lambda queue: replace(queue, most=8, weight=2.0))
        assert queues.change("prod", lambda queue: queue).quota == 4, "nothing is written"
        assert store.snapshot().queues == store.queues.records()
        [found] = store.queues.records().values()
        assert (found.quota, found.weight, found.most, found.by) == (4, 2.0, 8, "me@here")
        queues.delete("prod")
        assert store.snapshot().queues == store.queues.records() == {}
        with pytest.raises(UsageError, match="cluster lab has no queue 'prod', and no other"):
            queues.delete("prod")
        assert [event.reason for _, event in store.events.read()] == [
            "queue prod: quota 4, weight 1",
            "queue prod: quota 4, weight 2, at most 8 slots",
            "queue prod was deleted",
        ]

    @pytest.mark.parametrize(
        ("changes", "why"),
        [
            ({"quota": -1}, "the quota of queue prod is -1; it must be 0 or more slots"),
            ({"weight": 0.0}, "the weight of queue prod is 0; it must be above 0"),
            ({"quota": 4, "most": 3}, "queue prod would have at most 3 of its quota of 4"),
        ],
    )
    def test_what_cannot_be_one(
        self, store: ClusterStore, changes: dict[str, Any], why: str
    ) -> None:
        with pytest.raises(UsageError, match=why):
            store.queues.change("prod", lambda queue: replace(queue, **changes))
        with pytest.raises(ConfigError, match="'a/b' cannot be the name of a queue"):
            store.queues.change("a/b", lambda queue: queue)
        assert store.queues.records() == {}

    def test_a_job_must_name_one_and_keeps_it(self, store: ClusterStore) -> None:
        submit_job(store, manifest("old"), "old")
        queues = store.queues
        queues.change("prod", lambda queue: queue)
        sentence = (
            "cluster lab has no queue 'default', which job digits names; it has prod; name one of "
            "them by `queue:` in the manifest"
        )
        with pytest.raises(UsageError, match=f"^{sentence}$"):
            submit_job(store, manifest(), "night-7")
        submit_job(store, manifest(queue="prod"), "night-7")
        assert submit_job(store, manifest("old"), "old") == "old", "it was submitted"
        with pytest.raises(UsageError, match="queue prod has 1 job that has not ended: digits;"):
            queues.delete("prod")

    def test_a_queue_that_is_deleted_meanwhile_takes_no_job(
        self, store: ClusterStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store.queues.change("prod", lambda queue: queue)
        store.queues.change("dev", lambda queue: queue)
        known = store.queues.records()
        store.queues.delete("prod")
        answers = iter([known])
        read = ClusterQueues.records
        monkeypatch.setattr(
            ClusterQueues, "records", lambda self: next(answers, None) or read(self)
        )
        with pytest.raises(UsageError, match="no queue 'prod', which job digits names; it has dev"):
            submit_job(store, manifest(queue="prod"))


class TestHosts:
    def test_an_offer_lasts_as_long_as_its_session(
        self, store: ClusterStore, other: ClusterStore, wait_until: Wait
    ) -> None:
        host = HostRegistration(other.nodes, "a", A)
        host.register(HostOffer(4, labels={"gpu": "h100"}), lambda _: False)
        host.register(HostOffer(5), lambda _: False)
        [view] = store.snapshot().hosts
        assert (view.name, view.offer, view.drained) == ("a", HostOffer(5), False)
        assert (view.assigned, view.version, view.report) == (HostAssignment(), 0, None)
        host.report(HostReport(0, {"digits": JobReport("r", processes=(1, 2))}))
        other.nodes.session.expire()
        wait_until(lambda: store.snapshot().hosts[0].offer is None)
        [view] = store.snapshot().hosts  # silence decides nothing: what it has reported stays
        assert view.report is not None
        assert view.report.jobs["digits"].lives
        wait_until(lambda: other.nodes.session.epoch == 2)
        host.register(HostOffer(5), lambda _: False)
        host.report(HostReport(0))
        wait_until(lambda: store.snapshot().hosts[0].report == HostReport(0))
        host.withdraw()
        host.withdraw()
        wait_until(lambda: store.snapshot().hosts[0].offer is None)

    def test_a_host_belongs_to_one_process(self, store: ClusterStore, other: ClusterStore) -> None:
        first, second = HostRegistration(store.nodes, "a", A), HostRegistration(other.nodes, "a", B)
        first.register(HostOffer(4), lambda _: False)
        with pytest.raises(UsageError) as caught:
            second.register(HostOffer(4), lambda _: False)
        assert str(caught.value) == (
            "host a of cluster lab is offered by process 4711 on alpha; end that `edl host`, or "
            "give this one another name"
        )
        second.register(HostOffer(2), lambda owner: owner == A)  # it is known to be dead
        second.report(HostReport(3))
        for write in (lambda: first.report(HostReport(1)), first.withdraw):  # it was only frozen
            with pytest.raises(
                HostTaken, match="belongs to process 4712 on alpha now; nothing was"
            ):
                write()
        [view] = store.snapshot().hosts
        assert (view.offer, view.report) == (HostOffer(2), HostReport(3))

    def test_the_same_report_is_written_once(self, store: ClusterStore) -> None:
        host = HostRegistration(store.nodes, "a", A)
        with pytest.raises(CoordinationError, match="host a is not registered in cluster lab"):
            host.report(HostReport())
        host.register(HostOffer(4), lambda _: False)
        versions = []
        for report in (HostReport(0), HostReport(0), HostReport(1)):
            host.report(report)
            path = store.paths.report("a")
            versions.append(store.nodes.session.client.exists(path).version)
        assert versions == [1, 1, 2]

    def test_it_is_woken_by_what_is_assigned(
        self, store: ClusterStore, other: ClusterStore, wait_until: Wait
    ) -> None:
        host, woken = HostRegistration(other.nodes, "a", A), threading.Event()
        host.register(HostOffer(4), lambda _: False)
        assert host.assigned(woken.set) == (HostAssignment(), 0)
        writer = lead(store)
        [view] = store.snapshot().hosts
        assigned = HostAssignment({"digits": JobAssignment("r1", (0, 1))}, 4.0)
        assert writer.commit([assigned_write(store.paths, view, assigned)])
        assert woken.wait(10.0)
        assert host.assigned(woken.set) == (assigned, 1)
        assert not writer.commit([assigned_write(store.paths, view, HostAssignment())])
        assert not writer.remove_host(store.snapshot().hosts[0])  # it has something
        [view] = store.snapshot().hosts
        assert writer.commit([assigned_write(store.paths, view, HostAssignment())])
        assert not writer.remove_host(store.snapshot().hosts[0])  # it offers slots
        host.withdraw()
        wait_until(lambda: store.snapshot().hosts[0].offer is None)
        [view] = store.snapshot().hosts
        store.hosts.set_drained("a", True)
        assert not writer.remove_host(view)  # it was drained after it was read
        assert store.snapshot().hosts[0].drained
        store.hosts.set_drained("a", False)
        assert writer.remove_host(store.snapshot().hosts[0])
        assert store.snapshot().hosts == ()
        for call in (host.assigned, lambda: host.report(HostReport(7))):
            with pytest.raises(CoordinationError, match="host a is not registered in cluster lab;"):
                call()
        host.register(HostOffer(4), lambda _: False)
        wait_until(lambda: [view.drained for view in store.snapshot().hosts] == [False])

    def test_draining(self, store: ClusterStore) -> None:
        HostRegistration(store.nodes, "a", A).register(HostOffer(4), lambda _: False)
        assert [store.hosts.set_drained("a", True) for _ in range(2)] == [True, False]
        assert store.snapshot().hosts[0].drained
        assert [store.hosts.set_drained("a", False) for _ in range(2)] == [True, False]
        assert not store.snapshot().hosts[0].drained
        assert kinds(store) == ["drain", "drain"]
        with pytest.raises(UsageError, match="cluster lab has no host named 'b'; its hosts: a"):
            store.hosts.set_drained("b", True)


class TestLeader:
    def test_a_start_is_one_transaction(self, store: ClusterStore) -> None:
        writer = lead(store)
        for name in ("a", "b"):
            HostRegistration(store.nodes, name, A).register(HostOffer(2), lambda _: False)
        submit_job(store, manifest())
        before = store.snapshot()
        job, (a, b) = before.jobs[0], before.hosts
        life = job.life.after(LifeEvent.START, "it has 2 slots", 1.0, run="r1")
        each = HostAssignment({"digits": JobAssignment("r1", (0,))})
        event = store.events.new(ClusterEventKind.STATE, "digits starts", job="digits")
        writes = [life_write(store.paths, job, life), assigned_write(store.paths, a, each)]
        stale = replace(b, version=b.version + 1)
        assert not writer.commit([*writes, assigned_write(store.paths, stale, each)])
        assert store.snapshot() == before
        writes += [assigned_write(store.paths, b, each), event_write(store.paths, event)]
        writes += [allocation_write(store.paths, AllocationRecord(at_s=1.0), 0)]
        assert writer.commit(writes)
        after = store.snapshot()
        assert after.jobs[0].life == life
        assert [host.assigned for host in after.hosts] == [each, each]
        assert (after.allocation.at_s, after.allocation_version) == (1.0, 1)
        assert after.leader == {"address": "here", "term": 1}
        assert not writer.commit(writes)

    def test_what_zookeeper_would_not_take_is_not_sent(self, store: ClusterStore) -> None:
        writer = lead(store)
        noise = Random(0).randbytes(1_100_000).hex()  # half as large when it is compressed
        large = AllocationRecord(reasons={"digits": noise})
        with pytest.raises(CoordinationError, match=r"1 writes with 1\d{6} bytes are too many for"):
            writer.commit([allocation_write(store.paths, large, 0)])
        assert store.snapshot().allocation == AllocationRecord()

    def test_a_large_record_is_compressed(self, store: ClusterStore) -> None:
        large = AllocationRecord(reasons={f"j{n}": f"waits: place {n}" for n in range(60_000)})
        assert lead(store).commit([allocation_write(store.paths, large, 0)])
        assert store.snapshot().allocation == large

    def test_a_removed_leader_writes_nothing(
        self, store: ClusterStore, other: ClusterStore
    ) -> None:
        submit_job(store, manifest())
        writer, job = lead(store), store.jobs.get("digits")
        store.leader.election("two", {}).remove("one")
        new = lead(other, "two")
        assert new.term == 2
        for write in (
            lambda: writer.commit([life_write(store.paths, job, JobLifecycle(run="old"))]),
            lambda: writer.job_secret("digits"),
            lambda: end(store, writer, "digits", LifeEvent.FINISH),
        ):
            with pytest.raises(LeadershipLost):
                write()
        assert other.jobs.get("digits").life == JobLifecycle()
        assert other.jobs.secret("digits") is None
        secret = new.job_secret("digits")
        assert len(secret) == 64
        assert store.jobs.secret("digits") == secret == new.job_secret("digits")

    def test_removing_a_job_leaves_nothing(self, store: ClusterStore) -> None:
        writer = lead(store)
        submit_job(store, manifest(), key="k")
        writer.job_secret("digits")
        stale = store.jobs.get("digits")
        end(store, writer, "digits", LifeEvent.FINISH)
        assert not writer.remove_job(stale)
        assert writer.remove_job(store.jobs.get("digits"))
        assert not writer.remove_job(stale)
        client = store.nodes.session.client
        assert [client.get_children(path) for path in (store.paths.jobs, store.paths.keys)] == [
            [],
            [],
        ]
        assert kinds(store) == ["submitted", "removed"]

    def test_only_the_newest_events_stay(
        self, store: ClusterStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        writer = lead(store)
        for number in range(10):
            store.events.add(store.events.new(ClusterEventKind.STATE, f"{number}"))
        assert writer.trim_events(keep=4, spare=6)
        assert [number for number, _ in store.events.read()] == list(range(10))
        monkeypatch.setattr("edl.zookeeper.events._AT_ONCE", 2)
        monkeypatch.setattr("edl.cluster.writer._TRIM_S", 0.0)
        assert not writer.trim_events(keep=4, spare=5), "a call has a limited time"
        assert [number for number, _ in store.events.read()] == list(range(2, 10))
        monkeypatch.undo()
        assert writer.trim_events(keep=4, spare=3)
        assert [event.reason for _, event in store.events.read(7)] == ["8", "9"]
        assert [number for number, _ in store.events.read()] == [6, 7, 8, 9]


class TestSnapshot:
    def test_only_what_has_changed_is_read_again(
        self, lab: Session, other: ClusterStore, wait_until: Wait, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        woken = threading.Event()
        store = ClusterStore(open_cluster(lab, LAB), on_change=woken.set)
        for number in range(20):
            submit_job(other, manifest(f"j{number}"))
        HostRegistration(other.nodes, "a", A).register(HostOffer(2), lambda _: False)
        first = store.snapshot()
        assert len(first.jobs) == 20
        asked: list[int] = []
        ask = lab._answers_to

        def counted(what: str, issues: Any, *args: Any, **kwargs: Any) -> Any:
            asked.append(len(issues))
            return ask(what, issues, *args, **kwargs)

        monkeypatch.setattr(lab, "_answers_to", counted)
        assert store.snapshot() == first
        assert sum(asked) == 0
        assert not woken.is_set()
        other.jobs.change_wanted("j7", lambda wanted: replace(wanted, priority=3))
        assert woken.wait(10.0)
        assert store.snapshot().jobs[7].wanted.priority == 3
        assert sum(asked) == 1

    def test_it_is_of_one_time(self, store: ClusterStore, other: ClusterStore) -> None:
        """A leader that changes two nodes together is never seen between them."""
        HostRegistration(store.nodes, "a", A).register(HostOffer(2), lambda _: False)
        HostRegistration(store.nodes, "b", A).register(HostOffer(2), lambda _: False)
        writer, stop = lead(other), threading.Event()

        def change() -> None:
            number = 0
            while not stop.wait(0.003):
                number += 1
                now = other.snapshot()
                each = HostAssignment(silent_s=float(number))
                writer.commit([assigned_write(other.paths, host, each) for host in now.hosts])

        thread = threading.Thread(target=change)
        thread.start()
        seen: set[tuple[float, ...]] = set()
        deadline = time.monotonic() + 15.0
        try:
            while len(seen) < 40 and time.monotonic() < deadline:
                seen.add(tuple(host.assigned.silent_s for host in store.snapshot().hosts))
        finally:
            stop.set()
            thread.join(20.0)
        assert len(seen) == 40
        assert all(a == b for a, b in seen)

    def test_a_cluster_that_is_gone(self, store: ClusterStore) -> None:
        submit_job(store, manifest())
        store.nodes.session.client.delete(store.paths.root, recursive=True)
        for call in (
            store.snapshot,
            store.jobs.list,
            lambda: submit_job(store, manifest("b")),
            lambda: store.settings.change(lambda now: replace(now, policy="x")),
            lambda: store.hosts.set_drained("a", True),
            lambda: store.jobs.get("digits"),
            lambda: HostRegistration(store.nodes, "a", A).register(HostOffer(1), lambda _: True),
            lambda: store.leader.election("one", {}).enter(),
        ):
            with pytest.raises(UnknownCluster):
                call()


def test_which_hosts_are_removed() -> None:
    """Those that have been gone for a day, are not drained, and have no run that goes on there."""
    gone, entry = HostAssignment(silent_s=1000.0), {"digits": JobAssignment("r1", (0,))}
    ends = {"digits": JobAssignment("r1", (0,), ends=3)}
    hosts = [
        HostView("offers", HostOffer(2), assigned=gone),
        HostView("has something", assigned=replace(gone, jobs=entry)),
        HostView("is not known to be gone"),
        HostView("gone", assigned=gone),
        HostView("is away for repair", drained=True, assigned=gone),
        HostView("never ended what it had", assigned=replace(gone, jobs=ends)),
    ]
    assert hosts_to_remove(hosts, 1000.0 + GONE_KEPT_S - 1.0) == []
    removed = [host.name for host in hosts_to_remove(hosts, 1000.0 + GONE_KEPT_S)]
    assert removed == ["gone", "never ended what it had"]


def test_which_ended_jobs_are_removed(store: ClusterStore) -> None:
    submit_job(store, manifest())
    one = store.jobs.get("digits")

    def ended(name: str, at_s: float, ending: LifeResult, goal: Goal = Goal.RUN) -> Any:
        life = JobLifecycle(LifeState.ENDED, result=ending, ended_s=at_s)
        return replace(one, name=name, life=life, wanted=Wanted(goal))

    jobs = [
        one,
        ended("new", 9.0, LifeResult.FINISHED),
        ended("old", 1.0, LifeResult.FAILED),
        ended("deleted while it ran", 5.0, LifeResult.DELETED, Goal.GONE),
        ended("deleted when it had ended", 7.0, LifeResult.FINISHED, Goal.GONE),
    ]
    late_s = 10.0 + ENDED_KEPT_S

    def names(*args: Any, **limits: int) -> list[str]:
        return [job.name for job in jobs_to_remove(jobs, *args, **limits)]

    assert names(10.0, keep=1) == ["deleted when it had ended"], "they are young"
    assert names(late_s, keep=2) == ["deleted while it ran", "deleted when it had ended"]
    assert names(late_s, keep=1)[0] == "old"
    first = ["deleted while it ran", "deleted when it had ended"]
    assert names(10.0, most=2) == first, "deleted ones push out no others"
