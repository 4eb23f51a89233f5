"""What users ask of a cluster, with `edl.client.Cluster` and the command line, on a real ZooKeeper.

No controller and no host process runs: the test writes what they would write.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made import make_job

from edl import config
from edl.cli.jobs import state_line
from edl.cli.main import invoke
from edl.client import Cluster
from edl.cluster.controller.controller import Controller
from edl.cluster.host.logs import LogPlaces, LogServer
from edl.cluster.lifecycle import LifeEvent, LifeState
from edl.cluster.manifest import JobManifest
from edl.cluster.nodes import create_cluster, open_cluster
from edl.cluster.records import (
    ClusterRecord,
    ControllerRecord,
    Goal,
    HostAssignment,
    HostOffer,
    HostReport,
    JobAssignment,
    JobReasons,
    Wanted,
)
from edl.cluster.status import ClusterJobStatus
from edl.cluster.store import ClusterStore, HostOwner, HostRegistration
from edl.cluster.submission import submit_job
from edl.cluster.writer import (
    ClusterWriter,
    assigned_write,
    jobs_to_remove,
    life_write,
    reasons_write,
)
from edl.errors import (
    AccessDenied,
    TimedOut,
    UnknownCluster,
    UnknownJob,
    UsageError,
)
from edl.events import Event, WorkerExitedDetails
from edl.records import JobState
from edl.zookeeper.access import CLUSTERS, JOBS, Access, keep, new_secret
from edl.zookeeper.session import Session
from edl.zookeeper.store import JobStore

pytestmark = pytest.mark.integration

SECRET = new_secret()
LAB = Access("lab", SECRET)
DIGITS = "name: digits\ncommand: [python, train.py]\nmin: 1\nmax: 4\n"
DIGITS_VALUES = {"name": "digits", "command": ["python", "train.py"], "min": 1, "max": 4}
START = (LifeEvent.START,)
TRAIN = (LifeEvent.START, LifeEvent.TRAIN)
FINISH = (*TRAIN, LifeEvent.FINISH)

Verb = Callable[..., tuple[int, str, str]]


class Leader:
    def __init__(self, session: Session) -> None:
        self.store = ClusterStore(open_cluster(session, LAB), by="the leader")
        self.election = self.store.leader.election("one", {"address": "here"})
        self.election.enter()
        leadership = self.election.leads()
        assert leadership is not None
        self.writer = ClusterWriter(self.store, leadership)

    def live(self, job: str, *events: LifeEvent, **changes: Any) -> None:
        """Let ``events`` happen to a job."""
        stored = self.store.jobs.get(job)
        life = stored.life
        for event in events:
            life = life.after(event, f"a test lets it {event}", time.time(), **changes)
        assert self.writer.commit([life_write(self.store.paths, stored, life)])

    def say(self, **reasons: str) -> None:
        said = JobReasons(time.time(), reasons)
        assert self.writer.commit([reasons_write(self.store.paths, said)])

    def assign(self, host: str, **jobs: JobAssignment) -> None:
        [found] = [one for one in self.store.hosts.list() if one.name == host]
        record = HostAssignment(jobs)
        assert self.writer.commit([assigned_write(self.store.paths, found, record)])


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zk_hosts: str) -> Path:
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
    keep(config.state_dir(), "lab", SECRET, CLUSTERS)
    assert create_cluster(session, LAB, ClusterRecord())
    return Leader(session)


@pytest.fixture
def lab(leader: Leader) -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def edl(capsys: pytest.CaptureFixture[str]) -> Verb:
    """Run a verb; return its exit code, output, and the sentence of an error."""

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = invoke(words)
        out, err = capsys.readouterr()
        return code, out, err.removeprefix("edl: ").rstrip("\n")

    return run


@pytest.fixture
def host(leader: Leader) -> str:
    owner = HostOwner("token", "here", 1)
    registration = HostRegistration(leader.store.nodes, "node1", owner)
    registration.register(HostOffer(4), lambda _: True)
    registration.report(HostReport())
    return "node1"


@pytest.fixture
def run_of_digits(leader: Leader, lab: Cluster, zk_hosts: str) -> Iterator[None]:
    lab.submit("job.yaml")
    secret = leader.writer.job_secret("digits")
    with Session(zk_hosts, session_timeout_s=2.0, access=Access("digits", secret)) as one:
        JobStore(one, "digits").create(make_job(name="digits"), {"node1": 1})
        yield


# Verbs for one job, or a host.
JOB_VERBS = ("show", "wait", "halt", "resume", "delete", "events", "logs", "drain")


class TestWhichCluster:
    def test_the_only_one_that_is_known(self, lab: Cluster) -> None:
        assert lab.name == "lab"
        assert Cluster("lab").name == "lab"

    def test_by_name_secret_and_variable(
        self, leader: Leader, session: Session, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        secret = "0123456789abcdef" * 4
        assert create_cluster(session, Access("attic", secret), ClusterRecord())
        assert Cluster().name == "lab"
        with pytest.raises(AccessDenied, match="the secret of cluster attic is not known here"):
            assert Cluster("attic").name
        assert Cluster("attic", secret=secret).name == "attic"
        path = home / "secret"
        path.write_text(secret)
        path.chmod(0o600)
        assert Cluster("attic", secret_file=path).name == "attic"
        keep(config.state_dir(), "attic", secret, CLUSTERS)
        with pytest.raises(UsageError, match="there are 2 clusters: name one with --cluster: "):
            assert Cluster().name
        monkeypatch.setenv("EDL_CLUSTER", "attic")
        assert Cluster().name == "attic"
        with pytest.raises(UnknownCluster, match=r"named 'lob'; known clusters: attic, lab$"):
            assert Cluster("lob").name

    def test_a_wrong_secret(self, leader: Leader) -> None:
        keep(config.state_dir(), "lab", "0" * 64, CLUSTERS)
        assert Cluster("lab").name == "lab"  # an earlier one is tried as well
        (config.state_dir() / "clusters" / "lab" / "secrets").write_text("0" * 64)
        with pytest.raises(AccessDenied, match="secret of cluster lab is another than those known"):
            assert Cluster("lab").name
        with pytest.raises(UsageError, match="cluster lab is there, and its secret is not"):
            assert Cluster().name

    @pytest.mark.parametrize(
        "words",
        [
            ("submit", "job.yaml"),
            ("list",),
            ("host", "--slots", "1"),
            *((verb, "digits") for verb in JOB_VERBS),
            ("priority", "digits", "3"),
            ("undrain", "node1"),
            ("secret", "list"),
            ("secret", "delete", "TOKEN"),
            *(("cluster", verb) for verb in ("status", "plan", "policy", "start")),
            ("cluster", "what-if", "--add-host", "2"),
        ],
        ids=" ".join,
    )
    def test_with_a_wrong_secret_each_verb_says_one_sentence(
        self, lab: Cluster, edl: Verb, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lab.submit("job.yaml")
        shutil.rmtree(config.state_dir() / "clusters")
        monkeypatch.setenv("EDL_SECRET", "0" * 64)
        code, out, error = edl(*words, "--cluster", "lab")
        assert (code, out) == (2, "")
        assert error == (
            "the secret of cluster lab is another than those known here; give --secret-file FILE: "
            "on the machine where the cluster was started it is in "
            "~/.local/state/edl/clusters/lab/secret"
        )

    def test_a_secret_that_is_given_says_which_is_meant(
        self, lab: Cluster, edl: Verb, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As on a machine on which no cluster was started, and with EDL_SECRET_FILE."""
        lab.submit("job.yaml")
        shutil.rmtree(config.state_dir() / "clusters")
        assert "digits" not in edl("list")[1]
        monkeypatch.setenv("EDL_SECRET", SECRET)
        assert "digits" in edl("list")[1]
        assert "submitted" in edl("events", "digits")[1]
        assert "cluster lab has no host" in edl("drain", "node1")[2]
        monkeypatch.setenv("EDL_SECRET", "0" * 64)
        assert "digits" not in edl("list")[1], "it may be that of a job of `edl run`"

    def test_none(self, home: Path) -> None:
        with pytest.raises(UsageError, match="there is no cluster; start one with `edl cluster"):
            Cluster().list()


