"""The HTTP API of a real controller: jobs are submitted, watched and steered over it."""

from __future__ import annotations

import itertools
import json
import re
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from cli_shell import STANDIN, WAIT_S, Running, Shell, shell, until
from hand_host import HandHost

from edl.client.http_api import ApiClient, ApiResponse
from edl.errors import CoordinationError
from edl.http.signing import api_key
from edl.testing.zookeeper import ensemble, free_ports
from edl.zookeeper.access import Access, new_secret

pytestmark = [pytest.mark.integration, pytest.mark.long]
__all__ = ["shell"]
LAB = Access("lab", new_secret())
JOBS = 40


@pytest.fixture
def cluster(shell: Shell) -> Shell:
    shell.environment["EDL_SECRET"] = LAB.secret
    return shell


def url_of(controller: Running) -> str:
    controller.expect("serves the HTTP API at ")
    found = re.search(r"serves the HTTP API at (\S+)", controller.output)
    assert found is not None
    return found[1]


@pytest.fixture
def controller(cluster: Shell) -> Iterator[Running]:
    one = cluster.start("cluster", "start", "--name", "lab", "--policy", "fifo", "--api", "0")
    yield one
    one.process.terminate()
    assert one.wait() == 0


def manifest(shell: Shell, name: str, *options: str, **changes: Any) -> dict[str, Any]:
    command = [sys.executable, STANDIN, *options]
    values = {"name": name, "command": command, "min": 1, "max": 4, "cwd": str(shell.directory)}
    return values | changes


def wait_for_state(api: ApiClient, job: str, state: str) -> None:
    found: list[ApiResponse] = []

    def is_so() -> bool:
        found[:] = [api.call("GET", f"/v1/jobs/{job}")]
        return found[0].status == 200 and found[0].value["job"]["state"] == state

    until(is_so, WAIT_S, lambda: f"{job} is not {state}: {found}")


def test_a_job_over_http(cluster: Shell, controller: Running) -> None:
    end = cluster.directory / "end"
    with (
        ApiClient(url_of(controller), "lab", secret=LAB.secret) as api,
        HandHost(cluster, LAB, "a", 2),
    ):
        digits = manifest(cluster, "digits", "--until", str(end), max=2)
        assert api.call("POST", "/v1/jobs?key=night-7", digits) == (201, {"job": "digits"})
        assert api.call("POST", "/v1/jobs?key=night-7", digits).status == 201
        again = api.call("POST", "/v1/jobs", digits)
        assert again.status == 409
        assert "has a job named 'digits' already" in again.value["message"]
        wait_for_state(api, "digits", "running")
        assert api.call("POST", "/v1/jobs/digits/halt") == (
            200,
            {"goal": "halt", "priority": 0, "removed": False},
        )
        waited = api.call("GET", "/v1/jobs/digits/wait?timeout_s=40").value
        assert (waited["over"], waited["job"]["state"]) == (True, "halted")
        assert api.call("POST", "/v1/jobs/digits/resume").status == 200
        wait_for_state(api, "digits", "running")
        end.touch()
        waited = api.call("GET", "/v1/jobs/digits/wait?timeout_s=40").value
        assert (waited["over"], waited["job"]["result"]) == (True, "finished")
        events = api.call("GET", "/v1/jobs/digits/events").value["events"]
        assert events[0]["kind"] == "submitted"
        assert events[0]["by"] == "127.0.0.1 by HTTP"
        assert api.call("GET", "/v1/cluster").value["slots"] == 2
        assert api.call("GET", "/v1/jobs/digits/logs").status == 200
        hints = api.call("GET", "/v1/jobs/digits/hints").value
        assert (hints["min"], hints["max"], hints["sched_hints"]["initBatchSize"]) == (1, 2, 2)
        shown = api.call("GET", "/v1/jobs/digits").value["slot_s"]
        [past] = api.call("GET", "/v1/history/jobs").value["jobs"]
        assert (past["job"], past["result"], past["runs"]) == ("digits", "finished", 2)
        assert past["slot_s"] == pytest.approx(shown, rel=0.2)
        slots = api.call("GET", "/v1/history/slots?job=digits").value["slots"]
        assert [(one["host"], one["slots"]) for one in slots] == [("a", 2), ("a", 2)]
        asked = [one["kind"] for one in api.call("GET", "/v1/history/audit").value["audit"]]
        assert asked == ["submitted", "wanted", "wanted"]
    told = cluster.edl("hints", "digits", "--cluster", "lab").stdout
    assert told.startswith("workers      1 to 2; it asks for 2\nsamples/s    ")
    told = cluster.edl("history", "digits", "--json", "--cluster", "lab")
    assert json.loads(told.stdout) == {**past, "slots": slots}, told.stderr


@pytest.mark.parametrize("is_valid", [True, False], ids=["valid", "invalid"])
def test_whatever_is_sent_is_answered_as_described(
    cluster: Shell, controller: Running, is_valid: bool
) -> None:
    import fuzz_api  # what it imports takes long

    with ApiClient(url_of(controller), "lab", secret=LAB.secret) as api:
        assert api.call("POST", "/v1/jobs", manifest(cluster, fuzz_api.KNOWN)).status == 201
    statuses = fuzz_api.fuzz(url_of(controller), api_key(LAB.secret, "lab"), is_valid)
    assert 401 not in statuses
    # of what is invalid most is refused, unknown parameters too
    assert statuses[200 if is_valid else 422] >= 10, statuses
    assert statuses[201 if is_valid else 422] >= 5, statuses
    assert "Traceback" not in controller.output


