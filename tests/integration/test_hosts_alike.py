"""Hosts that bring workers: all run one and the same command, come and leave in any order."""

from __future__ import annotations

import json
import signal
import sys
from contextlib import closing
from dataclasses import replace

import pytest
from cli_shell import STANDIN, Running, Shell, shell
from kazoo.client import KazooClient
from made import make_job

from edl.records import JobState
from edl.zookeeper.paths import JobPaths

pytestmark = pytest.mark.integration
__all__ = ["shell"]
SAME = ("run", "--or-join", "-np", "1", "--slots", "1", "--max-np", "3", "--job", "j")


def same(shell: Shell, host: str, *options: str) -> Running:
    shell.environment["EDL_SECRET"] = shell.secret
    return shell.start(*SAME, "--host", host, sys.executable, STANDIN, *options)


def test_the_first_starts_the_job_the_others_join_and_the_last_ends_it(shell: Shell) -> None:
    first = same(shell, "a")
    shell.until_size(1)
    second, third = same(shell, "b"), same(shell, "c")
    assert shell.until_size(3)["desired"] == {"a": 1, "b": 1, "c": 1}
    first.signal(signal.SIGTERM)
    assert first.wait() == 0
    assert "host a has left job j" in first.output
    assert shell.until_size(2)["desired"] == {"a": 0, "b": 1, "c": 1}
    fourth = same(shell, "d")
    assert shell.until_size(3)["desired"]["d"] == 1
    for gone in (second, third):
        gone.signal(signal.SIGTERM)
    assert (second.wait(), third.wait()) == (0, 0)
    shell.until_size(1)
    fourth.signal(signal.SIGTERM)
    assert fourth.wait() == 0
    assert shell.status()["state"] == "stopped"
    again = same(shell, "e", "--steps", "5")  # an ended job is started again
    assert again.wait() == 0, again.output
    assert shell.status()["state"] == "finished"
    late = same(shell, "f", "--steps", "5")  # a finished one is not
    assert late.wait() == 0
    assert "job j has finished" in late.output


def test_who_comes_while_the_job_stops_starts_it_anew(shell: Shell) -> None:
    """As the next machine of a spot fleet, which comes while the last one goes."""
    first = same(shell, "a")
    shell.until_size(1)
    first.signal(signal.SIGSTOP)  # nobody can end the job now
    with shell.store("j") as store:
        store.set_job_state(JobState.STOPPING, "as `edl stop` does")
    second = same(shell, "b")
    second.expect("job j stops; waiting for its end to start it anew")
    first.signal(signal.SIGCONT)
    assert first.wait() == 0
    second.expect("job j starts with 1 worker")
    assert shell.until_size(1)["desired"] == {"b": 1}
    second.signal(signal.SIGTERM)
    assert second.wait() == 0


def test_all_signalled_at_once_end_the_job(shell: Shell) -> None:
    hosts = [same(shell, "a")]
    shell.until_size(1)
    hosts += [same(shell, "b"), same(shell, "c")]
    shell.until_size(3)
    for host in hosts:
        host.signal(signal.SIGTERM)
    assert [host.wait() for host in hosts] == [0, 0, 0]
    assert shell.status()["state"] == "stopped"


def test_a_host_that_is_needed_leaves_when_others_have_come(shell: Shell) -> None:
    limits = ("--min-np", "2", "--max-np", "4", "--job", "j", "--host", "a")
    job = shell.start("run", "-np", "2", *limits, sys.executable, STANDIN)
    shell.until_size(2)
    spot = shell.start("join", "--job", "j", "--host", "b", "--slots", "2", "-np", "2")
    spot.expect("host b has a place for 2 workers")
    shell.until_size(4)
    assert shell.edl("scale", "j", "--np", "3").returncode == 0
    shell.until_size(3)
    assert shell.edl("drain", "w0").returncode == 0
    facts = shell.until_size(2)
    assert facts["desired"] == {"a": 1, "b": 1}
    spot.signal(signal.SIGTERM)
    spot.expect("host b cannot leave job j: 1 worker would be left and min_np is 2")
    after = shell.start("join", "--job", "j", "--host", "c", "--slots", "1", "-np", "1")
    assert spot.wait() == 0, spot.output
    assert shell.until_size(2)["desired"] == {"a": 1, "b": 0, "c": 1}
    assert shell.edl("stop", "j").returncode == 0
    assert (job.wait(), after.wait()) == (143, 0)


@pytest.mark.long  # tests/README.md, Time
def test_who_got_less_than_it_brings_does_not_undo_a_scale_or_a_drain(shell: Shell) -> None:
    limits = ("--max-np", "4", "--job", "j", "--host", "a")
    job = shell.start("run", "-np", "3", *limits, sys.executable, STANDIN)
    shell.until_size(3)
    guest = shell.start("join", "--job", "j", "--host", "A", "--slots", "2", "-np", "2")
    guest.expect("host A has a place for 1 worker, not 2: the job may have 1 to 4 workers")
    shell.until_size(4)
    assert shell.edl("scale", "j", "--np", "2").returncode == 0
    assert shell.until_size(2)["desired"] == {"A": 1, "a": 1}
    assert shell.edl("drain", "j", "--host", "A").returncode == 0
    assert guest.wait() == 0
    assert shell.until_size(1)["desired"] == {"A": 0, "a": 1}
    assert shell.edl("stop", "j").returncode == 0
    assert job.wait() == 143


