"""`edl logs`: what workers on this host have written."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
from made import make_job

from edl.cli import logs as verb
from edl.cli.main import invoke
from edl.cluster.client import waiting
from edl.cluster.lifecycle import LifeState
from edl.cluster.records import HostedLog
from edl.errors import AccessDenied, CoordinationError, UnknownJob, ZooKeeperUnreachable
from edl.events import Event, WorkerExitedDetails
from edl.host.adoption import RunningWorker
from edl.host.devices import worker_hosts
from edl.host.workers import KEPT_RUNS, Workers, earlier_runs, log_directory
from edl.job.snapshot import Snapshot
from edl.records import Assigned, Generation, Host, Member, RingMember

Run = Callable[..., tuple[str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`edl logs ...`: its output and its errors."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def logs(*words: str, code: int = 0) -> tuple[str, str]:
        assert invoke(["logs", *words]) == code
        done = capsys.readouterr()
        return done.out, done.err

    return logs


def job(state: Path, name: str, **logs: str) -> Path:
    """Write the ``logs`` of a job's workers, also of one that never became a worker.

    Return the directory of the logs.
    """
    directory = log_directory(state / "edl", name, fresh=True)
    workers = Workers(["x"], state, {}, directory)
    for number, (worker, text) in enumerate(logs.items()):
        launch = f"abc-{number}"
        workers.log_of(launch).write_text(text)
        if worker.startswith("w"):
            workers.name(launch, worker)
            workers.name(launch, worker)
    return directory


def test_one_worker_as_it_wrote_and_all_with_their_names(tmp_path: Path, run: Run) -> None:
    job(tmp_path, "digits", w0="a\n\nb", w10="c\n", w2="d\n", mute="cannot import\n")
    assert run("digits", "w0")[0] == "a\n\nb\n"
    lines = run("digits")[0].splitlines()
    assert lines == ["[w0] a", "[w0] ", "[w0] b", "[w2] d", "[w10] c", "[abc-3] cannot import"]


def test_the_links_tell_the_next_agent_the_numbers_of_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = job(tmp_path, "digits", w0="a\n", w10="c\n", mute="cannot import\n")
    (directory / "warnings.log").write_text("of somebody else\n")
    left = [RunningWorker(cast(Any, None), f"abc-{slot}", slot) for slot in range(3)]
    monkeypatch.setattr("edl.host.workers.find", lambda environment, record_of: left)
    found = Workers(["x"], tmp_path, {}, directory).orphans()
    assert [(one.attempt_id, one.worker) for one in found] == [
        ("abc-0", 0),
        ("abc-1", 10),
        ("abc-2", None),
    ]


def test_of_a_progress_bar_its_last_state_is_shown(tmp_path: Path, run: Run) -> None:
    log = job(tmp_path, "digits", w0="") / "w0.log"
    log.write_bytes(b"begin\r\n\r  0%|\r 50%|#\r100%|##\nend\n\r  0%|\r 10%|")
    assert run("digits", "w0")[0] == "begin\n100%|##\nend\n 10%|\n"


def test_a_progress_bar_is_followed_and_takes_no_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = job(tmp_path, "digits", w0="")
    shown = []
    with closing(verb._LogFiles(directory, "w0")) as files:
        for period_s, text in (
            (10.0, b"begin\n\r 10%|"),
            (0.0, b"\r 20%|\r 30%|"),
            (0.0, b""),
            (10.0, b"\r 40%|" * 10_000),
            (0.0, b"\r100%|\n"),
        ):
            monkeypatch.setattr(verb, "BAR_S", period_s)
            with (directory / "w0.log").open("ab") as file:
                file.write(text)
            files.show(finish=False)
            shown.append(capsys.readouterr().out)
            ((_, buffer),) = files._lines._buffers.values()
            assert len(buffer._rest) < 10
    assert shown == ["begin\n", " 30%|\n", "", "", "100%|\n"]


def test_characters_that_the_output_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A progress bar in a log, and a terminal in Latin-1."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    job(tmp_path, "digits", w0="é █▏ 42%\n")
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding="latin-1"))
    assert invoke(["logs", "digits", "w0"]) == 0
    assert raw.getvalue().decode("latin-1") == "é ?? 42%\n"


def test_without_a_job_the_newest_one(tmp_path: Path, run: Run) -> None:
    assert "no job has run on this host" in run(code=2)[1]
    old = job(tmp_path, "old", w0="old\n")
    os.utime(old / "abc-0.log", (1, 1))
    job(tmp_path, "new", w0="new\n")
    assert run()[0] == "[w0] new\n"
    assert run("w0")[0] == "new\n"
    (old / "w9.log").symlink_to("removed")
    assert run("w0")[0] == "new\n"


def test_a_job_whose_name_is_that_of_a_worker(tmp_path: Path, run: Run) -> None:
    job(tmp_path, "digits", w3="worker\n")
    job(tmp_path, "w3", w0="job\n")
    assert run("--job", "w3")[0] == "[w0] job\n"
    assert run("w0", "--job=w3")[0] == "job\n"
    assert run("digits", "w3")[0] == run("w3", "--job", "digits")[0] == "worker\n"
    assert "takes a job and a worker" in run("digits", "w3", "--job", "w3", code=2)[1]
    assert "takes a job and a worker" in run("digits", "--job", "w3", code=2)[1]


def test_who_was_not_here_is_said(tmp_path: Path, run: Run) -> None:
    job(tmp_path, "digits", w0="a\n")
    assert run("digits", "w7", code=2)[1] == (
        "edl: w7 of job digits did not run on this host; here: w0\n"
    )
    assert "no worker of job other has written anything on this host" in run("other", code=2)[1]
    assert "takes a job and a worker" in run("digits", "w0", "w1", code=2)[1]


def ended(worker: str | None, host: str) -> Event:
    return Event(1.0, 1, 5, "it left", WorkerExitedDetails(worker, host, 0, 0, ""))


def records(by_slot: bool = False, events: tuple[Event, ...] = ()) -> SimpleNamespace:
    """Return the store of a job: w0 on a and w3 on b train; b has an agent, and c as well.

    A newer edl has written an event, too, so that not all can be read.
    """
    members = (
        Member(0, "a", 0, "10.1.0.7", 9000, 100, "x"),
        Member(3, "b", 0, "10.1.0.8", 9003, 103, "y"),
    )
    now = Snapshot(
        make_job(),
        hosts=(Host("b", 1, "10.1.0.8"), Host("c", 1, "10.1.0.9")),
        members=members,
        assigned=Assigned({"a": 1, "b": 1}, by_slot),
    )
    unread = CoordinationError("an event has the kind 'rescued', which this edl does not know")
    log = SimpleNamespace(
        read=Mock(side_effect=unread),
        read_known=lambda after=-1, unreadable=None: [*enumerate(events)],
    )
    return SimpleNamespace(snapshot=lambda: now, events=log)


@pytest.fixture
def zookeeper(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let ZooKeeper have the records of the job, or fail with an error."""

    def has(store: object) -> None:
        found = {"side_effect": store} if isinstance(store, Exception) else {"return_value": store}
        monkeypatch.setattr(verb, "connected", lambda _: nullcontext())
        monkeypatch.setattr(verb, "choose_job", Mock(**found))

    return has


