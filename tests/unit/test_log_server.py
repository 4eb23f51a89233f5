"""What `edl host` gives as the logs of a job whose user attacks it."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from edl.cluster.host.logs import LogPlaces, LogServer
from edl.cluster.host.users import JobUser, JobUsers
from edl.cluster.records import LOGS_PATH
from edl.http.server import HttpRequest, Response
from edl.http.signing import authorization, http_key

JOB, OWN, SECRET = "ann.x", "5" * 64, "of the cluster"


class Host:
    def __init__(self, root: Path, uid: int) -> None:
        self.secret = root / "secret.log"
        self.secret.write_text(SECRET)
        ann = JobUser("alice", uid, uid, (uid,), root / "alice")
        self.places = LogPlaces(root / "jobs", root / "agents", JobUsers({"ann": ann}))
        self.places.agents.mkdir(mode=0o700)
        self.places.of_agent(JOB, "r1").write_text("an agent")
        self.logs = self.places.of_workers(JOB)
        self.logs.mkdir(parents=True)
        self.log, self.former = self.logs / "w0.log", self.logs / "w0.log.1"
        self.server = LogServer("127.0.0.1", "lab", "0" * 64, self.places, lambda job: OWN)

    def ask(self, name: str = "") -> Response:
        async def answer() -> Response:
            path = f"{LOGS_PATH}/{JOB}/{name}".rstrip("/")
            nonce = self.server._guard.nonce()
            signed = authorization(http_key(OWN, JOB), nonce, 0, "GET", path, b"")
            request = HttpRequest("GET", path, "", b"", signed)
            return await asyncio.wait_for(self.server.answer_other(request), 5)

        return asyncio.run(answer())

    def names(self) -> set[str]:
        return set(json.loads(self.ask().body))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path, os.geteuid())


def test_logs_of_its_own_user_are_sent(host: Host) -> None:
    host.log.write_text("two")
    host.former.write_text("one")
    assert json.loads(host.ask().body) == {"agent-r1": 8, "w0": 6}
    assert host.ask("w0").body.endswith(b"\none")
    assert host.ask("agent-r1").body.endswith(b"\nan agent")


def test_a_link_in_place_of_a_log_is_not_followed(host: Host) -> None:
    host.log.symlink_to(host.secret)
    (host.logs / "w1.log").symlink_to("w1.log")  # leads nowhere
    assert host.names() == {"agent-r1"}
    assert host.ask("w0").status == 404


def test_a_link_in_place_of_a_former_log_is_not_followed(host: Host) -> None:
    host.log.write_text("two")
    host.former.symlink_to(host.secret)
    assert host.names() == {"agent-r1"}
    assert host.ask("w0") == Response(404)


@pytest.mark.parametrize("depth", [0, 1], ids=["logs", "job"])
def test_a_link_in_place_of_a_directory_is_not_followed(
    host: Host, depth: int, tmp_path: Path
) -> None:
    there = tmp_path / "there" / "logs"
    there.mkdir(parents=True)
    (there / "w0.log").write_text(SECRET)
    host.logs.rmdir()
    if depth:
        host.logs.parent.rmdir()
        host.logs.parent.symlink_to(there.parent)
    else:
        host.logs.symlink_to(there)
    assert host.log.read_text() == SECRET
    assert host.names() == {"agent-r1"}
    assert host.ask("w0") == Response(404)


@pytest.mark.parametrize("name", ["w0.log", "w0.log.1"])
def test_a_pipe_that_nobody_writes_holds_up_nothing(host: Host, name: str) -> None:
    host.log.touch()
    (host.logs / name).unlink(missing_ok=True)
    os.mkfifo(host.logs / name)
    assert host.names() == {"agent-r1"}
    assert host.ask("w0") == Response(404)


def test_files_of_the_user_of_the_host_are_no_logs_of_workers(tmp_path: Path) -> None:
    host = Host(tmp_path, os.geteuid() + 1)
    for name in ("w0.log", "agent-r2.log"):
        os.link(host.secret, host.logs / name)
    assert host.names() == {"agent-r1"}
    assert host.ask("w0") == host.ask("agent-r2") == Response(404)
    assert host.ask("agent-r1").body.endswith(b"\nan agent"), "root has opened that one"
    host.places.agents.chmod(0o777)
    assert host.names() == set()
    assert host.ask("agent-r1") == Response(404), "anybody may have put it there"
