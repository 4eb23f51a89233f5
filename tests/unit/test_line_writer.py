"""No process that lives on ends because nobody takes what it prints."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from types import SimpleNamespace
from typing import IO, Any

import pytest

from edl.api import listening
from edl.api import server as api_server
from edl.cli import cluster as cluster_verb
from edl.cli import host as host_verb
from edl.cli.common import line_writer, settings_of_agent
from edl.cli.dashboard import dashboard
from edl.dashboard import server as dashboard_server

Say = Callable[[str], None]
HOSTS = "127.0.0.1:1"


@pytest.fixture(params=["full disk", "closed pipe"])
def output(request: pytest.FixtureRequest) -> Iterator[IO[str]]:
    if request.param == "full disk":
        descriptor = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, descriptor = os.pipe()
        os.close(reader)
    file = os.fdopen(descriptor, "w", buffering=1)
    yield file
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)  # for what the file still has
    os.close(null)
    file.close()


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[Say]:
    found: list[Say] = []
    session = SimpleNamespace(hosts=HOSTS, access=SimpleNamespace(secret="s", job="lab"))
    nodes = SimpleNamespace(session=session, check_administrator=lambda what: None)

    @contextmanager
    def connect(*_: Any) -> Iterator[Any]:
        yield SimpleNamespace(nodes=nodes, hosts=HOSTS)

    class Part:
        def __init__(self, *arguments: Any, **_: Any) -> None:
            found.extend(one for one in arguments if callable(one))

        def __enter__(self) -> None:
            pass

        def __exit__(self, *_: object) -> None:
            pass

        def start(self) -> None:
            pass

        def end(self, within_s: float) -> None:
            pass

    for module in ("cluster", "host", "dashboard"):
        monkeypatch.setattr(f"edl.cli.{module}.connected_cluster", connect)
    store = SimpleNamespace(paths=SimpleNamespace(name="lab"))
    monkeypatch.setattr("edl.cli.dashboard.connected", connect)
    monkeypatch.setattr("edl.cli.dashboard.known_store", lambda *_: store)
    monkeypatch.setattr(dashboard_server, "run_cluster_dashboard", lambda _, *rest: Part(*rest))
    for name in ("BackgroundProcess", "Controller", "HistoryThread"):
        monkeypatch.setattr(cluster_verb, name, Part)
    client = SimpleNamespace(policy=SimpleNamespace(get=lambda: SimpleNamespace(policy="fair")))
    monkeypatch.setattr(cluster_verb, "connected", connect)
    monkeypatch.setattr(cluster_verb, "access_to_start", lambda *_: (session.access, True))
    monkeypatch.setattr(cluster_verb, "Cluster", lambda *_, **__: client)
    monkeypatch.setattr(cluster_verb, "run_controller", lambda *_: None)
    monkeypatch.setattr(host_verb, "run_host_daemon", Part)
    monkeypatch.setattr(api_server, "run_server", Part)
    monkeypatch.setattr(listening, "PACKAGES", ())
    return found


def test_a_controller_and_what_is_beside_it_live_on(said: list[Say], output: IO[str]) -> None:
    with redirect_stdout(output):
        cluster_verb.start(
            "lab", local=True, slots=1, api="0", address="127.0.0.1", zookeeper=HOSTS, policy="edl"
        )
        assert len(said) == 4
        for say in said:
            say("cannot plan: ZooKeeper is away")


def test_a_host_lives_on(said: list[Say], output: IO[str]) -> None:
    with redirect_stdout(output):
        host_verb.host("lab", slots=1, address="127.0.0.1", zookeeper=HOSTS)
        (say,) = said
        say("ZooKeeper is back")


def test_the_api_lives_on(said: list[Say], output: IO[str]) -> None:
    with redirect_stdout(output):
        cluster_verb.serve_api("0", cluster="lab", zookeeper=HOSTS)
        (say,) = said
        say("serves the HTTP API")


def test_a_dashboard_lives_on(said: list[Say], output: IO[str]) -> None:
    with redirect_stdout(output):
        dashboard()
        (say,) = said
        say("shows cluster lab")


def test_a_misspelled_variable_does_not_keep_an_agent_from_its_start(
    monkeypatch: pytest.MonkeyPatch, output: IO[str]
) -> None:
    monkeypatch.setattr("edl.config.misspelled", lambda: {"EDL_MIN_N": "EDL_MIN_NP"})
    with redirect_stderr(output):
        assert settings_of_agent(host="a").host == "a"


def test_each_sentence_is_a_line_after_the_time(capsys: pytest.CaptureFixture[str]) -> None:
    line_writer()("one")
    line_writer(with_time=True)("two")
    assert re.fullmatch(r"one\n\d\d:\d\d:\d\d two\n", capsys.readouterr().out)
