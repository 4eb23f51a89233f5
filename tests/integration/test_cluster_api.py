"""The HTTP API of a real controller: jobs are submitted, watched and steered over it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from cli_shell import STANDIN, WAIT_S, Running, Shell, shell, until
from hand_host import HandHost

from edl.client.http_api import ApiAnswer, ApiClient
from edl.coordination.access import Access
from edl.coordination.secrets import new_secret
from edl.http.api_credentials import api_key

pytestmark = [pytest.mark.integration, pytest.mark.long]
__all__ = ["shell"]

LAB = Access("lab", new_secret())


@pytest.fixture
def cluster(shell: Shell) -> Shell:
    """Return a shell with the secret of the cluster `lab`."""
    shell.environment["EDL_SECRET"] = LAB.secret
    return shell


def url_of(controller: Running) -> str:
    """Return where the controller's API is served."""
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
    found: list[ApiAnswer] = []

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
        shown = api.call("GET", "/v1/jobs/digits").value["slot_s"]
        [past] = api.call("GET", "/v1/history/jobs").value["jobs"]
        assert (past["job"], past["result"], past["runs"]) == ("digits", "finished", 2)
        assert past["slot_s"] == pytest.approx(shown, rel=0.2)
        slots = api.call("GET", "/v1/history/slots?job=digits").value["slots"]
        assert [(one["host"], one["slots"]) for one in slots] == [("a", 2), ("a", 2)]
        asked = [one["kind"] for one in api.call("GET", "/v1/history/audit").value["audit"]]
        assert asked == ["submitted", "wanted", "wanted"]
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
    assert statuses[200] >= 10, statuses
    assert statuses[201 if is_valid else 422] >= 5, statuses
    assert "Traceback" not in controller.output
