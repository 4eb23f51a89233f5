"""Tenants of a cluster on a real ZooKeeper: what each may do, and what an attacker tries in vain.

The test is the leading controller: it calls what one calls in a turn.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import OPEN_ACL_UNSAFE, make_digest_acl

from edl import config
from edl.cli.main import invoke
from edl.client import Cluster
from edl.cluster import store as cluster_tenants
from edl.cluster import submission
from edl.cluster.client.logs import HostLogs
from edl.cluster.controller.tenant_requests import TenantRequests
from edl.cluster.host.logs import LogPlaces, LogServer
from edl.cluster.lifecycle import LifeEvent, LifeState
from edl.cluster.manifest import JobManifest
from edl.cluster.nodes import ClusterPaths, create_cluster, open_cluster
from edl.cluster.plan import ClusterPlan
from edl.cluster.records import ClusterRecord, Goal, HostOffer, parsed_word
from edl.cluster.store import ClusterStore, signing_key, tenant_access, whole_acl
from edl.cluster.submission import TenantStore, open_tenant_store, submit_job
from edl.cluster.tenants import TenantRequest, TenantVerb
from edl.cluster.view import HostView
from edl.cluster.writer import ClusterWriter, jobs_to_remove, life_write
from edl.errors import (
    AccessDenied,
    CoordinationError,
    EdlError,
    ManifestError,
    UnknownJob,
    UsageError,
)
from edl.zookeeper.access import CLUSTERS, Access, keep
from edl.zookeeper.reads import encode
from edl.zookeeper.session import Session

pytestmark = [pytest.mark.integration, pytest.mark.long]

LAB = Access("lab", "fedcba9876543210" * 4)
P = ClusterPaths("lab")
HOSTS = (HostView("h0", HostOffer(4, address="127.0.0.1", port=4711)),)


def manifest(name: str = "digits", **changes: Any) -> JobManifest:
    return replace(JobManifest(name, ("python", "train.py"), 1, 4), **changes)


class Leader:
    def __init__(self, session: Session) -> None:
        self.store = ClusterStore(open_cluster(session, LAB), by="admin@here")
        election = self.store.leader.election("one", {})
        election.enter()
        leadership = election.leads()
        assert leadership is not None
        self.writer = ClusterWriter(self.store, leadership)
        self.requests = TenantRequests(self.store, self.writer, lambda: None)

    def serve(self, **reasons: str) -> None:
        lives = {job.name: job.life for job in self.store.jobs.list()}
        self.requests.serve(HOSTS, ClusterPlan(reasons=reasons), lives, time.time())

    @contextmanager
    def serving(self) -> Iterator[None]:
        ends, errors = threading.Event(), []

        def work() -> None:
            while not ends.wait(0.01):
                try:
                    self.serve()
                except EdlError as error:
                    errors.append(error)
                    return

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            ends.set()
            thread.join()
        assert not errors

    def live(self, job: str, *events: LifeEvent) -> None:
        stored = self.store.jobs.get(job)
        life = stored.life
        for event in events:
            life = life.after(event, "a test", time.time())
        assert self.writer.commit([life_write(self.store.paths, stored, life)])

    def remove(self, job: str) -> None:
        self.store.jobs.delete(job)
        assert self.writer.remove_job(self.store.jobs.get(job))


@pytest.fixture
def leader(zk_hosts: str) -> Iterator[Leader]:
    with Session(zk_hosts, session_timeout_s=4.0) as session:
        assert create_cluster(session, LAB, ClusterRecord())
        found = Leader(session)
        found.store.queues.change("research", lambda queue: replace(queue, tenant="ann"))
        found.store.queues.change("prod", lambda queue: replace(queue, tenant="bob"))
        yield found


@pytest.fixture
def words(leader: Leader) -> dict[str, str]:
    return {name: leader.store.tenants.create(name) for name in ("ann", "bob")}


Open = Callable[[str], TenantStore]


@pytest.fixture
def tenant(words: dict[str, str], zk_hosts: str) -> Iterator[Open]:
    sessions = []

    def opened(name: str) -> TenantStore:
        session = Session(zk_hosts, session_timeout_s=4.0)
        session.start()
        sessions.append(session)
        parsed = parsed_word(words[name])
        assert parsed is not None
        return open_tenant_store(session, None, *parsed)

    yield opened
    for session in sessions:
        session.close()


@pytest.fixture
def raw(zk_hosts: str) -> Iterator[Callable[..., KazooClient]]:
    clients = []

    def connected(*known: Access) -> KazooClient:
        client = KazooClient(zk_hosts, timeout=10.0)
        client.start()
        for access in known:
            client.add_auth("digest", access.credential)
        clients.append(client)
        return client

    yield connected
    for client in clients:
        client.stop()
        client.close()


def secret_of(word: str) -> str:
    parsed = parsed_word(word)
    assert parsed is not None
    return parsed[1]


class TestWhatATenantMay:
    def test_it_submits_sees_and_steers_its_jobs(self, leader: Leader, tenant: Open) -> None:
        ann, bob = tenant("ann"), tenant("bob")
        with leader.serving():
            assert ann.jobs.submit(manifest(), "night-7") == "ann.digits"
            assert ann.jobs.submit(manifest(), "night-7") == "ann.digits", (
                "the same key, the same job"
            )
            assert bob.jobs.submit(manifest()) == "bob.digits"
            assert [job.name for job in ann.jobs.list()] == ["ann.digits"]
            assert ann.jobs.get("digits").manifest.queue == "research"
            assert ann.jobs.change_wanted("digits", lambda w: replace(w, goal=Goal.HALT)).goal is (
                Goal.HALT
            )
            assert (
                ann.jobs.change_wanted("ann.digits", lambda w: replace(w, priority=3)).priority == 3
            )
            assert ann.jobs.delete("digits").goal is Goal.GONE
        assert leader.store.jobs.get("bob.digits").wanted.goal is Goal.RUN
        events = [(one.kind, one.by) for _, one in leader.store.events.read() if one.job]
        assert events == [
            ("submitted", "tenant ann"),
            ("submitted", "tenant bob"),
            ("wanted", "tenant ann"),
            ("wanted", "tenant ann"),
            ("wanted", "tenant ann"),
        ]

    def test_it_is_told_why_and_where_logs_are(self, leader: Leader, tenant: Open) -> None:
        ann = tenant("ann")
        with leader.serving():
            ann.jobs.submit(manifest())
        leader.serve(**{"ann.digits": "waits", "other": "secret"})
        leader.requests._told.clear()  # another second
        leader.serve(**{"ann.digits": "waits", "other": "secret"})
        assert ann.leader.reasons().reasons == {"ann.digits": "waits"}
        assert [(host.name, host.offer.port) for host in ann.hosts.list() if host.offer] == [
            ("h0", 4711)
        ]
        assert ann.jobs.log_access("digits") == Access(
            "ann.digits", leader.store.jobs.secret("ann.digits")
        )

    def test_a_request_waits_for_a_controller(
        self, leader: Leader, tenant: Open, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(submission, "ANSWER_S", 0.2)
        ann = tenant("ann")
        with pytest.raises(
            CoordinationError, match=r"has answered for 0.2 s; the request is in Zoo"
        ):
            ann.jobs.submit(manifest(), "night-7")
        leader.serve()
        assert [job.name for job in ann.jobs.list()] == ["ann.digits"]

    def test_a_request_is_done_again_by_the_next_leader(
        self, leader: Leader, tenant: Open, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The leader dies between what it does and its answer."""
        monkeypatch.setattr(submission, "ANSWER_S", 0.1)
        ann = tenant("ann")
        with pytest.raises(CoordinationError):
            ann.jobs.submit(manifest())
        with monkeypatch.context() as patch:
            patch.setattr(leader.writer, "commit", lambda writes: False)
            leader.serve()
        leader.requests = TenantRequests(leader.store, leader.writer, lambda: None)
        leader.serve()
        assert [job.name for job in ann.jobs.list()] == ["ann.digits"]
        kinds = [event.kind for _, event in leader.store.events.read() if event.job]
        assert kinds == ["submitted"], "once"

    def test_refusals_say_why(self, leader: Leader, tenant: Open) -> None:
        ann = tenant("ann")
        leader.store.secrets.set("wandb", b"x")
        with leader.serving():
            with pytest.raises(UsageError, match=r"ann has no queue 'prod'; it has research"):
                ann.jobs.submit(manifest(queue="prod"))
            with pytest.raises(UsageError, match=r"tenant ann has no secret 'wandb'"):
                ann.jobs.submit(manifest(secrets=("wandb",)))
            with pytest.raises(
                UsageError, match=r"ann has no secret 'ann.key'; the administrator"
            ) as e:
                ann.jobs.submit(manifest(secrets=("ann.key",)))
            assert "wandb" not in str(e.value), "it names no secret of others"
            with pytest.raises(ManifestError):
                ann.jobs.submit(manifest(command=("",)))
            ann.jobs.submit(manifest())
            with pytest.raises(UsageError, match=r"has a job named 'ann.digits' already, which is"):
                ann.jobs.submit(manifest(max=2))
            with pytest.raises(UnknownJob):
                ann.jobs.change_wanted("none", lambda before: before)
        for call in (ann.observe, ann.queues.records, ann.settings.get, ann.leader.controllers):
            with pytest.raises(UsageError, match=r"ann may not .*; that needs the secret of"):
                call()
        with pytest.raises(UsageError, match=r"may not drain hosts"):
            ann.hosts.set_drained("h0", True)

    def test_the_records_of_an_ended_job_can_be_removed_and_replaced(
        self, leader: Leader, tenant: Open
    ) -> None:
        ann = tenant("ann")
        with leader.serving():
            ann.jobs.submit(manifest())
        leader.live("ann.digits", LifeEvent.DELETE)
        with leader.serving():
            ann.jobs.submit(manifest(max=2))
        assert ann.jobs.get("digits").manifest.max == 2
        leader.live("ann.digits", LifeEvent.DELETE)
        with leader.serving():
            assert ann.jobs.delete("digits").removed
        [job] = jobs_to_remove(leader.store.jobs.list(), time.time())
        assert leader.writer.remove_job(job)
        assert ann.jobs.list() == ()
        with leader.serving():
            assert ann.jobs.submit(manifest()) == "ann.digits"


