"""Agents that are killed, and terminals that are closed: no worker is lost, none is left behind."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import forked
import psutil
import pytest
from cli_shell import DIES_S, STANDIN, WAIT_S, Shell, shell, until
from scenario import scenario

from edl.host.adoption import RunningWorker, identity
from edl.host.agent import ONE_SIGNAL_S
from edl.host.workers import Workers

pytestmark = pytest.mark.integration
__all__ = ["shell"]

RUN = ("run", "-np", "2", "--max-np", "3", "--job", "j", "--host", "a")


def take_over(workers: Workers) -> tuple[RunningWorker, ...]:
    orphans = workers.orphans()
    workers.watch(orphans)
    return orphans


@pytest.mark.long  # tests/README.md, Time
@pytest.mark.slow
def test_workers_train_on_without_their_agent_and_the_next_one_takes_them_over(
    tmp_path: Path, zk_hosts: str
) -> None:
    with scenario(tmp_path, zk_hosts, np=2, max_np=3) as job:
        job.wait_for_step(5)
        before = job.members("w0", "w1")
        job.agent().kill()
        job.until(lambda: not psutil.pid_exists(job.agent_pid), "the agent's end")
        step = job.status()["step"]
        job.until(lambda: job.status()["step"] >= step + 5, "steps without an agent")
        job.rejoin()  # at once: ZooKeeper may still have the killed agent
        job.wait(lambda now: now["hosts"], "an agent")
        job.until(lambda: job.output().count("took over the worker") == 2, "adoption")
        job.wait_for_progress()
        assert job.members("w0", "w1") == before
        psutil.Process(before["w1"]["pid"]).kill()
        job.wait(lambda now: "w1" not in {m["id"] for m in now["members"]}, "end of w1")
        job.wait_for_size(2)
        after = job.members("w0")
        assert after["w0"] == before["w0"] | {"rank": 0}
        assert "w1" not in after
        ended = "w1 ended (an earlier agent had started it"
        assert ended in job.output()
        job.prove(workers=2)


@pytest.mark.slow
def test_a_job_without_an_agent_stops_and_says_so_by_itself(tmp_path: Path, zk_hosts: str) -> None:
    with scenario(tmp_path, zk_hosts, np=2) as job:
        job.wait_for_step(3)
        job.agent().kill()
        job.until(lambda: job.status()["hosts"] == {}, "the agent's session to end")
        # The command only asks, and is gone before the job has ended.
        asked = job.try_edl("stop", "--timeout", "0.01")
        assert (asked.returncode, "stopping job" in asked.stderr) == (1, True), asked
        job.until(lambda: job.status()["state"] == "stopped", "the job's own end")
        assert job.status()["reason"] == "edl stop"
        job.until(lambda: not job.processes(), "an end of all processes")


def test_an_agent_that_wakes_up_in_the_place_of_another_leaves_its_workers(shell: Shell) -> None:
    first = shell.start(*RUN, sys.executable, STANDIN)
    before = shell.until_size(2)
    os.kill(first.process.pid, signal.SIGSTOP)
    until(lambda: shell.status()["hosts"] == {}, WAIT_S)
    second = shell.start("join", "--job", "j", "--host", "a", "--slots", "3")
    second.expect("took over the worker in slot 1")
    os.kill(first.process.pid, signal.SIGCONT)
    assert first.wait() == 95
    assert "belongs to another agent" in first.output
    assert shell.until_size(2)["members"] == before["members"]
    assert shell.edl("stop").returncode == 0
    assert second.wait() == 0


def test_an_adopted_worker_that_does_not_end_is_killed(shell: Shell) -> None:
    first = shell.start(*RUN, sys.executable, STANDIN, "--deaf")
    shell.until_size(2)
    first.signal(signal.SIGKILL)
    first.wait()
    second = shell.start("join", "--job", "j", "--host", "a")
    second.expect("took over the worker in slot 1")
    second.signal(signal.SIGINT)
    second.expect("cannot leave job j")
    second.signal_again(signal.SIGINT)
    assert second.wait() == 130
    until(lambda: not shell.processes(), WAIT_S)


WITH_A_HELPER = """
import pathlib, subprocess, time
helper = subprocess.Popen(["sleep", "1000"], start_new_session=True)
pathlib.Path("helper").write_text(str(helper.pid))
time.sleep(1000)
"""


def test_a_helper_with_a_session_of_its_own_is_not_adopted(tmp_path: Path) -> None:
    """It has the environment of its worker, leads a process group, and outlives the worker."""
    job = {"EDL_JOB": "j", "EDL_SECRET": tmp_path.name, "EDL_HOST": "a"}
    started, next_one, last = (
        Workers([sys.executable, "-c", WITH_A_HELPER], tmp_path, {**os.environ, **job}, tmp_path)
        for _ in range(3)
    )
    helper = tmp_path / "helper"
    started.start("launch-0", 0, variables={"EDL_DEVICE": "3"})
    worker = started.pid_of("launch-0")
    try:
        until(lambda: helper.exists() and helper.read_text(), WAIT_S)
        assert [(one.pid, one.device) for one in take_over(next_one)] == [(worker, 3)]
        assert worker is not None
        (tmp_path / "launch-0.process").write_text("")  # the disk was full
        next_one.release()
        assert worker in [one.pid for one in take_over(next_one)]
        (tmp_path / "launch-0.process").write_text(identity(worker))
        next_one.release()
        assert [one.pid for one in take_over(next_one)] == [worker]
        os.kill(worker, signal.SIGKILL)
        until(lambda: psutil.Process(worker).status() == psutil.STATUS_ZOMBIE, WAIT_S)
        assert take_over(last) == ()
        assert next_one.reap().keys() == {"launch-0"}
        assert psutil.Process(int(helper.read_text())).status() != psutil.STATUS_ZOMBIE
    finally:
        started.kill_all(WAIT_S)
        if helper.exists():
            os.kill(int(helper.read_text()), signal.SIGKILL)


DEAF_TO_CHILDREN = """
import os, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def test_an_agent_whose_parent_ignores_the_end_of_children(shell: Shell) -> None:
    """Some that start services do, and what they start inherits it."""
    words = ["-m", "edl.cli.main", *RUN, sys.executable, STANDIN, "--fail-at", "5"]
    agent = shell.launch([sys.executable, "-c", DEAF_TO_CHILDREN, *words], "edl.log")
    assert agent.wait() == 3, agent.output
    assert "exited with code 3" in agent.output


