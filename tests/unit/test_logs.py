"""`edl logs`: what workers on this host have written."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from edl.cli.main import invoke
from edl.launch.workers import KEPT_RUNS, Workers, earlier_runs, log_directory

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


def test_without_a_job_the_newest_one(tmp_path: Path, run: Run) -> None:
    assert "no job has run on this host" in run(code=2)[1]
    old = job(tmp_path, "old", w0="old\n")
    os.utime(old / "abc-0.log", (1, 1))
    job(tmp_path, "new", w0="new\n")
    assert run()[0] == "[w0] new\n"
    assert run("w0")[0] == "new\n"


def test_who_was_not_here_is_said(tmp_path: Path, run: Run) -> None:
    job(tmp_path, "digits", w0="a\n")
    assert run("digits", "w7", code=2)[1] == (
        "edl: w7 of job digits did not run on this host; here: w0\n"
    )
    assert "no worker of job other has written anything on this host" in run("other", code=2)[1]
    assert "takes a job and a worker" in run("digits", "w0", "w1", code=2)[1]


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
