"""A live cluster: a real controller, a real `edl host`, and a job, from submission to end."""

from __future__ import annotations

import json
import os
import pwd
import signal
import sys
from typing import Any

import pytest
from cli_shell import STANDIN, WAIT_S, Shell, shell, until

pytestmark = pytest.mark.integration
__all__ = ["shell"]


def shown(shell: Shell, job: str = "j") -> dict[str, Any]:
    done = shell.edl("show", job, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["job"]
    return found


def fails_at_once(shell: Shell) -> str:
    """Submit a job whose command cannot start; return why it failed, which its log says, too."""
    command = [sys.executable, "nosuch.py"]
    manifest = shell.directory / "wrong.yaml"
    manifest.write_text(f"name: wrong\ncommand: {json.dumps(command)}\nmin: 1\nmax: 2\n")
    assert shell.edl("submit", str(manifest)).returncode == 0
    assert shell.edl("wait", "wrong", "--timeout", str(WAIT_S)).returncode == 2
    found = shown(shell, "wrong")
    assert (found["result"], found["runs"]) == ("failed", 1)
    reason = found["reason"].partition("the last line of slot 0: ")[2]
    assert reason in shell.edl("logs", "wrong").stdout
    assert reason in shell.edl("events", "wrong").stdout
    return str(reason)


def test_a_job_of_a_cluster_whose_processes_die(shell: Shell) -> None:
    controller = ("cluster", "start", "--name", "lab", "--policy", "fifo")
    host = ("host", "--cluster", "lab", "--host", "a", "--slots", "2")
    shell.start(*controller).expect("leads cluster lab")
    shell.start(*host).expect("host a offers 2 slots")
    assert "[Errno 2] No such file" in fails_at_once(shell)
    end = shell.directory / "end"
    command = json.dumps([sys.executable, STANDIN, "--until", str(end)])
    manifest = shell.directory / "j.yaml"
    manifest.write_text(f"name: j\ncommand: {command}\nmin: 1\nmax: 2\n")
    assert shell.edl("submit", str(manifest)).returncode == 0

    def say() -> str:
        return "\n".join([str(shown(shell)), *(one.output for one in shell.started)])

    until(lambda: shown(shell)["state"] == "running", WAIT_S, say)
    shell.until_size(2)
    for one in shell.started:
        one.signal(signal.SIGKILL)
        one.wait()
    for words in (controller, host):
        shell.start(*words)
    shell.started[-1].expect("host a offers 2 slots")
    end.touch()
    assert shell.edl("wait", "j").returncode == 0
    assert shown(shell)["runs"] == 1, "it trained on while nobody was there"
    shell.started[-1].signal(signal.SIGTERM)
    assert shell.started[-1].wait() == 0
    shell.started[-2].signal(signal.SIGTERM)
    assert shell.started[-2].wait() == 0


@pytest.mark.long
def test_a_tenants_job_runs_where_a_user_is_named_for_it(shell: Shell) -> None:
    host = ("host", "--cluster", "lab", "--host", "a", "--slots", "2")
    shell.start("cluster", "start", "--name", "lab").expect("leads cluster lab")
    shell.start(*host).expect("host a offers 2 slots")
    made = shell.edl("tenant", "create", "ann").stdout
    own = ("--secret-file", made.partition("its secret is in ")[2].splitlines()[0])
    assert shell.edl("queue", "set", "own", "--quota", "2", "--tenant", "ann").returncode == 0
    end = shell.directory / "end"
    command = json.dumps([sys.executable, STANDIN, "--until", str(end)])
    manifest = shell.directory / "j.yaml"
    manifest.write_text(f"name: j\ncommand: {command}\nmin: 1\nmax: 2\n")
    assert shell.edl("submit", str(manifest), *own).returncode == 0

    def job() -> dict[str, Any]:
        return shown(shell, "ann.j")

    why = "host a names no user for it: `edl host --user ann=USER`"
    until(lambda: why in job()["reason"], WAIT_S, lambda: str(job()))
    status = shell.edl("status", "j", *own)
    assert status.returncode == 94
    assert status.stderr.startswith("edl: job ann.j is queued and has no run: place 1 of 1")
    assert why in status.stderr
    shell.started[-1].signal(signal.SIGTERM)
    assert shell.started[-1].wait() == 0
    me = pwd.getpwuid(os.geteuid()).pw_name
    shell.start(*host, "--user", me).expect("host a offers 2 slots")
    until(lambda: job()["state"] == "running", WAIT_S, lambda: str(job()))
    assert "running" in shell.edl("status", "j", *own).stdout
    end.touch()
    assert shell.edl("wait", "j", *own).returncode == 0
    for one in (shell.started[-1], shell.started[0]):
        one.signal(signal.SIGTERM)
        assert one.wait() == 0