class Terminal:
    def __init__(self, shell: Shell, *words: str) -> None:
        self.master, slave = pty.openpty()
        environment = {**shell.environment, "TERM": "xterm"}
        self.process = forked.start_in_terminal(words, shell.directory, environment, slave)
        os.close(slave)
        os.set_blocking(self.master, False)
        self.open = True
        self.output = b""

    def close(self) -> None:
        if self.open:
            os.close(self.master)
        self.open = False

    def read(self) -> bytes:
        """Return what was shown so far; unread, it would fill the terminal and hold `edl` up."""
        with contextlib.suppress(OSError):  # nothing at the moment, or the other end is closed
            while self.open and (part := os.read(self.master, 65536)):
                self.output += part
        return self.output

    def press_control_c(self) -> None:
        os.write(self.master, b"\x03")

    def expect(self, text: bytes) -> None:
        until(lambda: text in self.read(), WAIT_S, lambda: f"no {text!r} in {self.output!r}")


def close(terminal: Terminal) -> int:
    terminal.close()
    return 129


def control_c(terminal: Terminal) -> int:
    terminal.press_control_c()
    return 130


def control_c_twice(terminal: Terminal) -> int:
    terminal.press_control_c()
    terminal.expect(b"again kills its workers")
    time.sleep(ONE_SIGNAL_S)  # the first one was heard; sooner, this would be the same
    terminal.press_control_c()
    return 130


@pytest.mark.parametrize(
    ("end", "deaf"),
    [
        (close, False),
        pytest.param(control_c, False, marks=pytest.mark.long),  # the first of the two below
        (control_c_twice, True),
    ],
)
def test_the_end_of_a_terminal_leaves_no_orphan(
    end: Callable[[Terminal], int], deaf: bool, shell: Shell
) -> None:
    """``deaf`` workers ignore SIGTERM and the end of their job."""
    words = [*RUN, sys.executable, STANDIN, *(["--deaf"] if deaf else [])]
    terminal = Terminal(shell, *words)
    try:
        shell.until_size(2)
        code = end(terminal)
        until(
            lambda: (terminal.read(), terminal.process.poll())[1] is not None,
            2 * WAIT_S,
            lambda: f"it did not end: {terminal.output!r}",
        )
        assert terminal.process.returncode == code
        until(lambda: not shell.processes(), WAIT_S)
        assert shell.status()["state"] == "stopped"
    finally:
        terminal.close()


def test_a_killed_agent_leaves_a_job_that_can_be_stopped(shell: Shell) -> None:
    terminal = Terminal(shell, *RUN, sys.executable, STANDIN)
    try:
        shell.until_size(2)
        terminal.process.kill()
        terminal.process.wait(WAIT_S)
    finally:
        terminal.close()
    until(lambda: len(shell.processes()) <= 2, DIES_S)  # its template goes with it
    assert len(shell.processes()) == 2
    assert shell.edl("stop").returncode == 0
    assert shell.status()["state"] == "stopped"
    until(lambda: not shell.processes(), WAIT_S)
