"""How `edl host` learns how agents have ended, though it has not started them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edl import config
from edl.cluster.host.agents import AgentOptions, HostAgents, StartOfRun
from edl.cluster.host.logs import LogPlaces
from edl.cluster.host.users import JobUser, JobUsers, SecretFiles
from edl.cluster.host_jobs import LastAgent, RunProcess
from edl.cluster.manifest import JobManifest
from edl.cluster.records import HostAssignment, JobAssignment
from edl.host.process import AgentEnd, AgentResult

ASSIGNED = HostAssignment({"j": JobAssignment("r1", (0,))})
AGENT = RunProcess(7, 1, "j", "r1", is_agent=True)
BEGIN = "edl host: an agent starts at 2026-11-26 14:00:00"


@pytest.fixture
def places(tmp_path: Path) -> LogPlaces:
    (tmp_path / "agents").mkdir()
    return LogPlaces(tmp_path / "jobs", tmp_path / "agents")


@pytest.fixture
def agents(places: LogPlaces, tmp_path: Path) -> HostAgents:
    options = AgentOptions("a", "m", 2, "10.0.0.5", "zoo:2181")
    return HostAgents(options, places, {}, SecretFiles(tmp_path / "secrets"))


def last_line(end: AgentEnd, **values: Any) -> str:
    return json.dumps(AgentResult("j", "r1", "a", end, **values).to_json())


def test_the_last_line_of_the_log_says_it(places: LogPlaces, agents: HostAgents) -> None:
    finished = last_line(AgentEnd.FINISHED, exit_code=0, reason="trained 5 steps")
    log = places.of_agent("j", "r1")
    log.write_text(f"{BEGIN}\nedl: a line\n{{no JSON\n{finished}\na warning\n")
    last = LastAgent("r1", 0, "trained 5 steps", is_final=True, ended_s=9.0)
    assert agents.observe(ASSIGNED, [], 9.0) == {"j": last}
    assert agents.observe(ASSIGNED, [], 10.0) == {"j": last}, "it is read once"
    later = HostAssignment({"j": JobAssignment("r2", (0,))})
    assert agents.observe(later, [], 10.0) == {"j": last}, "of an earlier run"
    assert agents.observe(HostAssignment(), [], 10.0) == {}


@pytest.mark.parametrize(
    ("end", "is_final", "has_left"),
    [
        (AgentEnd.OVER, True, False),
        (AgentEnd.FAILED, True, False),
        (AgentEnd.STOPPED, True, False),
        (AgentEnd.LEFT, False, True),
        (AgentEnd.PREEMPTED, False, False),
        (AgentEnd.ERROR, False, False),
        (AgentEnd.REFUSED, True, False),
        (AgentEnd.ALREADY_HERE, False, False),
        (AgentEnd.NO_SUCH_JOB, False, False),
    ],
)
def test_after_some_ends_another_one_comes(
    end: AgentEnd, is_final: bool, has_left: bool, places: LogPlaces, agents: HostAgents
) -> None:
    places.of_agent("j", "r1").write_text(f"{BEGIN}\n{last_line(end, exit_code=9)}\n")
    found = agents.observe(ASSIGNED, [], 9.0)["j"]
    assert (found.is_final, found.has_left, found.exit_code) == (is_final, has_left, 9)
    assert found.reason == f"the agent has ended: {end}"


def test_an_agent_that_was_killed_says_nothing(places: LogPlaces, agents: HostAgents) -> None:
    earlier = last_line(AgentEnd.ERROR)
    places.of_agent("j", "r1").write_text(f"{BEGIN}\n{earlier}\n{BEGIN}\nedl: a line\n")
    assert agents.observe(ASSIGNED, [AGENT], 5.0) == {}
    found = agents.observe(ASSIGNED, [], 9.0)["j"]
    assert (found.reason, found.exit_code, found.failures) == ("the agent was killed", None, 1)
    assert agents.observe(ASSIGNED, [AGENT], 10.0)["j"] == found
    assert agents.observe(ASSIGNED, [], 11.0)["j"].failures == 2
    assert agents.observe(ASSIGNED, [AGENT], 12.0)["j"].failures == 2
    assert agents.observe(ASSIGNED, [], 99.0)["j"].failures == 0, "it has lived"


def test_the_reason_of_an_agent_is_one_line_without_terminal_sequences(
    places: LogPlaces, agents: HostAgents
) -> None:
    """Its log is that of a tenant's user, and what it says goes to the log of `edl host`."""
    line = last_line(AgentEnd.ERROR, reason="\x1b[2J\nforged\ud800")
    places.of_agent("j", "r1").write_text(f"{BEGIN}\n{line}\n")
    assert agents.observe(ASSIGNED, [], 9.0)["j"].reason == "\ufffd[2J forged\ufffd"


