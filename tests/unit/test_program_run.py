"""What `edl.run` refuses before it starts anything, and how it takes its options."""

from __future__ import annotations

import functools
import inspect
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import horovod.runner
import pytest

import edl
from edl import config
from edl.client.changes import checked_policy
from edl.config import read_policy
from edl.errors import (
    ConfigError,
    JobError,
    JobFailed,
    JobStopped,
    UsageError,
    ZooKeeperUnreachable,
)
from edl.host.process import AgentEnd, AgentResult
from edl.program.function_files import Failure, FunctionFiles
from edl.program.run import INSTEAD, FunctionJob, Options, _ring_at_end, split_options
from edl.records import Generation, JobPolicy, RingMember
from edl.spec import Sizes


def train() -> None:
    raise AssertionError("no worker was to be started")


GROWS = """
[size]
rule = "throughput"
"""


@pytest.fixture(autouse=True)
def no_zookeeper(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("EDL_ZOOKEEPER", "127.0.0.1:1")


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"func": "train.py"}, "takes a function, not 'train.py'"),
        ({"args": "20"}, "args is '20'; give the positional arguments"),
        ({"args": 20}, "args is 20; give the positional arguments"),
        ({"kwargs": ["lr"]}, "kwargs is .* give the keyword arguments"),
        ({"args": (1,)}, "train cannot be called with these args .* too many positional arguments"),
        ({"kwargs": {"lr": 1}}, "train cannot be called .* unexpected keyword argument 'lr'"),
        ({"args": ((n for n in "a"),), "func": len}, "argument 0 of len cannot be sent"),
        ({"np": 0}, "0"),
        ({"np": 1.5}, "1.5"),
        ({"np": 3, "max_np": 2}, "3"),
        ({"np": 3, "slots": 2}, "this host has 2 slots"),
        ({"np": "2"}, "'2' is no whole number"),
        ({"max_nps": 3}, r"edl.run has no option max_nps; did you mean max_np\?"),
        ({"nonsense": 3}, r"no option nonsense; see help\(edl.run\)"),
        ({"num_proc": 2}, "no option num_proc: write np="),
        ({"max_workers": 2}, "no option max_workers: write max_np="),
        ({"hosts": "a:2"}, "no option hosts: other hosts join by `edl join"),
        ({"job": "digits"}, "no option job: write name="),
        ({"policy": "p.toml"}, "cannot read the policy p.toml: No such file"),
        ({"policy": 7}, "policy is 7; give the path of a policy file, or its text"),
        ({"policy": GROWS}, "edl.run is to find the job.s size, .* 1 to 1 workers only"),
        ({"policy": "[size]\nrule = 'nothing:here'\n", "max_np": 2}, "no module nothing"),
        ({"resume": "nowhere"}, "nowhere"),
        ({"slots": "2"}, "'2' is no whole number"),
        ({"name": 7}, "name is 7; give a str"),
        ({"directory": 7}, "directory is 7; give a path"),
        ({"shows_workers": "no"}, "shows_workers is 'no'; give True or False"),
        ({"directory": "/proc/nothing"}, "cannot write the function into /proc/nothing"),
        ({"name": "a/b"}, "a/b"),
    ],
)
def test_it_is_refused_in_a_sentence(how: dict[str, Any], said: str, tmp_path: Any) -> None:
    with pytest.raises(UsageError, match=said):
        edl.run(**{"func": train, **how})
    assert not any((tmp_path / "edl").rglob("function"))


def test_a_worker_starts_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDL_ATTEMPT_ID", "t-0")
    with pytest.raises(UsageError, match="in a worker of a job"):
        edl.run(train)


def test_each_argument_of_horovod_run_is_taken_or_named() -> None:
    """Its users learn in a sentence what to write."""
    theirs = inspect.signature(horovod.runner.run).parameters
    ours = {*inspect.signature(edl.run).parameters, *Options.__dataclass_fields__, *config.SETTINGS}
    assert {*theirs} - ours - {*INSTEAD} == set()


def test_a_decorator_may_add_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """What counts is what `edl.run` calls, and not what is behind it."""

    @functools.wraps(lambda settings: None)
    def decorated() -> None:
        raise AssertionError("no worker was to be started")

    monkeypatch.setenv("EDL_CONNECT_TIMEOUT_S", "0.2")
    with pytest.raises(ZooKeeperUnreachable):
        edl.run(decorated)


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
    ring: tuple[str, ...] = (),
) -> list[Any]:
    """Return what `edl.run` returns when the agent has ended so; worker N has rank 5 - N."""
    files = FunctionFiles(directory)
    for worker in returned:
        files.write_result(f"w{worker}", 5 - worker, f"of w{worker}")
    for failure in failures:
        files.write_failure(failure)
    store = SimpleNamespace(snapshot=lambda: SimpleNamespace(members=()))
    job = FunctionJob(cast(Any, store), files)
    job._ring = ring
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
        ({"end": AgentEnd.FINISHED, "returned": ()}, JobFailed, "no worker has returned a result"),
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


def test_a_worker_without_a_result_is_named(tmp_path: Path) -> None:
    with pytest.warns(RuntimeWarning, match="results of job digits lack that of w2: killed after"):
        found = results(tmp_path, AgentEnd.FINISHED, ring=("w0", "w1", "w2"))
    assert found == ["of w1", "of w0"]


@pytest.mark.parametrize(("finished_in", "ring"), [(0, (2, 3)), (5, (2, 3)), (4, (2,))])
def test_a_newcomer_of_a_switch_that_never_came_owes_no_result(
    finished_in: int, ring: tuple[int, ...]
) -> None:
    """Worker 1 was to leave with that switch, worker 3 to join."""
    one, two, three = (RingMember(worker, "a", worker, "127.0.0.1", 1) for worker in (1, 2, 3))
    newest = Generation(5, 1, (two, three), 2, (3,), (1,), "", previous=(one, two))
    assert _ring_at_end(newest, finished_in) == tuple(f"w{worker}" for worker in ring)


def test_a_policy_is_a_file_or_its_text(tmp_path: Path) -> None:
    """A custom rule is found in a directory of the program's ``sys.path``."""
    (tmp_path / "p.toml").write_text(GROWS)

    def of(given: str | Path) -> JobPolicy:
        return checked_policy(*read_policy(given, "edl.run"), Sizes(1, 4), (), tmp_path)

    assert of(GROWS).source == "edl.run"
    assert of(tmp_path / "p.toml").text == GROWS
    (tmp_path / "rules.py").write_text("def choose(observation): return 2\n")
    assert of("[size]\nrule = 'rules:choose'\n").is_on