def test_the_host_of_a_log_is_said_and_what_to_type_there(
    tmp_path: Path, run: Run, zookeeper: Callable[..., None]
) -> None:
    job(tmp_path, "digits", w0="a\n")
    zookeeper(records(events=(ended("w1", "c"), ended(None, "d"), ended("w2", "gone"))))
    there, user = "there, as the user of its `edl run` or `edl join`\n", "which ran on host"
    said = f"no log of w3 of job digits, {user} b (10.1.0.8): run `edl logs digits w3` {there}"
    assert run("digits", "w3", code=1) == ("", f"edl: this host has {said}")
    assert f"{user} c (10.1.0.9): run `edl logs digits w1` {there}" in run("w1", code=1)[1]
    assert f"{user} gone: run `edl logs digits w2` {there}" in run("digits", "w2", code=1)[1]
    assert "did not run on this host; here: w0\n" in run("digits", "w9", code=2)[1]
    assert run("digits", "w0") == ("a\n", "")
    assert run("other", code=1)[1] == (
        "edl: this host has no log of the workers of job other, which ran on hosts a (10.1.0.7), "
        f"b (10.1.0.8), c (10.1.0.9), gone: run `edl logs other` {there}"
    )


def test_under_horovodrun_its_output_has_what_workers_wrote(
    run: Run, zookeeper: Callable[..., None]
) -> None:
    zookeeper(records(by_slot=True))
    assert run("j", "w3", code=1)[1] == (
        "edl: w3 of job j ran on host b (10.1.0.8) under horovodrun: see the output of horovodrun\n"
    )