def test_the_end_of_an_agent_that_another_edl_host_has_started_is_told_at_once(
    agents: HostAgents,
) -> None:
    ended = threading.Event()
    agents.on_exit = ended.set
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        found = [replace(AGENT, pid=process.pid)]
        for now_s in (1.0, 2.0):
            agents.observe(ASSIGNED, found, now_s)
        assert not ended.is_set()
        process.kill()
        assert ended.wait(20.0)


def test_one_that_cannot_be_started_is_told(agents: HostAgents) -> None:
    agents.failed_to_start("j", "r1", OSError(28, "No space left on device"), 5.0)
    found = agents.observe(ASSIGNED, [], 5.0)["j"]
    assert found.reason == "the agent cannot be started: No space left on device"
    assert found.failures == 1


def test_a_log_that_cannot_be_written_is_closed(
    places: LogPlaces, agents: HostAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk `edl host` tries again for as long as the run is assigned to it."""

    def full(descriptor: int, text: bytes) -> int:
        raise OSError(28, "No space left on device")

    start = StartOfRun("r1", JobManifest("j", ("true",), 1, 1), "secret")
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space left on device"):
            agents.start(start)
    log = places.of_agent("j", "r1")
    assert log.exists()
    opened = [os.readlink(one) for one in Path("/proc/self/fd").iterdir() if one.is_symlink()]
    assert str(log) not in opened


@pytest.mark.parametrize("variable", ["HOME", "XDG_STATE_HOME"])
def test_a_manifest_does_not_say_where_agents_keep_their_files(
    variable: str, agents: HostAgents, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logs that were written below the manifest's directory could not be read any more."""
    elsewhere = str(tmp_path / "elsewhere")
    manifest = JobManifest("j", ("true",), 1, 1, env={variable: elsewhere})
    for name, value in agents._environment_of(
        StartOfRun("r1", manifest, "secret"), 5, None
    ).items():
        monkeypatch.setenv(name, value)
    assert config.state_dir() == tmp_path, "that of `edl host`, where it looks for logs"
    of_workers = config.environment_for_worker()
    assert of_workers[variable] == elsewhere
    assert config.STATE_VARIABLE not in of_workers


def test_agents_of_a_user_keep_their_files_in_its_home(places: LogPlaces, tmp_path: Path) -> None:
    user = JobUser("alice", 1001, 1001, (1001,), tmp_path / "alice")
    users = JobUsers({"ann": user})
    options = AgentOptions("a", "m", 2, "10.0.0.5", "zoo:2181")
    secrets = SecretFiles(tmp_path / "secrets")
    agents = HostAgents(options, replace(places, users=users), {}, secrets, users)
    manifest = JobManifest("ann.j", ("true",), 1, 1, env={"HOME": "/data"})
    found = agents._environment_of(StartOfRun("r1", manifest, "secret"), 5, None)
    assert found["EDL_STATE_DIR"] == str(tmp_path / "alice/.local/state/edl")


def test_a_log_that_cannot_be_looked_at_is_none(
    agents: HostAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stale(path: Path) -> bool:
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(Path, "exists", stale)
    assert agents.observe(ASSIGNED, [], 5.0) == {}
