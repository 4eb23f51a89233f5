"""Who does not know a job's secret can neither read it nor change it, and the secret stays secret.

One real job for all that only looks; what it does to it last is a session that ends, which it
survives. The rest is done with workers that have no ring.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from cli_shell import STANDIN, Shell, shell
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import make_digest_acl
from made import make_job
from paths import SCRIPTS

from edl import records
from edl.chaos.fault_schedule import Action
from edl.chaos.faults import post_fault
from edl.cli.main import invoke
from edl.errors import AccessDenied
from edl.events import Event, EvictedDetails
from edl.http import client
from edl.http.signing import authorization, http_key
from edl.secret_file import read_secret
from edl.testing.job import Job
from edl.testing.throttle import Throttle
from edl.zookeeper.access import OPEN, Access
from edl.zookeeper.local_server import start_local, stop_local
from edl.zookeeper.nodes import all_nodes
from edl.zookeeper.paths import JOBS, JobPaths
from edl.zookeeper.reads import acl, get
from edl.zookeeper.session import Session
from edl.zookeeper.store import JobStore

pytestmark = pytest.mark.integration
__all__ = ["shell"]
COUNTING = SCRIPTS / "counting.py"
OTHER = "f" * 64
Quick = Callable[..., str]


@dataclass
class Training:
    job: Job
    server: Path  # the state directory of its ZooKeeper
    session: Session  # of somebody who knows the secret
    access: Access

    @property
    def store(self) -> JobStore:
        return JobStore(self.session, self.job.name)

    def nodes(self) -> list[str]:
        return all_nodes(self.session, JobPaths(self.job.name).root)


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Training]:
    """On a ZooKeeper of its own, whose files are read."""
    directory, server = tmp_path_factory.mktemp("job"), tmp_path_factory.mktemp("zookeeper")
    hosts = start_local(server)
    job = Job(directory, hosts)
    job.environment |= {"EDL_LOG": "DEBUG", "PYTHONDONTWRITEBYTECODE": "1"}
    job.throttle(Throttle(0.3, later_s=1.0))
    words = ("--out", str(directory), "--samples", "4000")
    try:
        job.run(
            COUNTING, *words, "--num-workers", "1",
            np=2, max_np=2, options=["--chaos"],
        )  # fmt: skip
        job.wait_for_size(2)
        secret = read_secret(directory / "state/edl/jobs" / job.name / "secret")
        access = Access(job.name, secret)
        with Session(hosts, access=access) as session:
            JobStore(session, job.name).requests.add(records.Request("drain", 99))
            yield Training(job, server, session, access)
        job.edl("stop")
        assert job.end() == 143
    finally:
        job.close()
        stop_local(server)


@pytest.fixture(params=["nothing", "another secret", "another job"])
def stranger(request: pytest.FixtureRequest, training: Training) -> Iterator[KazooClient]:
    name, secret = training.job.name, training.access.secret
    wrong = {"another secret": Access(name, OTHER), "another job": Access("x", secret)}
    known = wrong.get(request.param)
    one = KazooClient(
        training.session.hosts,
        timeout=10.0,
        auth_data=None if known is None else {("digest", known.credential)},
    )
    one.start()
    with closing(one):
        yield one
        one.stop()


class TestZooKeeper:
    def test_a_stranger_can_only_see_that_there_is_such_a_job(
        self, training: Training, stranger: KazooClient
    ) -> None:
        assert stranger.get_children(JOBS) == [training.job.name]
        nodes = [path for path in training.nodes() if "/status" not in path]
        assert len(nodes) > 20
        for path in nodes:
            tries: list[Callable[[], object]] = [
                lambda p=path: stranger.get(p),
                lambda p=path: stranger.get_children(p),
                lambda p=path: stranger.get_acls(p),
                lambda p=path: stranger.set(p, b"{}"),
                lambda p=path: stranger.set_acls(p, OPEN),
                lambda p=path: stranger.create(f"{p}/x"),
                lambda p=path: stranger.create(f"{p}/x-", ephemeral=True, sequence=True),
            ]
            if path != JobPaths(training.job.name).root:  # that one is not empty
                tries.append(lambda p=path: stranger.delete(p))
            for attempt in tries:
                with pytest.raises(NoAuthError):
                    attempt()
            transaction = stranger.transaction()
            transaction.create(f"{path}/x", b"")
            assert isinstance(transaction.commit()[0], NoAuthError)
        assert set(nodes) <= set(training.nodes())

    def test_everything_that_a_job_creates_is_closed(self, training: Training) -> None:
        """Members, candidates, hosts, events, requests: also what is written in transactions."""
        nodes = training.nodes()
        kinds = {path.split("/")[4] for path in nodes if path.count("/") == 5}
        assert kinds >= {"members", "hosts", "election", "events", "requests", "run"}
        answers = training.session.read_all("read ACLs", [acl(path) for path in nodes])
        assert [one[0] for one in answers if one] == [training.access.acl] * len(
            [one for one in answers if one]
        )

    def test_with_the_wrong_secret_each_call_is_one_sentence(self, training: Training) -> None:
        hosts, name = training.session.hosts, training.job.name
        for access in (None, Access(name, OTHER)):
            with Session(hosts, access=access) as session:
                store = JobStore(session, name)
                calls: list[Callable[[], object]] = [
                    store.snapshot,
                    store.events.read,
                    lambda s=store: s.watch_generation(None),
                    store.members.new_id,
                    lambda s=store: s.hosts.put(records.Host("h", 1, "127.0.0.1", 1)),
                    lambda s=store: s.events.add(Event(0.0, 0, 0, "", EvictedDetails("w1"))),
                    lambda s=store: s.requests.add(records.Request("drain", 0)),
                    lambda s=store: s.set_desired(
                        lambda _: {"h": 9}, records.RequestedBy.PERSON, "so"
                    ),
                    store.delete,
                ]
                for call in calls:
                    with pytest.raises(AccessDenied, match="closed by the job's secret"):
                        call()
        with (
            Session(hosts, access=Access(name, OTHER)) as session,
            pytest.raises(AccessDenied, match="is taken by a job that has another secret"),
        ):
            JobStore(session, name).create(make_job(name, np=1, command=("x",), max_np=1), {})


class TestPorts:
    def test_changes_are_refused_to_all_who_cannot_sign_and_replays_to_all(
        self, training: Training
    ) -> None:
        store = training.store
        before = store.snapshot()
        assert before.generation is not None
        member = before.members[0]
        where, path = (member.address, member.port), "/chaos/expire"
        for key in (http_key(OTHER, training.job.name), http_key(training.access.secret, "x")):
            assert client.send_change(key, member.id, "POST", *where, path, 10.0)[0] == 401
        key = http_key(training.access.secret, training.job.name)
        assert client.send_change(key, member.id + 1, "POST", *where, path, 10.0)[0] == 401
        scope = before.generation.scope
        for guess in (f"{scope[:-1]}x", scope.split("-")[0] + "-" + "0" * 32):
            place = client.rendezvous_path(member.port, guess, "global/0")
            assert client.http_put(*where, place, b"x", 10.0)[0] in (404, 410)

        nonce = client._request("POST", *where, path, b"", 10.0).challenge.split()[1]
        signed = authorization(key, nonce, member.id, "POST", path, b"")
        answers = [client._request("POST", *where, path, b"", 10.0, signed) for _ in range(3)]
        assert [answer.status for answer in answers] == [200, 401, 401]
        assert post_fault(store, store.snapshot().members[-1], Action.EXPIRE) == 200
        # Two sessions were ended. The workers open others, and the ring does not care.
        step = training.job.status()["step"]
        training.job.wait_for_step(step + 10)
        after = store.snapshot().generation
        assert after is not None
        assert after.number == before.generation.number

    def test_nobody_listens_on_every_network(self, training: Training) -> None:
        ports: dict[str, set[int]] = {}
        for process in [*training.job.processes(), *_java_of(training.server)]:
            for connection in process.net_connections("inet"):
                if connection.status == psutil.CONN_LISTEN:
                    ports.setdefault(connection.laddr.ip, set()).add(connection.laddr.port)
        addresses = [ipaddress.ip_address(ip.removeprefix("::ffff:")) for ip in ports]
        assert all(address.is_loopback for address in addresses), ports
        found = set().union(*ports.values())
        assert {member.port for member in training.store.snapshot().members} <= found
        assert int(training.session.hosts.rpartition(":")[2]) in found


class TestTheSecret:
    def test_it_is_on_no_command_line(self, training: Training) -> None:
        needles = _needles(training)
        environments = 0
        for process in psutil.process_iter():
            try:
                words = " ".join(process.cmdline())
                environments += process.environ().get("EDL_SECRET") == training.access.secret
            except psutil.Error:
                continue
            assert not any(needle in words for needle in needles)
        assert environments >= 2  # the workers, and their loaders

    def test_it_is_not_in_zookeeper(self, training: Training) -> None:
        answers = training.session.read_all("read all", [get(path) for path in training.nodes()])
        data = b"\n".join(answer[0] for answer in answers if answer)
        names = "\n".join(training.nodes()).encode()
        files = [path for path in training.server.rglob("*") if path.is_file()]
        assert any("log." in path.name for path in files)
        kept = b"\n".join(path.read_bytes() for path in files)
        for needle in _needles(training):
            assert needle.encode() not in data + names + kept

    def test_it_is_in_no_log_and_no_answer(self, training: Training) -> None:
        job = training.job
        texts = [job.edl("events", "--json"), job.edl("status", "--json"), job.output()]
        assert "edl.zookeeper.kazoo: Sending request" in job.output()  # logged in all detail
        for member in training.store.snapshot().members:
            texts.append(client.fetch(member.address, member.port, "/health", 10.0)[1].decode())
        for needle in _needles(training):
            assert not any(needle in text for text in texts)

    def test_of_all_files_only_its_own_has_it(self, training: Training) -> None:
        secret = training.access.secret.encode()
        found = {
            path
            for path in training.job.directory.rglob("*")
            if path.is_file() and secret in path.read_bytes()
        }
        assert {path.name for path in found} == {"secret", "secrets"}
        assert {stat.S_IMODE(path.stat().st_mode) for path in found} == {0o600}
        kept = b"".join(p.read_bytes() for p in training.job.directory.rglob("*") if p.is_file())
        assert not any(one.encode() in kept for one in _needles(training) - {secret.decode()})

    def test_not_even_the_most_talkative_log_has_a_key(
        self, zk_hosts: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        access = Access("x", OTHER)
        caplog.set_level(1, "edl.zookeeper.kazoo")
        with Session(zk_hosts) as session:
            session.identify(access)
            session.client.restart()  # which sends it again
            passwd = session.client.client_id[1].hex()
        assert "Auth(...)" in caplog.text
        for needle in (access.credential.split(":")[1], OTHER, passwd):
            assert needle not in caplog.text
        assert logging.getLevelName(max(r.levelno for r in caplog.records)) == "DEBUG"


@pytest.fixture
def quick(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Quick:
    def call(words: str, code: int = 2) -> str:
        monkeypatch.delenv("EDL_SECRET", raising=False)
        monkeypatch.setenv("EDL_SECRET_FILE", "")  # --secret-file sets it, for this process
        for name, value in shell.environment.items():
            monkeypatch.setenv(name, value)
        assert invoke(words.split()) == code
        return capsys.readouterr().err

    return call


class TestCommands:
    def test_another_host_needs_it(self, shell: Shell, quick: Quick, tmp_path: Path) -> None:
        run = ("run", "--max-np", "2", "--slots", "1", "--job", "j", "--host", "a")
        shell.start(*run, sys.executable, STANDIN)
        shell.until_size(1)
        secret = read_secret(shell.directory / "state/edl/jobs/j/secret")
        shell.environment["XDG_STATE_HOME"] = str(tmp_path / "elsewhere")
        for verb in ("status j", "join --job j", "stop j", "events j", "drain j w0"):
            assert "the secret of job j is not known here; give EDL_SECRET, or" in quick(verb)
        assert "for another one give its name and its secret, see" in quick("status")
        for unknown in ("status k", "delete k", "join --job k"):  # no name of a stranger's job
            said = quick(unknown, 94)
            assert said == "edl: there is no job named 'k'; start one with `edl run`\n"
        shell.environment["EDL_SECRET"] = OTHER
        assert "known jobs" not in quick("status k", 94)
        assert "the secret of job j is another than those" in quick("status j")
        shell.environment["EDL_SECRET"] = secret
        assert quick("status j", 0) == quick("status", 0) == ""
        assert "there is no job named 'k'; known jobs: j" in quick("status k", 94)

        del shell.environment["EDL_SECRET"]
        copy = tmp_path / "copied"
        copy.write_text(secret)
        copy.chmod(0o644)
        join = f"join --host b --slots 1 --secret-file {copy}"
        assert f"open to other users; `chmod 600 {copy}`" in quick(join)
        copy.chmod(0o600)
        shell.start(*join.split()).expect("host b offers 1 slot to job j")
        assert quick("scale j --np 2", 0) == ""  # join has kept the secret
        assert {m["host"] for m in shell.until_size(2)["members"]} == {"a", "b"}
        assert quick("stop j", 0) == ""
        assert [running.wait() for running in shell.started] == [143, 0]

    def test_the_name_of_an_ended_job_belongs_to_who_knows_its_secret(
        self, shell: Shell, tmp_path: Path
    ) -> None:
        run = ("run", "--job", "k", sys.executable, STANDIN, "--steps", "2")
        assert shell.edl(*run).returncode == 0
        file = shell.directory / "state/edl/jobs/k/secret"
        first = read_secret(file)
        shell.environment["EDL_SECRET"] = OTHER
        assert shell.edl(*run).returncode == 0  # the same user, who wants another one
        second = read_secret(file)
        assert second == OTHER != first
        del shell.environment["EDL_SECRET"]
        assert shell.edl(*run).returncode == 0  # who keeps it
        assert read_secret(file) == second
        events = (file.parent / "logs" / "run2" / "events.jsonl").read_text().splitlines()
        assert {"generation", "worker_exited"} <= {json.loads(each)["kind"] for each in events}
        shell.environment["XDG_STATE_HOME"] = str(tmp_path / "elsewhere")
        done = shell.edl(*run)
        assert done.returncode == 2
        assert "the name 'k' is taken by a job that has another secret" in done.stderr
        assert "choose another --job" in done.stderr
        shell.environment["EDL_SECRET"] = second  # a user of both hosts
        assert shell.edl(*run).returncode == 0

    def test_a_job_that_anybody_may_have_written_is_not_joined(
        self, quick: Quick, zk_hosts: str, tmp_path: Path
    ) -> None:
        """Its command would run here."""
        record = make_job("evil", np=1, command=("touch", str(tmp_path / "harm")), max_np=1)
        paths = JobPaths("evil")
        stranger = KazooClient(zk_hosts, timeout=10.0)
        stranger.start()
        with closing(stranger):
            stranger.create(paths.job, json.dumps(record.to_json()).encode(), makepath=True)
            mine = make_digest_acl("evil", "guessed", all=True)
            for access in (OPEN, [mine, *OPEN]):
                stranger.set_acls(paths.root, access)
                assert "the secret of job evil is not known here" in quick("join --job evil")
                assert "no job whose secret is known here is running" in quick("join")
            stranger.stop()
        assert not (tmp_path / "harm").exists()


def _needles(training: Training) -> set[str]:
    access = training.access
    return {
        access.secret,
        access.credential.split(":")[1],
        http_key(access.secret, access.job),
    }


def _java_of(state: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if any(str(state) in word for word in process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    assert found
    return found