def test_the_run_before_is_looked_for_on_this_host_only(
    tmp_path: Path, run: Run, zookeeper: Callable[..., None]
) -> None:
    """ZooKeeper has the newest run of that name, with other workers."""
    job(tmp_path, "digits", w0="first\n")
    job(tmp_path, "digits", w0="second\n")
    zookeeper(records())
    assert "did not run on this host; here: w0" in run("digits", "w3", "-p", code=2)[1]


def test_what_hides_the_host_of_a_log_is_said(
    tmp_path: Path, run: Run, zookeeper: Callable[..., None]
) -> None:
    job(tmp_path, "digits", w0="a\n")
    zookeeper(ZooKeeperUnreachable("zk1:2181", 10.0))
    said = run("digits", "w3", code=1)[1]
    assert "w3 of job digits did not run on this host; here: w0. Which host has" in said
    assert "no ZooKeeper answered at zk1:2181" in said
    zookeeper(AccessDenied("digits", "its secret is not known here"))
    assert "is not known: its secret is not known here" in run("digits", "w3", code=1)[1]
    zookeeper(UnknownJob("digits"))
    assert run("digits", "w3", code=2)[1].endswith("did not run on this host; here: w0\n")
    log_directory(tmp_path / "edl", "digits", fresh=True)  # a run that has left nothing
    assert "no worker of job digits has written anything" in run("digits", code=2)[1]


@pytest.mark.parametrize("words", [("digts",), ("digts", "w0")])
def test_a_mistyped_name_is_that_of_no_job(
    tmp_path: Path, run: Run, zookeeper: Callable[..., None], words: tuple[str, ...]
) -> None:
    job(tmp_path, "digits", w0="a\n")
    zookeeper(UnknownJob("digts", ("digits",)))
    assert run(*words, code=94)[1].startswith("edl: there is no job named 'digts'")
    zookeeper(AccessDenied("digts", "its secret is not known here"))
    assert "is not known: its secret is not known here" in run(*words, code=1)[1]


class ClusterLogs:
    """The logs of a job of a cluster: w0 on this host and w1 on another one write a line a look."""

    found, silent, names, tails = True, dict[str, str](), ("w0", "w1"), dict[str, str]()

    def __init__(self, *_: object) -> None:
        self.looks = 0
        self.reads = 0

    def poll(self) -> None:
        self.looks += 1

    def read(self) -> Iterator[tuple[HostedLog, Iterator[bytes]]]:
        self.reads += 1
        for name in self.names:
            yield HostedLog(name, "h"), iter([f"line {self.reads}\n".encode()])


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[LifeState | Exception]:
    """Let ZooKeeper give these answers, one after another, about a job of a cluster."""
    found: list[LifeState | Exception] = [LifeState.RUNNING]

    def get(_: str) -> SimpleNamespace:
        answer = found.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(life=SimpleNamespace(run="digits-1", state=answer, reason=""))

    store = SimpleNamespace(jobs=SimpleNamespace(get=get))
    monkeypatch.setattr(verb, "connected", lambda _: nullcontext())
    monkeypatch.setattr(verb, "knows_clusters", lambda: True)
    monkeypatch.setattr(verb, "store_of_job", lambda *_: store)
    monkeypatch.setattr(verb, "ClusterJobLogs", ClusterLogs)
    monkeypatch.setattr(verb, "FOLLOW_S", 0.0)
    return found