class TestSubmission:
    def test_all_kinds_of_manifests(self, lab: Cluster, home: Path) -> None:
        values = {"name": "b", "command": ["python", "x.py"], "min": 2, "max": 4, "sizes": [2, 4]}
        assert lab.submit(Path("job.yaml")) == "digits"
        assert lab.submit(DIGITS.replace("digits", "a")) == "a"
        assert lab.submit(values) == "b"
        assert lab.submit(replace(lab.show("b").manifest, name="c", cwd="sub")) == "c"
        assert [job.name for job in lab.list()] == ["digits", "a", "b", "c"]
        assert lab.show("digits").manifest.cwd == str(home)
        assert lab.show("c").manifest.cwd == str(home / "sub")

    def test_a_key_is_one_job(self, lab: Cluster, edl: Verb) -> None:
        for _ in range(2):
            answer = edl("submit", "job.yaml", "--key", "k")
            assert answer == (0, "job digits is submitted to cluster lab\n", "")
        assert len(lab.list()) == 1
        with pytest.raises(UsageError, match="submitted with the same key and another manifest"):
            lab.submit(DIGITS.replace("4", "5"), key="k")
        with pytest.raises(UsageError, match="has a job named 'digits' already, which is queued"):
            lab.submit("job.yaml")

    def test_bad_manifests_are_sentences(self, lab: Cluster, edl: Verb) -> None:
        Path("bad.yaml").write_text(DIGITS.replace("max: 4", "mx: 4"))
        code, _, error = edl("submit", "bad.yaml")
        assert code == 2
        assert error.startswith("bad.yaml:4: a manifest has no key 'mx'")
        code, _, error = edl("submit", "none.yaml")
        assert code == 2
        assert error.startswith("none.yaml: it cannot be read: No such file or directory; name the")
        assert lab.list() == ()

    def test_watch_shows_the_place_until_it_trains(
        self, leader: Leader, edl: Verb, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shown = threading.Event()

        def line(now: ClusterJobStatus) -> str:
            text = state_line(now)
            if "place 2 of 3" in text:
                shown.set()
            return text

        monkeypatch.setattr("edl.cli.jobs.state_line", line)

        def act() -> None:
            deadline = time.monotonic() + 20.0
            while not leader.store.jobs.list() and time.monotonic() < deadline:
                time.sleep(0.02)
            leader.say(digits="place 2 of 3 in the queue: 1 slot is free, and it needs 2")
            shown.wait(20.0)
            leader.live("digits", *TRAIN)

        thread = threading.Thread(target=act)
        thread.start()
        code, out, _ = edl("submit", "job.yaml", "--watch", "--timeout", "20")
        thread.join()
        assert code == 0
        assert out.splitlines()[-2:] == [
            "digits  queued: place 2 of 3 in the queue: 1 slot is free, and it needs 2",
            "digits  running: a test lets it train",
        ]

    def test_watch_may_have_a_limit(self, leader: Leader, edl: Verb) -> None:
        code, _, error = edl("submit", "job.yaml", "--watch", "--timeout", "0")
        assert code == 124
        assert error.startswith("job digits does not train after 0 s: it is queued (no controller")

    def test_what_a_real_leader_says(
        self, session: Session, zk_hosts: str, wait_until: Callable[..., None]
    ) -> None:
        keep(config.state_dir(), "lab", SECRET, CLUSTERS)
        assert create_cluster(session, LAB, ClusterRecord())
        about = ControllerRecord("one", address="127.0.0.1")
        controller = Controller(zk_hosts, LAB, about, say=lambda _: None)
        thread = threading.Thread(target=controller.run)
        thread.start()
        why = "place 1 of 1 in the queue: it needs 1 slot, and the cluster has 0"
        try:
            with Cluster() as lab:
                lab.submit("job.yaml")
                wait_until(lambda: lab.list()[0].reason.startswith(why))
        finally:
            controller.stop()
            thread.join(20.0)

    def test_a_leader_goes_by_zookeepers_clock(
        self,
        session: Session,
        zk_hosts: str,
        wait_until: Callable[..., None],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """The next leader may be on another machine, whose clock is hours ahead."""
        assert create_cluster(session, LAB, ClusterRecord())
        store = ClusterStore(open_cluster(session, LAB))
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() + 7200.0)
        about = ControllerRecord("one", address="127.0.0.1")
        controller = Controller(zk_hosts, LAB, about, say=lambda _: None)
        thread = threading.Thread(target=controller.run)
        thread.start()
        try:
            submit_job(store, JobManifest("digits", ("python", "train.py"), 1, 4))
            wait_until(lambda: store.leader.reasons().reasons)
        finally:
            controller.stop()
            thread.join(20.0)
        times = [store.leader.reasons().at_s, store.jobs.get("digits").life.since_s]
        times += [event.time_s for _, event in store.events.read() if event.by.endswith("one")]
        assert len(times) == 3  # with the event that the controller leads
        assert [one for one in times if abs(one - real()) > 600.0] == []


class TestReading:
    def test_a_table_and_lines_of_json(self, leader: Leader, lab: Cluster, edl: Verb) -> None:
        assert edl("list") == (0, "cluster lab has no jobs\n", "")
        lab.submit("job.yaml")
        lab.submit(DIGITS.replace("digits", "b") + "queue: night\npriority: 7\n")
        leader.say(digits="place 1 of 1 in the queue: no host offers slots")
        leader.live("b", *TRAIN, slots=2)
        code, out, _ = edl("list")
        assert code == 0
        rows = [line.split(maxsplit=6) for line in out.splitlines()]
        assert rows[0] == ["JOB", "STATE", "SLOTS", "PRIORITY", "QUEUE", "AGE", "REASON"]
        assert [row[:5] for row in rows[1:]] == [
            ["digits", "queued", "0/1-4", "0", "default"],
            ["b", "running", "2/1-4", "7", "night"],
        ]
        assert rows[1][6] == "place 1 of 1 in the queue: no host offers slots"
        assert rows[2][6] == "a test lets it train"
        lines = edl("list", "--queue", "night", "--json")[1].splitlines()
        assert [json.loads(line)["name"] for line in lines] == ["b"]
        assert lab.list(state="queued") == (lab.show("digits").job,)
        assert edl("list", "--state", "halted")[1] == "cluster lab has no such jobs\n"
        code, _, error = edl("list", "--state", "idle")
        assert code == 2
        assert error.startswith("there is no state 'idle'; use one of queued, starting, ")

    def test_without_a_controller_it_says_so(
        self, session: Session, leader: Leader, lab: Cluster, edl: Verb
    ) -> None:
        lab.submit("job.yaml")
        assert lab.has_controller()
        assert "no controller of cluster lab" not in edl("list")[1]
        leader.election.leave()
        assert not lab.has_controller()
        assert edl("list")[1].splitlines()[-1] == (
            "no controller of cluster lab runs: jobs train on, none starts or changes, and the "
            "reasons are of before; start one with `edl cluster start --name lab`"
        )
        another = Leader(session)
        another.live("digits", LifeEvent.DELETE)
        another.election.leave()
        assert "no controller of cluster lab" not in edl("list")[1], "nothing waits for one"

    def test_all_of_one_job(self, leader: Leader, lab: Cluster, host: str, edl: Verb) -> None:
        lab.submit(DIGITS)
        leader.live("digits", *FINISH)
        lab.submit(DIGITS + "priority: 3\n")
        leader.live("digits", *TRAIN, run="r1", runs=1, slots=2)
        leader.assign(host, digits=JobAssignment("r1", devices=(1, 3), leaving=(3,)))
        found = lab.show("digits")
        assert (found.job.state, found.job.slots, found.run) == (LifeState.RUNNING, 2, "r1")
        assert (found.devices, found.leaving) == ({host: (1, 3)}, {host: (3,)})
        assert [event.kind for event in found.history] == ["submitted"]
        code, out, _ = edl("show", "digits")
        assert code == 0
        for text in (
            "state      running, for 0s: a test lets it train",
            "slots      2 of 1-4, 4 wanted (node1: 2; giving back node1: 1)",
            "  command: [python, train.py]",
            "  priority: 3",
        ):
            assert text in out
        said = json.loads(edl("show", "digits", "--json")[1])
        expected = json.loads(json.dumps(found.to_json()))
        assert said | {"slot_s": 0.0} == expected | {"slot_s": 0.0}

    def test_an_unknown_job_is_named_with_those_like_it(self, lab: Cluster, edl: Verb) -> None:
        lab.submit("job.yaml")
        for verb in ("show", "wait", "halt", "resume"):
            code, _, error = edl(verb, "digit")
            assert (code, error) == (94, "there is no job named 'digit'; known jobs: digits")
        with pytest.raises(UnknownJob):
            lab.events("digit")

    def test_events(self, lab: Cluster, host: str, edl: Verb) -> None:
        lab.submit("job.yaml")
        lab.priority("digits", 5)
        lab.hosts.drain(host)
        numbers = [number for number, _ in lab.events()]
        assert [event.kind for _, event in lab.events()] == ["submitted", "wanted", "drain"]
        assert [number for number, _ in lab.events(after=numbers[0])] == numbers[1:]
        assert [event.kind for _, event in lab.events("digits")] == ["submitted", "wanted"]
        lines = edl("events", "--cluster", "lab")[1].splitlines()
        assert len(lines) == 3
        assert "drain      node1: host node1 is drained [" in lines[2]
        [first, _] = edl("events", "digits", "--json")[1].splitlines()
        assert {"number", "time", "kind", "job", "host", "reason", "by"} == {*json.loads(first)}


class TestWaiting:
    @pytest.mark.parametrize(
        ("events", "changes", "code"),
        [
            (FINISH, {}, 0),
            ((*TRAIN, LifeEvent.GIVE_UP), {"exit_code": 3}, 3),
            ((*TRAIN, LifeEvent.GIVE_UP), {}, 1),
            ((LifeEvent.DELETE,), {}, 94),
        ],
    )
    def test_the_end_gives_the_code(
        self, leader: Leader, edl: Verb, events: Any, changes: Any, code: int
    ) -> None:
        edl("submit", "job.yaml")
        leader.live("digits", *events, **changes)
        got, out, _ = edl("wait", "digits")
        assert got == code
        result = leader.store.jobs.get("digits").life.result
        assert out == f"job digits {result}: a test lets it {events[-1]}\n"
        assert json.loads(edl("wait", "digits", "--json")[1])["exit_code"] == (
            changes.get("exit_code", 0)
        )

    def test_a_halted_job_is_waited_for_only_while_it_is_to_halt(
        self, leader: Leader, lab: Cluster, edl: Verb
    ) -> None:
        lab.submit("job.yaml")
        lab.halt("digits")
        leader.live("digits", LifeEvent.HALT)
        assert edl("wait", "digits")[0] == 90
        lab.resume("digits")
        code, _, error = edl("wait", "digits", "--timeout", "0.1")
        assert code == 124
        assert error.startswith("job digits has not ended after 0.1 s: it is halted (")
        with pytest.raises(TimedOut):
            lab.wait("digits", timeout_s=0.0)

    def test_another_job_of_that_name(self, leader: Leader, lab: Cluster) -> None:
        lab.submit("job.yaml")

        def replace_it(_: object) -> None:
            leader.live("digits", *FINISH)
            with Cluster() as other:
                other.submit("job.yaml")

        with pytest.raises(UnknownJob, match="is over, and a new one of that name has taken its"):
            lab.wait("digits", 20.0, replace_it)


class TestWanting:
    def test_again_changes_nothing_and_answers_the_same(self, lab: Cluster, edl: Verb) -> None:
        lab.submit("job.yaml")
        for _ in range(2):
            assert edl("halt", "digits") == (0, "job digits is to halt\n", "")
        for _ in range(2):
            assert lab.resume("digits") == Wanted(Goal.RUN)
        for _ in range(2):
            answer = edl("priority", "digits", "-5")
            assert answer == (0, "job digits has priority -5\n", "")
        kinds = [event.kind for _, event in lab.events("digits")]
        assert kinds == ["submitted", "wanted", "wanted", "wanted"]

    def test_what_is_too_late(self, leader: Leader, lab: Cluster, edl: Verb) -> None:
        lab.submit("job.yaml")
        with pytest.raises(UsageError, match="the priority is 2000000; it must lie between"):
            lab.priority("digits", 2_000_000)
        leader.live("digits", *FINISH)
        sentence = "job digits has ended (finished); submit it again to run it once more"
        for words in (("resume", "digits"), ("halt", "digits"), ("priority", "digits", "1")):
            assert edl(*words) == (2, "", sentence)
        said = "the records of job digits will be removed\n"
        for _ in range(2):
            assert edl("delete", "digits") == (0, said, "")
        assert [job.name for job in jobs_to_remove(leader.store.jobs.list(), time.time())] == [
            "digits"
        ]

    def test_what_is_being_deleted(self, lab: Cluster, edl: Verb) -> None:
        lab.submit("job.yaml")
        assert lab.delete("digits") == Wanted(Goal.GONE)
        sentence = "job digits is being deleted; submit it again when it is gone"
        assert edl("resume", "digits") == (2, "", sentence)


class TestTheCluster:
    def test_its_status_plan_and_policy(self, lab: Cluster, host: str) -> None:
        lab.submit("job.yaml")
        assert [(one.host, one.slots) for one in lab.status().hosts] == [(host, 4)]
        assert [(one.job, one.planned) for one in lab.policy.plan("fifo")] == [
            ("digits", {host: 4})
        ]
        assert lab.policy.set("fifo").policy == "fifo"
        assert lab.submit(DIGITS.replace("digits", "more")) == "more"  # in the same session


class TestHosts:
    def test_drain_and_back(self, leader: Leader, lab: Cluster, host: str, edl: Verb) -> None:
        for _ in range(2):
            assert edl("drain", host) == (0, "host node1 is drained\n", "")
        assert [one.drained for one in leader.store.hosts.list()] == [True]
        for _ in range(2):
            assert edl("undrain", host) == (0, "host node1 may have jobs again\n", "")
        assert [one.drained for one in leader.store.hosts.list()] == [False]
        code, _, error = edl("drain", "node2", "--cluster", "lab")
        assert (code, error) == (2, "cluster lab has no host named 'node2'; its hosts: node1")

    def test_it_waits_for_an_empty_host(self, leader: Leader, lab: Cluster, host: str) -> None:
        leader.assign(host, digits=JobAssignment("r1", devices=(0,)))
        with pytest.raises(TimedOut, match=r"after 0.1 s it still has digits; they go on leaving"):
            lab.hosts.drain(host, timeout_s=0.1)
        timer = threading.Timer(0.2, leader.assign, [host])
        timer.start()
        lab.hosts.drain(host, timeout_s=20.0)
        timer.join()


class TestOneWordForBoth:
    """`edl events`, `delete`, `logs` and `drain` are for jobs of `edl run` as well."""

    @pytest.fixture
    def own(self, zk_hosts: str) -> Iterator[JobStore]:
        secret = "a" * 64
        keep(config.state_dir(), "letters", secret, JOBS)
        with Session(zk_hosts, session_timeout_s=2.0, access=Access("letters", secret)) as one:
            store = JobStore(one, "letters")
            yield store

    def test_a_job_of_edl_run_is_meant_if_the_cluster_has_none_of_that_name(
        self, lab: Cluster, own: JobStore, edl: Verb, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        own.create(make_job(name="letters"), {"a": 1})
        assert edl("events", "letters")[0] == 0
        code, _, error = edl("events", "letters", "--cluster", "lab")
        assert code == 94
        assert error.startswith("there is no job named 'letters'")
        monkeypatch.setenv("EDL_CLUSTER", "lab")
        assert edl("events", "letters")[0] == 0
        own.set_job_state(JobState.STOPPED, "a test")
        assert edl("delete", "letters") == (0, "job letters is deleted\n", "")

    def test_a_job_of_the_cluster_is_meant_if_it_has_one(
        self, lab: Cluster, own: JobStore, edl: Verb
    ) -> None:
        own.create(make_job(name="letters"), {"a": 1})
        lab.submit(DIGITS.replace("digits", "letters"))
        assert "job letters was submitted" in edl("events", "letters")[1]
        assert "submitted" not in edl("events", "letters", "--cluster", "")[1]
        code, _, error = edl("logs", "letters")
        assert code == 1
        assert error.startswith("job letters has not started yet, so it has no logs: queued, ")

    def test_without_any_cluster(self, edl: Verb) -> None:
        code, _, error = edl("drain", "node1")
        assert code == 2
        assert error.startswith("'node1' is not a worker; write w3, or 3")

    def test_the_run_of_a_job_of_the_cluster_is_open(
        self, leader: Leader, run_of_digits: None, edl: Verb
    ) -> None:
        code, out, _ = edl("status", "digits", "--json")
        assert (code, json.loads(out)["job"]) == (0, "digits")
        leader.live("digits", *TRAIN, run="r1")
        said = "no host of the cluster has a log of w0 of job digits"
        assert edl("logs", "digits", "w0") == (1, "", said)


class TestLogs:
    @pytest.fixture
    def hosts(self, leader: Leader, tmp_path: Path) -> Iterator[dict[str, LogServer]]:
        """Let two hosts serve the logs of `digits`; w0 of host b is of an earlier run."""
        with ExitStack() as stack:
            found = {}
            for name, logs in {"a": {"w0": "one\ntwo", "w2": "x\n"}, "b": {"w0": "old\n"}}.items():
                places = LogPlaces(tmp_path / name / "jobs", tmp_path / name / "agents")
                places.agents.mkdir(parents=True)
                places.of_agent("digits", "r1").write_text("of an agent\n")
                places.of_workers("digits").mkdir(parents=True)
                for worker, text in logs.items():
                    (places.of_workers("digits") / f"{worker}.log").write_text(text)
                server = stack.enter_context(LogServer("127.0.0.1", "lab", SECRET, places))
                offer = HostOffer(2, address="127.0.0.1", port=server.port)
                owner = HostOwner(f"token-{name}", "here", 1)
                HostRegistration(leader.store.nodes, name, owner).register(offer, lambda _: True)
                found[name] = server
            yield found

    def ended(self, leader: Leader, zk_hosts: str, **workers: str) -> None:
        access = Access("digits", leader.writer.job_secret("digits"))
        with Session(zk_hosts, session_timeout_s=2.0, access=access) as one:
            for worker, host in workers.items():
                details = WorkerExitedDetails(worker, host, 0, 0, "bye", "hello\nbye")
                JobStore(one, "digits").events.add(Event(time.time(), 1, 5, "it ended", details))

    def test_those_of_all_hosts_from_anywhere(
        self, hosts: dict[str, LogServer], leader: Leader, run_of_digits: None, zk_hosts: str,
        edl: Verb,
    ) -> None:  # fmt: skip
        leader.live("digits", *TRAIN, run="r1")
        self.ended(leader, zk_hosts, w0="a", w1="b")
        assert edl("logs", "digits") == (0, "[w0] one\n[w0] two\n[w2] x\n", "")
        assert edl("logs", "digits", "w0") == (0, "one\ntwo\n", "")
        leader.live("digits", LifeEvent.FINISH)
        assert edl("logs", "digits", "w0", "--follow") == (0, "one\ntwo\n", "")
        said = "no host of the cluster has a log of w9 of job digits; there are those of w0, w2"
        assert edl("logs", "digits", "w9") == (1, "", said)
        with Cluster("lab", zk_hosts, secret=SECRET) as cluster:
            assert [(one.worker, one.host, one.text) for one in cluster.logs("digits")] == [
                ("w0", "a", "one\ntwo"),
                ("w2", "a", "x\n"),
                ("w1", "", "hello\nbye"),
            ]
            assert [one.text for one in cluster.logs("digits", "w0", 3)] == ["two"]
            with pytest.raises(UsageError, match="job digits has no log of w9"):
                cluster.logs("digits", "w9")

    def test_a_host_that_is_gone(
        self, hosts: dict[str, LogServer], leader: Leader, run_of_digits: None, zk_hosts: str,
        edl: Verb,
    ) -> None:  # fmt: skip
        leader.live("digits", *TRAIN, run="r1")
        self.ended(leader, zk_hosts, w0="a", w1="b")
        hosts["b"].close()
        code, out, error = edl("logs", "digits")
        assert (code, out) == (1, "[w0] one\n[w0] two\n[w2] x\n")
        assert error.startswith("the log of some workers of job digits cannot be read: `edl host`")
        assert edl("logs", "digits", "w0") == (0, "one\ntwo\n", ""), "it is on the other host"
        code, out, error = edl("logs", "digits", "w1")
        assert (code, out) == (1, "hello\nbye\n")
        assert error.endswith("; this was the end of it, from the event of its end")


def test_queues_are_set_shown_and_deleted(
    lab: Cluster, leader: Leader, host: str, edl: Verb
) -> None:
    assert edl("queue", "list") == (0, "cluster lab has no queues: all jobs share its slots\n", "")
    code, out, _ = edl("queue", "set", "prod", "--quota", "400", "--max", "500")
    assert code == 0
    assert out == (
        "queue prod of cluster lab: quota 400, weight 1, at most 500 slots\n"
        "the quotas of all queues are 400 slots together, and the cluster has 4: they are met in "
        "proportion\n"
    )
    code, out, _ = edl("queue", "set", "prod", "--quota", "1", "--max", "0", "--weight", "2")
    assert out == "queue prod of cluster lab: quota 1, weight 2\n"
    code, _, error = edl("submit", "job.yaml")
    assert (code, "cluster lab has no queue 'default'" in error) == (2, True)
    lab.submit({**DIGITS_VALUES, "queue": "prod"})
    leader.live("digits", *TRAIN, slots=3)
    said = JobReasons(time.time(), {"digits": "has 3 slots"}, {"digits": 2})
    assert leader.writer.commit([reasons_write(leader.store.paths, said)])
    _, out, _ = edl("list")
    assert "3/1-4 (2 surplus)" in out
    assert lab.show("digits").job.surplus == 2
    assert "; 2 beyond the quota of its queue" in edl("show", "digits")[1]
    [queue] = lab.queues.list()
    assert (queue.slots, queue.guaranteed, queue.surplus, queue.running) == (3, 1, 2, 1)
    assert lab.status().queues == (queue,)
    assert json.loads(edl("queue", "list", "--json")[1]) == queue.to_json()
    assert "surplus" in edl("cluster", "status")[1]
    code, _, error = edl("queue", "delete", "prod")
    assert (code, "queue prod has 1 job that has not ended: digits" in error) == (2, True)
    leader.live("digits", LifeEvent.FINISH)
    assert edl("queue", "delete", "prod")[1] == "queue prod is deleted from cluster lab\n"
