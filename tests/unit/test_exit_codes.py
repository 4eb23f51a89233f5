"""The ends of an agent: a code for each, and the last line of output that says more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from made import make_job

from edl.cli.main import invoke
from edl.errors import (
    REFUSED_EXIT,
    AccessDenied,
    AgentExists,
    ConfigError,
    CoordinationError,
    EdlError,
    JobExists,
    RunEnded,
    UnknownJob,
    UsageError,
    ZooKeeperUnreachable,
)
from edl.host.process import (
    EXIT_CODES,
    MEANINGS,
    AgentEnd,
    agent_exit_code,
    end_of_error,
    end_of_job,
    run_exit_code,
)
from edl.records import JobState

RUN = "0123456789abcdef"
AGENT = ["agent", "--job", "j", "--run", RUN, "--host", "a"]


def test_each_end_has_a_meaning_and_a_code_that_is_no_other_ones() -> None:
    assert {*MEANINGS} == {*AgentEnd}
    assert {*AgentEnd} - {*EXIT_CODES} == {AgentEnd.FINISHED, AgentEnd.FAILED}
    assert len({*EXIT_CODES.values()}) == len(EXIT_CODES)
    for end, code in EXIT_CODES.items():
        if end not in (AgentEnd.ERROR, AgentEnd.REFUSED):
            assert 2 < code < 126
            assert code not in range(64, 79), "of sysexits.h"
            assert code != REFUSED_EXIT


@pytest.mark.parametrize(
    ("end", "of_job", "code"),
    [
        (AgentEnd.FINISHED, 0, 0),
        (AgentEnd.FINISHED, 3, 3),  # a worker failed after the training
        (AgentEnd.FAILED, 7, 7),
        (AgentEnd.STOPPED, 0, 90),
        (AgentEnd.LEFT, 0, 91),
        (AgentEnd.PREEMPTED, 0, 92),
        (AgentEnd.PREEMPTED, 143, 92),  # a second signal
        (AgentEnd.OVER, 1, 93),
        (AgentEnd.NO_SUCH_JOB, 1, 94),
        (AgentEnd.ALREADY_HERE, 95, 95),
        (AgentEnd.REFUSED, 1, 2),
        (AgentEnd.ERROR, 1, 1),
    ],
)
def test_the_code_of_an_agent(end: AgentEnd, of_job: int, code: int) -> None:
    assert agent_exit_code(end, of_job) == code


def test_edl_run_ends_with_0_only_if_the_job_has_trained_to_its_end() -> None:
    """Its host may be drained, and the job train on elsewhere."""
    assert run_exit_code(AgentEnd.FINISHED, 0) == 0
    assert run_exit_code(AgentEnd.LEFT, 0) == 91
    assert run_exit_code(AgentEnd.STOPPED, 143) == 143
    assert run_exit_code(AgentEnd.FAILED, 7) == 7


@pytest.mark.parametrize(
    ("error", "end"),
    [
        (UnknownJob("j"), AgentEnd.NO_SUCH_JOB),
        (AccessDenied("j", "it has another secret"), AgentEnd.REFUSED),  # there is such a job
        (AgentExists("a", "j", 7, "10.0.0.1"), AgentEnd.ALREADY_HERE),
        (RunEnded("run 1 is over"), AgentEnd.OVER),
        (JobExists("j", ["host a"]), AgentEnd.REFUSED),
        (ConfigError("x", "no"), AgentEnd.REFUSED),
        (UsageError("no"), AgentEnd.REFUSED),
        (CoordinationError("away"), AgentEnd.ERROR),
        (ZooKeeperUnreachable("z:1", 1.0), AgentEnd.ERROR),
    ],
)
def test_the_end_by_an_error(error: EdlError, end: AgentEnd) -> None:
    assert end_of_error(error) is end


@pytest.mark.parametrize("state", [state for state in JobState if state.over])
def test_the_end_by_the_end_of_the_job(state: JobState) -> None:
    assert end_of_job(make_job(state=state)).value == state.value


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("EDL_ZOOKEEPER", "EDL_SECRET", "EDL_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def refused(capsys: pytest.CaptureFixture[str], words: list[str]) -> dict[str, Any]:
    assert invoke(words) == 2
    shown = capsys.readouterr()
    (line,) = shown.out.splitlines()
    (sentence,) = shown.err.splitlines()
    said: dict[str, Any] = json.loads(line)
    assert sentence == f"edl: {said['reason']}"
    assert (said["end"], said["exit_code"], said["step"]) == ("refused", 2, 0)
    return said


@pytest.mark.usefixtures("alone")
def test_an_error_before_the_start_is_in_the_last_line_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = refused(capsys, [*AGENT, "--json"])
    assert "no ZooKeeper is known" in said["reason"]
    assert (said["job"], said["run"], said["host"]) == ("j", RUN, "a")
    said = refused(capsys, ["agent", "--job", "j", "--run", "R1", "--host", "a", "--json"])
    assert "'R1' cannot be the token of a run" in said["reason"]
    said = refused(capsys, ["join", "--host", "a b", "--json"])
    assert "'a b' cannot be the name of a host" in said["reason"]
    said = refused(capsys, ["run", "--json", "-np", "5", "--max-np", "4", "python", "x.py"])
    assert "-np is 5; it must lie between" in said["reason"]
    assert said["job"] is None


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["agent", "--json"], "missing option '--job'; see `edl agent --help`"),
        ([*AGENT, "--json", "--slots", "many"], "--slots"),
        (["run", "--json", "-np", "two", "python", "x.py"], "-np"),
        (["run", "--json", "--resume=yes", "python", "x.py"], "--resume=yes is not understood"),
    ],
)
def test_so_are_options_that_cannot_be_parsed(
    words: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert part in refused(capsys, words)["reason"]


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    "words", [AGENT, ["run", "-np", "two", "python", "x.py", "--json"], ["agent"]]
)
def test_without_json_an_error_is_its_sentence_alone(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """And `--json` after the user's command is the command's own."""
    assert invoke(words) == 2
    assert capsys.readouterr().out == ""
