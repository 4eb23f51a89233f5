"""Bad input: one clear sentence, a non-zero exit, never a traceback, never a hang."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from cli_shell import STANDIN, Shell, shell

pytestmark = pytest.mark.integration
__all__ = ["shell"]


def sentence(done: subprocess.CompletedProcess[str], code: int) -> str:
    """Return the one line that a refused command prints."""
    assert done.returncode == code, (done.stdout, done.stderr)
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("edl: ")
    return line.removeprefix("edl: ")


@pytest.mark.parametrize(
    "words",
    [("status",), ("run", "-np", "1", sys.executable, STANDIN), ("join",), ("scale", "--np", "2")],
)
def test_unreachable_zookeeper(shell: Shell, words: tuple[str, ...]) -> None:
    shell.environment |= {"EDL_ZOOKEEPER": "127.0.0.1:1", "EDL_CONNECT_TIMEOUT_S": "0.5"}
    began = time.monotonic()
    text = sentence(shell.edl(*words), 1)
    assert "no ZooKeeper answered at 127.0.0.1:1 within 0.5 s" in text
    assert time.monotonic() - began < 15


def test_no_zookeeper_is_known(shell: Shell) -> None:
    del shell.environment["EDL_ZOOKEEPER"]
    assert "no ZooKeeper is known" in sentence(shell.edl("status"), 2)


@pytest.mark.parametrize(
    "words",
    [
        ("status", "nosuch"),
        ("scale", "nosuch", "--np", "2"),
        ("drain", "nosuch", "w0"),
        ("stop", "nosuch"),
        ("events", "nosuch"),
        ("logs", "nosuch"),
        ("join", "--job", "nosuch"),
    ],
)
def test_unknown_job(shell: Shell, words: tuple[str, ...]) -> None:
    assert "there is no job named 'nosuch'" in sentence(shell.edl(*words), 94)


@pytest.mark.parametrize("words", ["status --job nosuch", "scale --np 2 --job=nosuch"])
def test_a_job_by_option(shell: Shell, words: str) -> None:
    assert "there is no job named 'nosuch'" in sentence(shell.edl(*words.split()), 94)


def test_no_job_at_all(shell: Shell) -> None:
    assert "no job is running" in sentence(shell.edl("status"), 2)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("-np", "5", "--max-np", "4", sys.executable, STANDIN), "-np is 5; it must lie between"),
        (("-np", "2", "--min-np", "3", "--max-np", "2", "x"), "min must not be above max"),
        (("--min-np", "3", "x"), "--min-np is 3 and -np is 1; start with -np 3 or more"),
        (("--job", "a/b", sys.executable, STANDIN), "'a/b' cannot be the name of a job"),
        (("--resume-from", "nosuch", "x"), "cannot resume: there is no directory nosuch"),
        (("--resume-from", ".", "x"), "cannot resume: there is no checkpoint in"),
        (("--host", "a b", sys.executable, STANDIN), "'a b' cannot be the name of a host"),
        ((sys.executable, "nosuch.py"), "the script nosuch.py does not exist"),
        (("./train.py",), "./train.py is not executable; write `python ./train.py`"),
    ],
)
def test_nothing_is_started_for_what_cannot_be(
    shell: Shell, words: tuple[str, ...], text: str
) -> None:
    (shell.directory / "train.py").write_text("")
    assert text in sentence(shell.edl("run", *words), 2)
    assert "no job is running" in sentence(shell.edl("status"), 2)
    assert not (shell.directory / "state").exists()


def test_a_script_that_dies_at_once_on_every_worker(shell: Shell) -> None:
    shell.forks = False  # such a job has no template before its first ring
    (shell.directory / "train.py").write_text("import sys; print('no data'); sys.exit(7)")
    done = shell.edl("run", "-np", "2", "--job", "j", sys.executable, "train.py")
    assert done.returncode == 7
    assert (
        "edl: job j failed: all 2 workers exited with code 7 before joining the job; "
        "the last line of slot 0: no data"
    ) in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(done.stdout.splitlines()) == ["[slot 0] no data", "[slot 1] no data"]
    assert shell.status()["state"] == "failed"
    kinds = [event["kind"] for event in shell.events()]
    assert kinds == ["worker_failed", "worker_failed", "job_failed"]


def test_a_script_without_init(shell: Shell) -> None:
    (shell.directory / "train.py").write_text("print('hello')")
    done = shell.edl("run", "-np", "2", sys.executable, "train.py")
    assert done.returncode == 1
    assert "failed: train.py ended without calling edl.init()" in done.stderr


def test_a_script_that_never_calls_init(shell: Shell) -> None:
    (shell.directory / "train.py").write_text("import time; time.sleep(60)")
    shell.environment["EDL_START_TIMEOUT_S"] = "1"
    done = shell.edl("run", "-np", "1", sys.executable, "train.py")
    assert done.returncode == 1
    assert "train.py (slot 0) did not call edl.init() within 1 s" in done.stderr


def test_what_a_running_job_refuses(shell: Shell) -> None:
    run = ("run", "-np", "2", "--max-np", "3", "--job", "j", sys.executable, STANDIN)
    job = shell.start(*run)
    shell.until_size(2)
    text = sentence(shell.edl(*run), 2)
    name = shell.status()["members"][0]["host"]
    assert f"a job named 'j' is already running (host {name}, w0, w1); choose another" in text
    assert "count as alive until their ZooKeeper sessions end, about 2 s" in text
    text = sentence(shell.edl("scale", "j", "--np", "4"), 2)
    assert "cannot scale job j to 4 workers: max_np is 3" in text
    text = sentence(shell.edl("scale", "j", "--np", "0"), 2)
    assert "cannot scale job j to 0 workers: `edl stop j` ends it" in text
    assert "w9 is not training in this job" in sentence(shell.edl("drain", "j", "w9"), 2)
    assert "'nine' is not a worker" in sentence(shell.edl("drain", "j", "nine"), 2)
    text = sentence(shell.edl("join", "--job", "j", "--host", name), 95)
    assert f"host '{name}' of job j belongs to another agent" in text
    text = sentence(shell.edl("drain", "j", "--host", "nowhere"), 2)
    assert text == f"host nowhere is not in job j; its hosts are {name}"
    text = sentence(shell.edl("drain", "j", "--host", name), 2)
    assert f"host {name} cannot leave job j: 0 workers would be left" in text
    assert shell.status()["generation"] == 1  # nothing of that has changed it
    assert shell.edl("stop", "j").returncode == 0
    assert job.wait() == 143
    assert "cannot scale job j: it is stopped" in sentence(shell.edl("scale", "j", "-np", "2"), 2)
    assert "job j is stopped; nothing can join it" in sentence(shell.edl("join", "--job", "j"), 2)


def test_which_of_two_jobs(shell: Shell) -> None:
    jobs = [
        shell.start("run", "-np", "1", "--job", name, sys.executable, STANDIN)
        for name in ("one", "two")
    ]
    for name in ("one", "two"):
        shell.until_size(1, name)
    text = sentence(shell.edl("status"), 2)
    assert text == "2 jobs are running, name one: one, two"
    assert shell.edl("stop", "one").returncode == 0
    assert "w0 on " in shell.edl("status").stdout  # only "two" is left
    assert shell.edl("stop").returncode == 0
    assert [job.wait() for job in jobs] == [143, 143]