def test_tokens_over_tls(cluster: Shell) -> None:
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem"]
    command += ["-out", "cert.pem", "-subj", "/CN=edl", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(command, cwd=cluster.directory, check=True, capture_output=True, timeout=60)
    files = ("--tls-cert", "cert.pem", "--tls-key", "key.pem")
    one = cluster.start("cluster", "start", "--name", "lab", "--api", "0", *files)
    url = url_of(one)
    assert url.startswith("https://127.0.0.1:")
    token = cluster.edl("cluster", "token", "--valid", "1h", "--cluster", "lab").stdout.strip()
    context = ssl.create_default_context(cafile=str(cluster.directory / "cert.pem"))
    for options in ({"token": token}, {"secret": LAB.secret}):
        with ApiClient(url, "lab", tls=context, **options) as api:
            assert api.call("GET", "/v1/jobs") == (200, {"jobs": []})
    with ApiClient(url, "lab", tls=context, token=f"{token}0") as api:
        assert api.call("GET", "/v1/jobs").status == 401
    one.process.terminate()
    assert one.wait() == 0


def test_a_killed_api_comes_back_and_goes_with_its_controller(cluster: Shell) -> None:
    controller = cluster.start("cluster", "start", "--name", "lab", "--api", "0")
    url_of(controller)
    [api] = [one for one in cluster.processes() if "api" in one.cmdline()]
    api.kill()
    controller.expect("the HTTP API has ended with -9; it is started again in 1 s")
    until(lambda: controller.output.count("serves the HTTP API at ") == 2, WAIT_S)
    url = controller.output.rpartition("serves the HTTP API at ")[2].split()[0]
    with ApiClient(url, "lab", secret=LAB.secret) as client:
        assert client.call("GET", "/v1/jobs").status == 200
        controller.process.kill()
        until(lambda: not cluster.processes(), WAIT_S)
        with pytest.raises(CoordinationError, match=r"the HTTP API at .* does not answer"):
            client.call("GET", "/v1/jobs")


def test_what_was_acknowledged_is_there_once_whatever_is_killed(cluster: Shell) -> None:
    """Two controllers with an API each; the APIs and the leader are killed by turns."""
    ports = [str(port) for port in free_ports(2)]
    start = ("cluster", "start", "--name", "lab", "--api")
    controllers = [cluster.start(*start, port) for port in ports]
    urls = [url_of(one) for one in controllers]
    jobs = [f"j{number}" for number in range(JOBS)]
    with ExitStack() as stack:
        apis = [
            stack.enter_context(ApiClient(url, "lab", secret=LAB.secret, timeout_s=20.0))
            for url in urls
        ]
        for number, job in enumerate(jobs):
            if number % 6 == 5:
                port = ports[number // 6 % 2]
                for one in cluster.processes():
                    if f"127.0.0.1:{port}" in one.cmdline():
                        one.kill()
            if number == JOBS // 2:
                controllers[0].process.kill()
                controllers[0] = cluster.start(*start, ports[0])
            tries = itertools.cycle(apis)
            until(lambda: acknowledged(next(tries), cluster, job), WAIT_S)  # noqa: B023
        until(lambda: acknowledged(apis[0], cluster, jobs[0]), WAIT_S)
        found = apis[0].call("GET", "/v1/jobs").value["jobs"]
        events = apis[0].call("GET", "/v1/events").value["events"]
    assert "the HTTP API has ended with -9" in controllers[1].output
    assert [one["name"] for one in found] == jobs
    assert [one["job"] for one in events if one["kind"] == "submitted"] == jobs
    for one in controllers:
        one.process.terminate()
        assert one.wait() == 0


def acknowledged(api: ApiClient, shell: Shell, job: str) -> bool:
    try:
        answer = api.call("POST", f"/v1/jobs?key={job}", manifest(shell, job))
    except CoordinationError:
        return False
    assert answer.status in (201, 503), answer
    return answer.status == 201


def test_what_cannot_be_served_is_refused_in_one_sentence(cluster: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for words in (("start", "--name", "lab", "--api", port), ("api", port)):
            refused = cluster.edl("cluster", *words)
            said = f"edl: the API cannot listen at 127.0.0.1:{port}: Address already in use; "
            if words[0] == "api":
                said = "edl: there is no cluster"
            assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
            assert refused.stderr.startswith(said)
    start = ("cluster", "start", "--name", "lab", "--api", "0")
    refused = cluster.edl(*start, "--tls-cert", "cert.pem")
    assert refused.stderr == "edl: --tls-key is missing: TLS needs a certificate and its key\n"


def test_without_zookeeper_the_api_says_so(tmp_path: Path) -> None:
    with ensemble(tmp_path, 1) as (server,):
        shell = Shell(tmp_path, server.hosts)
        shell.environment["EDL_SECRET"] = LAB.secret
        one = shell.start("cluster", "start", "--name", "lab", "--api", "0")
        with ApiClient(url_of(one), "lab", secret=LAB.secret) as api:
            assert api.call("POST", "/v1/jobs?key=k", manifest(shell, "digits")).status == 201
            server.kill()
            began_s = time.monotonic()
            away = api.call("POST", "/v1/jobs/digits/halt")
            assert (away.status, away.value["error"]) == (503, "CoordinationError")
            assert "ZooKeeper" in away.value["message"]
            assert time.monotonic() - began_s < 15.0
            assert api.call("GET", "/health") == (200, {"serves": True})
            server.start()
            until(lambda: api.call("POST", "/v1/jobs/digits/halt").status == 200, WAIT_S)
            assert api.call("POST", "/v1/jobs?key=k", manifest(shell, "digits")).status == 201
        one.process.terminate()
        assert one.wait() == 0
        shell.close()