@pytest.mark.long  # tests/README.md, Time
def test_hosts_that_bring_one_worker_each_make_an_allowed_size_together(shell: Shell) -> None:
    """And each change of what is desired is told, with who asked for it."""
    limits = ("--sizes", "1,2,4", "--max-np", "4", "--slots", "2", "--job", "j", "--host", "a")
    job = shell.start("run", "-np", "2", *limits, sys.executable, STANDIN)
    shell.until_size(2)
    hosts = [shell.start("join", "--job", "j", "--host", "b", "--slots", "1", "-np", "1")]
    hosts[0].expect("has a place for 0 workers, not 1: the job may have 1, 2 or 4 workers")
    hosts += [shell.start("join", "--job", "j", "--host", "c", "--slots", "1", "-np", "1")]
    assert shell.until_size(4)["desired"] == {"a": 2, "b": 1, "c": 1}
    assert shell.edl("scale", "j", "--np", "2").returncode == 0
    assert shell.until_size(2)["assigned"] == {"a": 2, "b": 0, "c": 0}
    told = [event for event in shell.events() if event["kind"] == "desired"]
    assert [(one["by"], one["reason"]) for one in told] == [
        ("launcher", "host c joins with 1 worker: 2 -> 4 workers wanted (b: 0 -> 1, c: 0 -> 1)"),
        ("person", "edl scale: 4 -> 2 workers wanted (b: 1 -> 0, c: 1 -> 0)"),
    ]
    assert shell.edl("stop", "j").returncode == 0
    assert [one.wait() for one in (job, *hosts)] == [143, 0, 0]


def test_what_cannot_be_shared_is_refused(shell: Shell) -> None:
    done = shell.edl("run", "--or-join", "--job", "j", sys.executable, STANDIN)
    assert (done.returncode, "needs --job and EDL_SECRET" in done.stderr) == (2, True)
    job = same(shell, "a")
    shell.until_size(1)
    done = shell.edl(*SAME, "--host", "b", sys.executable, STANDIN, "--steps", "7")
    assert done.returncode == 2
    assert "with --or-join all hosts run the same `edl run`" in done.stderr
    done = shell.edl(*SAME, "--stall-limit", "30", "--host", "b", sys.executable, STANDIN)
    assert (done.returncode, "runs with stall_limit_s none, not 30.0;" in done.stderr) == (2, True)
    (elsewhere := shell.directory / "elsewhere").mkdir()
    done = shell.edl(*SAME, "--host", "b", sys.executable, STANDIN, cwd=elsewhere)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"job j runs with cwd {shell.directory}, not {elsewhere};" in done.stderr
    done = shell.edl("join", "--job", "j", "--host", "b", "--slots", "1", "-np", "2")
    assert (done.returncode, "-np must lie between 1 and --slots" in done.stderr) == (2, True)
    assert shell.edl("stop", "j").returncode == 0
    assert job.wait() == 0


def test_a_host_with_another_secret_of_this_user_is_refused(shell: Shell) -> None:
    """What it wrote into the job would be closed to all others, and the job would be lost."""
    job = same(shell, "a")
    shell.until_size(1)
    shell.environment["EDL_SECRET"] = "of-one-host-" + shell.secret
    done = shell.edl(*SAME, "--host", "b", sys.executable, STANDIN)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "edl: job j has another secret than this host's EDL_SECRET; with --or-join all hosts have "
        "the same EDL_SECRET, or choose another --job\n"
    )
    del shell.environment["EDL_SECRET"]
    third = same(shell, "c")  # the job goes on, and takes in who has its secret
    assert shell.until_size(2)["desired"] == {"a": 1, "c": 1}
    assert shell.edl("stop", "j").returncode == 0
    assert (job.wait(), third.wait()) == (0, 0)
    # An ended job may get another one.
    shell.environment["EDL_SECRET"] = "of-a-new-start-" + shell.secret
    again = shell.edl(*SAME, "--host", "a", sys.executable, STANDIN, "--steps", "5")
    assert again.returncode == 0, again.stderr
    shell.environment["EDL_SECRET"] = "of-one-host-" + shell.secret
    late = shell.edl(*SAME, "--host", "b", sys.executable, STANDIN, "--steps", "5")
    assert (late.returncode, "has another secret than this host's" in late.stderr) == (2, True)


def test_what_a_stranger_has_written_is_neither_joined_nor_believed(
    shell: Shell, zk_hosts: str
) -> None:
    shell.environment["EDL_SECRET"] = shell.secret
    command = (sys.executable, STANDIN)
    paths = JobPaths("j")
    running = make_job("j", np=1, command=command, max_np=3, cwd=str(shell.directory))
    finished = replace(running, state=JobState.FINISHED)
    stranger = KazooClient(zk_hosts, timeout=10.0)
    stranger.start()
    with closing(stranger):
        stranger.create(paths.job, makepath=True)
        stranger.create(f"{paths.members}/0", b"{}", makepath=True)
        for forged in (running, finished):
            stranger.set(paths.job, json.dumps(forged.to_json()).encode())
            done = shell.edl(*SAME, "--host", "b", *command)
            assert (done.returncode, done.stdout) == (2, "")
            assert "the secret of job j is another than those known here" in done.stderr
        stranger.stop()
