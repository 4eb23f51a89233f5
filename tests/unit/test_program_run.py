"""What `edl.run` refuses before it starts anything, and how it takes its options."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

import edl
from edl.core.host.exit_codes import AgentEnd, AgentResult
from edl.errors import ConfigError, JobError, JobFailed, JobStopped, UsageError
from edl.program.function_files import Failure, FunctionFiles
from edl.program.run import FunctionJob, Options, split_options


def train() -> None:
    raise AssertionError("no worker was to be started")


@pytest.fixture(autouse=True)
def no_zookeeper(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Let nothing reach a ZooKeeper, and nothing be written but here."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("EDL_ZOOKEEPER", "127.0.0.1:1")


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"function": "train.py"}, "takes a function, not 'train.py'"),
        ({"np": 0}, "0"),
        ({"np": 1.5}, "1.5"),
        ({"np": 3, "max_np": 2}, "3"),
        ({"np": 3, "slots": 2}, "this host has 2 slots"),
        ({"workers": 3}, "no setting named workers"),
        ({"directory": "/proc/nothing"}, "cannot write the function into /proc/nothing"),
        ({"name": "a/b"}, "a/b"),
    ],
)
def test_it_is_refused_in_a_sentence(how: dict[str, Any], said: str, tmp_path: Any) -> None:
    with pytest.raises(UsageError, match=said):
        edl.run(**{"function": train, **how})
    assert not any((tmp_path / "edl").rglob("function"))


def test_a_worker_starts_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDL_ATTEMPT_ID", "t-0")
    with pytest.raises(UsageError, match="in a worker of a job"):
        edl.run(train)


def test_options_and_settings_go_apart() -> None:
    chosen, settings = split_options({"name": "digits", "slots": 4, "max_np": 8, "resume": True})
    assert chosen == Options("digits", 4)
    assert (settings.sizes.max_np, settings.job_settings.resume) == (8, "1")
    assert split_options({"resume": "auto"})[1].job_settings.resume == "auto"
    assert split_options({"resume": False})[1].job_settings.resume == ""
    with pytest.raises(ConfigError):
        split_options({"session_timeout_s": -1})


def results(
    directory: Path,
    end: AgentEnd,
    *failures: Failure,
    returned: tuple[int, ...] = (0, 1),
    number: signal.Signals | None = None,
) -> list[Any]:
    """Return what `edl.run` returns when the agent has ended so; worker N has rank 5 - N."""
    files = FunctionFiles(directory)
    for worker in returned:
        files.write_result(f"w{worker}", 5 - worker, f"of w{worker}")
    for failure in failures:
        files.write_failure(failure)
    job = FunctionJob(None, files)  # type: ignore[arg-type]  # no ring was seen
    return job.results(number, AgentResult("digits", end=end, reason="the reason", step=7))


RAISED = Failure("w3", after_training=False, text="ValueError: in a step")
RAISED_LATE = Failure("w3", after_training=True, text="ValueError: at the end")


def test_the_results_come_by_rank(tmp_path: Path) -> None:
    assert results(tmp_path, AgentEnd.FINISHED, RAISED) == ["of w1", "of w0"]


def test_workers_that_finish_without_zookeeper_have_results(tmp_path: Path) -> None:
    assert results(tmp_path, AgentEnd.ERROR) == ["of w1", "of w0"]


@pytest.mark.parametrize(
    ("how", "error", "said"),
    [
        ({"end": AgentEnd.FAILED}, JobFailed, "^job digits failed: the reason$"),
        ({"end": AgentEnd.ERROR, "returned": ()}, JobFailed, "has no results: the reason"),
        ({"end": AgentEnd.FINISHED, "returned": ()}, JobFailed, "no worker has lived"),
        ({"end": AgentEnd.STOPPED}, JobStopped, "was stopped at step 7: the reason"),
        ({"end": AgentEnd.LEFT}, JobError, "the reason; job digits trains on elsewhere"),
        ({"end": AgentEnd.STOPPED, "number": signal.SIGINT}, KeyboardInterrupt, "by Ctrl-C"),
        ({"end": AgentEnd.STOPPED, "number": signal.SIGTERM}, SystemExit, "143"),
    ],
)
def test_an_end_without_results(
    tmp_path: Path, how: dict[str, Any], error: type[BaseException], said: str
) -> None:
    with pytest.raises(error, match=said):
        results(tmp_path, **how)


def test_the_traceback_is_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(JobFailed, match=r"the reason\n\nValueError: in a step"):
        results(tmp_path, AgentEnd.FAILED, RAISED)


def test_a_failure_after_the_training_is_one(tmp_path: Path) -> None:
    with pytest.raises(JobFailed, match=r"failed after the training, on w3\n\nValueError: at the"):
        results(tmp_path, AgentEnd.FINISHED, RAISED_LATE)