def lines(reads: int) -> str:
    return "".join(f"[w0] line {n}\n[w1] line {n}\n" for n in range(1, reads + 1))


def test_a_log_is_followed_while_zookeeper_is_away(
    tmp_path: Path, run: Run, answers: list[LifeState | Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    job(tmp_path, "digits", w0="line 1\n")
    away = CoordinationError("ZooKeeper is away")
    answers += [LifeState.RUNNING, away, away, LifeState.RUNNING, LifeState.ENDED]
    assert run("digits", "-f") == (lines(3), "")
    monkeypatch.setattr(waiting, "AWAY_S", 0.0)
    answers += [LifeState.RUNNING, LifeState.RUNNING, away]
    assert run("digits", "-f", code=1) == (lines(1), "edl: ZooKeeper is away\n")


@pytest.mark.parametrize("state", [[], [LifeState.RUNNING]])
def test_without_zookeeper_at_first_the_logs_of_this_host_are_shown(
    tmp_path: Path, run: Run, answers: list[LifeState | Exception], state: list[LifeState]
) -> None:
    job(tmp_path, "digits", w0="line 1\n")
    answers[:] = [*state, CoordinationError("ZooKeeper is away")]
    assert run("digits") == ("[w0] line 1\n", "")


def test_a_job_is_deleted_while_its_logs_are_followed(
    tmp_path: Path, run: Run, answers: list[LifeState | Exception]
) -> None:
    job(tmp_path, "digits", w0="line 1\n")
    answers += [LifeState.RUNNING, UnknownJob("digits")]
    out, said = run("digits", "-f", code=1)
    assert out == lines(2)
    assert said == "edl: job digits was deleted while its logs were followed\n"


def test_the_hosts_of_workers_with_and_without_a_record() -> None:
    seat = RingMember(4, "e", 0, "10.1.0.10", 9004)
    generation = Generation(1, 1, (seat,), 4, (), (), "so it began")
    known: Mapping[str, str] = worker_hosts(
        Snapshot(make_job(), generation=generation), [ended("w1", "c")]
    )
    assert known == {"w1": "c", "w4": "e"}


def test_a_job_that_starts_again_begins_with_empty_logs(tmp_path: Path, run: Run) -> None:
    job(tmp_path, "digits", w0="first\n", w1="first\n")
    assert "no run of job digits before the newest" in run("digits", "--previous", code=2)[1]
    job(tmp_path, "digits", w3="second\n")
    assert run("digits")[0] == "[w3] second\n"
    assert run("digits", "--previous")[0] == "[w0] first\n[w1] first\n"
    assert run("digits", "w1", "-p")[0] == "first\n"
    assert "one of --previous and --follow" in run("digits", "-p", "-f", code=2)[1]


def test_a_few_earlier_runs_keep_their_logs(tmp_path: Path, run: Run) -> None:
    for number in range(KEPT_RUNS + 7):  # more than ten: they are not in the order of their text
        logs = job(tmp_path, "digits", w0=f"{number}\n")
    (logs / "run.txt").touch()
    assert [path.name for path in earlier_runs(logs)] == [f"run{7 + n}" for n in range(KEPT_RUNS)]
    assert run("digits", "--previous")[0] == f"[w0] {KEPT_RUNS + 5}\n"
    log_directory(tmp_path / "edl", "digits", fresh=True)
    log_directory(tmp_path / "edl", "digits", fresh=True)  # a run that has left nothing
    assert run("digits", "--previous")[0] == f"[w0] {KEPT_RUNS + 6}\n"


def test_what_another_agent_removes_meanwhile_is_not_put_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = log_directory(tmp_path, "digits", fresh=True)
    for name in ("a-0.log", "a-0.process"):
        (logs / name).write_text("x")
    rename = Path.rename

    def removed_first(path: Path, to: Path) -> Path:
        if path.suffix == ".process":
            path.unlink()
        return rename(path, to)

    monkeypatch.setattr(Path, "rename", removed_first)
    log_directory(tmp_path, "digits", fresh=True)
    (run,) = earlier_runs(logs)
    assert [path.name for path in run.iterdir()] == ["a-0.log"]