class TestAnAttacker:
    @pytest.fixture
    def jobs(self, leader: Leader, tenant: Open) -> None:
        with leader.serving():
            tenant("ann").jobs.submit(manifest())
            tenant("bob").jobs.submit(manifest())

    @pytest.mark.usefixtures("jobs")
    @pytest.mark.parametrize("who", ["nobody", "bob"])
    def test_it_reads_nothing_of_others(
        self, words: dict[str, str], raw: Callable[..., KazooClient], who: str
    ) -> None:
        known = [tenant_access("lab", who, secret_of(words[who]))] if who in words else []
        client = raw(*known)
        ann = [
            P.job("ann.digits"),
            *(of("ann.digits") for of in (P.manifest, P.wanted, P.life, P.secret)),
            *(of("ann") for of in (P.tenant, P.inbox, P.responses, P.tenant_jobs, P.tenant_view)),
        ]
        cluster = [
            *(P.cluster, P.allocation, P.reasons, P.leader, P.election, P.keys, P.jobs, P.secrets),
            *(P.queues, P.tenants, P.hosts, P.events, P.root),
        ]
        for path in (*ann, *cluster):
            for read in (client.get, client.get_children):
                with pytest.raises(NoAuthError):
                    read(path)

    @pytest.mark.usefixtures("jobs")
    @pytest.mark.parametrize("who", ["nobody", "ann", "bob"])
    def test_it_writes_nothing_that_is_obeyed(
        self, words: dict[str, str], raw: Callable[..., KazooClient], who: str
    ) -> None:
        """Not even a tenant into its own nodes, but for new nodes in its inbox."""
        known = [tenant_access("lab", who, secret_of(words[who]))] if who in words else []
        client = raw(*known)
        parents = (P.root, P.jobs, P.queues, P.tenants, P.hosts, P.events, P.keys, P.secrets)
        own = (P.responses("ann"), P.tenant_jobs("ann"), P.tenant_view("ann"), P.tenant("ann"))
        job = (P.job("ann.digits"), P.wanted("ann.digits"), P.life("ann.digits"))
        for path in (*parents, *own, *job):
            with pytest.raises(NoAuthError):
                client.create(f"{path}/new", b"{}", acl=OPEN_ACL_UNSAFE)
        for path in (*own, *job, P.manifest("ann.digits"), P.secret("ann.digits"), P.inbox("ann")):
            with pytest.raises(NoAuthError):
                client.set(path, b"{}")
            with pytest.raises(NoAuthError):
                client.delete(path)
            with pytest.raises(NoAuthError):
                client.set_acls(path, OPEN_ACL_UNSAFE)
        if who != "ann":
            with pytest.raises(NoAuthError):
                client.create(f"{P.inbox('ann')}/r-", b"{}", sequence=True)

    @pytest.mark.usefixtures("jobs")
    def test_it_cannot_forge_replay_or_ask_for_others(
        self, leader: Leader, words: dict[str, str], raw: Callable[..., KazooClient]
    ) -> None:
        """Who has heard how ann proves its identity can write into its inbox, and is refused.

        Bob asks, rightly signed, for what is ann's.
        """
        secret = secret_of(words["ann"])
        listener = raw(tenant_access("lab", "ann", secret))
        acl = whole_acl(str(LAB.acl[0].id.id))

        def put(who: str, request: TenantRequest, client: KazooClient) -> None:
            path = f"{P.inbox(who)}/r-"
            client.create(path, encode(request.to_json()), acl=acl, sequence=True)
            leader.serve()

        halt = TenantRequest("one", TenantVerb.WANT, job="ann.digits", goal=Goal.HALT)
        put("ann", halt, listener)
        put("ann", halt.signed("0" * 64, "ann"), listener)
        put("ann", halt.signed(secret, "ann"), listener)
        assert leader.store.jobs.get("ann.digits").wanted.goal is Goal.RUN, "it was not signed"

        signed = halt.signed(signing_key("lab", "ann", secret), "ann")
        put("ann", signed, listener)
        assert leader.store.jobs.get("ann.digits").wanted.goal is Goal.HALT
        leader.store.jobs.change_wanted("ann.digits", lambda w: replace(w, goal=Goal.RUN))
        put("ann", signed, listener)
        assert leader.store.jobs.get("ann.digits").wanted.goal is Goal.RUN, "it was sent before"

        bobs = secret_of(words["bob"])
        bob = raw(tenant_access("lab", "bob", bobs))
        key = signing_key("lab", "bob", bobs)
        for verb in (TenantVerb.WANT, TenantVerb.DELETE):
            put("bob", replace(halt, id=f"b{verb}", verb=verb).signed(key, "bob"), bob)
        asked = replace(halt, id="sub", verb=TenantVerb.SUBMIT, job="", goal=None)
        for changes in ({"queue": "research"}, {"secrets": ("ann.key",)}):
            values = manifest("ann.more", **changes).to_json()
            request = replace(asked, id=f"sub{changes}", manifest=values)
            put("bob", request.signed(key, "bob"), bob)
        for junk in (b"", b"{", b"[]", b'{"id": 1}', bytes(1000)):
            bob.create(f"{P.inbox('bob')}/r-", junk, acl=acl, sequence=True)
        leader.serve()
        assert leader.store.jobs.get("ann.digits").wanted.goal is Goal.RUN
        assert sorted(job.name for job in leader.store.jobs.list()) == ["ann.digits", "bob.digits"]
        reasons = [one.reason for _, one in leader.store.events.read() if one.kind == "tenant"]
        refused = [why.partition(" was refused: ")[2] for why in reasons[2:]]
        assert refused == [
            *["the request is not signed by tenant ann"] * 3,
            "the request was answered before",
            *["ann.digits is no job of tenant bob"] * 2,
            "tenant bob has no queue 'research'; it has prod",
            (
                "tenant bob has no secret 'ann.key': its secrets are called bob.NAME, and the "
                "administrator sets them"
            ),
            *["what it wrote into its inbox is no request"] * 5,
        ]

    @pytest.mark.usefixtures("jobs")
    def test_what_it_hides_in_its_inbox_holds_up_nobody(
        self, leader: Leader, tenant: Open, words: dict[str, str], raw: Callable[..., KazooClient]
    ) -> None:
        own = tenant_access("lab", "bob", secret_of(words["bob"]))
        bob, mine = raw(own), [make_digest_acl("bob", "x", all=True)]
        bob.create(f"{P.inbox('bob')}/r-", b"{}", acl=mine, sequence=True)  # nobody can read it
        path = bob.create(f"{P.inbox('bob')}/r-", b"{}", acl=OPEN_ACL_UNSAFE, sequence=True)
        bob.create(f"{path}/below", b"", acl=OPEN_ACL_UNSAFE)  # so it cannot be removed
        with leader.serving():
            assert tenant("bob").jobs.submit(manifest("second")) == "bob.second"
            assert tenant("ann").jobs.submit(manifest("second")) == "ann.second"

    def test_what_it_hides_in_its_inbox_does_not_keep_it(
        self,
        leader: Leader,
        words: dict[str, str],
        raw: Callable[..., KazooClient],
        zk_hosts: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(cluster_tenants, "PART", 3)
        secret = secret_of(words["bob"])
        bob, mine = raw(tenant_access("lab", "bob", secret)), [make_digest_acl("x", "y", all=True)]
        for _ in range(8):
            path = bob.create(f"{P.inbox('bob')}/r-", b"{}", acl=OPEN_ACL_UNSAFE, sequence=True)
        bob.create(f"{path}/below", b"", acl=mine)
        leader.store.queues.change("prod", lambda queue: replace(queue, tenant=""))
        tenants = leader.store.tenants
        assert tenants.delete("bob") == 1
        assert tenants.names() == ("ann",)
        with pytest.raises(NoAuthError):
            bob.create(f"{P.inbox('bob')}/r-", b"{}", acl=OPEN_ACL_UNSAFE, sequence=True)
        with Session(zk_hosts) as session, pytest.raises(AccessDenied):
            open_tenant_store(session, "lab", "bob", secret)
        leader.serve()
        with pytest.raises(UsageError, match=r"'bob' was a tenant of cluster lab, and is removed"):
            tenants.create("bob")
        assert tenants.delete("bob") == 1, "it may be tried again"
        bob.delete(f"{path}/below")
        assert tenants.delete("bob") == 0
        tenants.create("bob")

    @pytest.mark.usefixtures("jobs")
    def test_it_reads_no_logs_of_others(self, leader: Leader, tenant: Open, tmp_path: Path) -> None:
        places = LogPlaces(tmp_path / "jobs", tmp_path / "agents")
        (tmp_path / "agents").mkdir()
        for job in ("ann.digits", "bob.digits"):
            places.of_agent(job, "0" * 24).write_text(f"the agent of {job}")
        with LogServer("127.0.0.1", "lab", LAB.secret, places, leader.store.jobs.secret) as server:
            offer = HostOffer(4, address="127.0.0.1", port=server.port)
            ann, bob = (tenant(name).jobs.log_access("digits") for name in ("ann", "bob"))
            name = f"agent-{'0' * 24}"
            for access in (ann, LAB):
                logs = HostLogs("h0", offer, access)
                assert list(logs.names("ann.digits")) == [name]
                assert b"".join(logs.read("ann.digits", name)) == b"the agent of ann.digits"
            for access in (bob, Access("ann.digits", bob.secret), Access("ann.digits", "0" * 64)):
                with pytest.raises(
                    CoordinationError, match=r"has refused to give logs, with status 401"
                ):
                    HostLogs("h0", offer, access).names("ann.digits")

    @pytest.mark.usefixtures("jobs")
    def test_a_wrong_secret_or_a_removed_tenant_opens_nothing(
        self, leader: Leader, words: dict[str, str], zk_hosts: str
    ) -> None:
        with Session(zk_hosts) as session:
            with pytest.raises(
                AccessDenied, match=r"cluster lab has no tenant ann with this secret"
            ):
                open_tenant_store(session, "lab", "ann", "0" * 64)
            with pytest.raises(UsageError, match=r"no clusters have a tenant eve"):
                open_tenant_store(session, None, "eve", "0" * 64)
        tenants = leader.store.tenants
        with pytest.raises(UsageError, match=r"ann has 1 job that has not ended: ann.digits"):
            tenants.delete("ann")
        leader.live("ann.digits", LifeEvent.DELETE)
        secrets = leader.store.secrets
        secrets.set("ann.key", b"x")
        both = r"ann has ended jobs \(ann.digits\) and secrets \(ann.key\); remove them first"
        with pytest.raises(UsageError, match=both):
            tenants.delete("ann")
        leader.remove("ann.digits")
        with pytest.raises(UsageError, match=r"tenant ann has secrets \(ann.key\); remove them"):
            tenants.delete("ann")
        secrets.delete("ann.key")
        with pytest.raises(UsageError, match=r"tenant ann has research; delete them, or give them"):
            tenants.delete("ann")
        leader.store.queues.change("research", lambda queue: replace(queue, tenant=""))
        tenants.delete("ann")
        assert tenants.names() == ("bob",)
        with Session(zk_hosts) as session, pytest.raises(AccessDenied):
            open_tenant_store(session, "lab", "ann", secret_of(words["ann"]))


def test_the_administrator_takes_no_name_of_a_tenant(leader: Leader) -> None:
    tenants = leader.store.tenants
    submit_job(leader.store, manifest("bob.x", queue="prod"))
    with pytest.raises(
        UsageError, match=r"bob.x would belong to tenant bob; delete them, or choose"
    ):
        tenants.create("bob")
    tenants.create("ann")
    with pytest.raises(UsageError, match=r"cluster lab has a tenant ann already"):
        tenants.create("ann")
    with pytest.raises(UsageError, match=r"'a.b' cannot be the name of a tenant: a name of a"):
        tenants.create("a.b")
    with pytest.raises(UsageError, match=r"a job named 'ann.x' belongs to tenant ann; submit it"):
        submit_job(leader.store, manifest("ann.x", queue="research"))


def test_the_verbs(
    leader: Leader,
    zk_hosts: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("EDL_ZOOKEEPER", zk_hosts)
    for name in ("EDL_SECRET", "EDL_SECRET_FILE", "EDL_CLUSTER"):
        monkeypatch.delenv(name, raising=False)
    keep(config.state_dir(), "lab", LAB.secret, CLUSTERS)
    (tmp_path / "job.yaml").write_text("name: digits\ncommand: [python]\nmin: 1\nmax: 4\n")

    def edl(*words: str) -> tuple[int, str]:
        code = invoke(list(words))
        os.environ.pop("EDL_SECRET_FILE", None)  # the option set it; delenv would restore it
        out, err = capsys.readouterr()
        return code, out + err

    code, out = edl("tenant", "create", "ann")
    path = tmp_path / "state" / "edl" / "clusters" / "lab" / "tenants" / "ann"
    assert (code, out.splitlines()[0]) == (
        0,
        f"tenant ann of cluster lab is made; its secret is in {path}",
    )
    assert path.stat().st_mode & 0o777 == 0o600
    assert edl("tenant", "list") == (0, "ann\n")
    assert edl("queue", "set", "research", "--quota", "4", "--tenant", "ann")[1] == (
        "queue research of cluster lab: quota 4, weight 1, of tenant ann\n"
        "the quotas of all queues are 4 slots together, and the cluster has 0: they are met in "
        "proportion\n"
    )
    code, out = edl("queue", "set", "research", "--tenant", "eve")
    assert (code, "has no tenant 'eve'; make it with `edl tenant create eve`" in out) == (2, True)
    as_ann = ("--secret-file", str(path))
    with leader.serving():
        assert edl("submit", str(tmp_path / "job.yaml"), *as_ann) == (
            0,
            "job ann.digits is submitted to cluster lab\n",
        )
        _, out = edl("list", *as_ann)
        assert "ann.digits" in out
        assert "no controller of cluster lab" not in out, "a tenant cannot know"
        assert "queue research" in edl("show", "digits", *as_ann)[1]
        assert edl("halt", "digits", *as_ann)[0] == 0
        assert edl("priority", "digits", "5", *as_ann)[0] == 0
        code, out = edl("status", "digits", *as_ann)
        waits = "edl: job ann.digits is queued and has no run: no controller of the cluster has"
        assert (code, out.startswith(waits)) == (94, True), out
        code, out = edl("cluster", "status", *as_ann)
        assert (code, "tenant ann may not see the cluster as a whole" in out) == (2, True)
        code, out = edl("secret", "list", *as_ann)
        assert code == 2
        code, out = edl("logs", "nosuch", *as_ann)
        assert out == "edl: there is no job named 'ann.nosuch'; known jobs: ann.digits\n"
        for noun, what in (("tenant", "the tenants"), ("queue", "the queues")):
            code, out = edl(noun, "list", *as_ann)
            assert (code, f"tenant ann may not see {what} of the cluster" in out) == (2, True), out
        for words in (("tenant", "create", "eve"), ("queue", "set", "own"), ("drain", "h0")):
            code, out = edl(*words, *as_ann)
            assert (code, "tenant ann may not" in out) == (2, True), out
        assert edl("delete", "digits", *as_ann)[0] == 0
    assert leader.store.jobs.get("ann.digits").wanted.goal is Goal.GONE
    with Cluster(secret_file=path) as cluster:
        assert [job.name for job in cluster.list()] == ["ann.digits"]
    leader.live("ann.digits", LifeEvent.DELETE)
    assert leader.store.jobs.get("ann.digits").life.state is LifeState.ENDED
    code, out = edl("tenant", "delete", "ann")
    assert (code, "ann has ended jobs (ann.digits); remove them first with `edl" in out) == (
        2,
        True,
    )
    leader.remove("ann.digits")
    assert edl("queue", "set", "research", "--tenant", "")[0] == 0
    assert edl("tenant", "delete", "ann")[1] == "tenant ann is removed from cluster lab\n"
    assert not path.exists()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "of a host"))
    code, out = edl("list")
    assert (code, out.startswith("edl: cluster lab is there, and its secret is not known")) == (
        2,
        True,
    ), out
