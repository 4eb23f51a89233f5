"""What the agent and the verbs do to a job that runs, with workers that have no ring."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path

import psutil
import pytest
from cli_shell import STANDIN, WAIT_S, Running, Shell, shell, until

from edl.zookeeper.local_server import start_local, stop_local

pytestmark = pytest.mark.integration
__all__ = ["shell"]
RUN = ("run", "-np", "2", "--max-np", "4", "--job", "j", "--host", "a")


def start(shell: Shell, *options: str, run: tuple[str, ...] = RUN) -> Running:
    return shell.start(*run, sys.executable, STANDIN, *options)


def test_a_job_runs_to_its_end(shell: Shell) -> None:
    shell.forks = False  # all is started as users start it
    done = shell.edl(*RUN, sys.executable, STANDIN, "--steps", "20")
    assert done.returncode == 0, done.stderr
    last = [line for line in done.stdout.splitlines() if "leaves after" in line]
    assert sorted(line[:11] for line in last) == ["[w0] w0 lea", "[w1] w1 lea"]
    assert done.stderr.splitlines()[0].startswith("edl: job j starts with 2 workers; ZooKeeper is")
    assert done.stderr.splitlines()[-1] == "edl: job j finished: trained 20 steps"
    facts = shell.status()
    assert (facts["state"], facts["leader"], facts["members"]) == ("finished", None, [])


def test_grow_shrink_drain_stop(shell: Shell) -> None:
    job = start(shell)
    facts = shell.until_size(2)
    assert facts["job"] == "j"
    assert (facts["state"], facts["generation"], facts["term"]) == ("running", 1, 1)
    assert facts["leader"] in ("w0", "w1")
    assert (facts["min_np"], facts["max_np"], facts["desired"]) == (1, 4, {"a": 2})
    assert [(m["id"], m["host"], m["rank"]) for m in facts["members"]] == [
        ("w0", "a", 0),
        ("w1", "a", 1),
    ]
    assert all(psutil.pid_exists(m["pid"]) for m in facts["members"])
    done = shell.edl("scale", "j", "--np", "4")
    assert done.stdout == "job j: 2 -> 4 workers (a: 4)\n"
    shell.until_size(4)
    done = shell.edl("drain", "w1")
    assert (done.returncode, done.stdout) == (0, "w1 leaves with the next switch\n")
    facts = shell.until_size(3)
    assert [m["id"] for m in facts["members"]] == ["w0", "w2", "w3"]
    assert shell.edl("scale", "--np", "1").returncode == 0
    shell.until_size(1)
    done = shell.edl("drain", "j", "0")
    assert done.returncode == 2
    assert "cannot drain w0" in done.stderr
    assert shell.edl("stop", "j").stdout == "job j is stopped: edl stop\n"
    assert job.wait() == 143
    kinds = {event["kind"] for event in shell.events()}
    assert {"generation", "job_stopped"} <= kinds
    assert "worker_failed" not in kinds
    for event in shell.events():
        assert {"time", "kind", "generation", "step", "reason"} <= event.keys()
    assert len(shell.edl("events", "j", "--follow").stdout.splitlines()) == len(shell.events())
    printed = [json.loads(line) for line in shell.edl("events", "--json").stdout.splitlines()]
    assert printed == shell.events()
    assert json.loads(shell.edl("status", "--json").stdout) == shell.status()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_ends_the_job_cleanly(shell: Shell, number: signal.Signals) -> None:
    job = start(shell)
    shell.until_size(2)
    job.signal(number)
    assert job.wait() == 128 + number
    assert shell.status()["state"] == "stopped"
    assert "worker_failed" not in job.output


def test_nohup_keeps_a_job_when_its_terminal_ends(shell: Shell) -> None:
    shell.forks = False
    ours = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # what nohup does; children inherit it
    try:
        job = start(shell)
    finally:
        signal.signal(signal.SIGHUP, ours)
    shell.until_size(2)
    job.signal(signal.SIGHUP)
    job.signal(signal.SIGTERM)  # the first one that is heard; two would have killed the workers
    assert job.wait() == 143
    assert "SIGTERM: the job ends after this step" in job.output


def test_a_signal_before_the_first_ring(shell: Shell) -> None:
    (shell.directory / "train.py").write_text("import time; print('up'); time.sleep(60)")
    job = shell.start(*RUN, sys.executable, "train.py")
    job.expect("[slot 0] up")
    job.signal(signal.SIGINT)
    assert job.wait() == 130
    assert shell.status()["state"] == "stopped"


def test_a_second_signal_kills(shell: Shell) -> None:
    job = start(shell, "--deaf")
    shell.until_size(2)
    job.signal(signal.SIGINT)
    job.expect("again kills its workers")
    job.signal_again(signal.SIGINT)
    assert job.wait() == 130
    assert shell.status()["state"] == "stopped"


def test_a_wrapper_that_passes_on_a_signal_that_came_here_too_asks_once(shell: Shell) -> None:
    """timeout(1) does: it sends the signal to its command, and then to its process group."""
    job = start(shell)
    shell.until_size(2)
    for _ in range(2):
        job.process.send_signal(signal.SIGINT)
    assert job.wait() == 130
    assert "were killed by a second signal" not in job.output
    assert "again kills its workers" in job.output


def test_a_second_host_joins_and_leaves(shell: Shell) -> None:
    job = start(shell, run=("run", "-np", "2", "--max-np", "4", "--slots", "2", *RUN[5:]))
    shell.until_size(2)
    done = shell.edl("scale", "j", "--np", "3")
    assert "its hosts have 2 slots (a: 2)" in done.stderr
    guest = shell.start("join", "--job", "j", "--host", "b", "--slots", "2")
    guest.expect("host b offers 2 slots to job j")
    assert shell.edl("scale", "j", "--np", "4").stdout == "job j: 2 -> 4 workers (a: 2, b: 2)\n"
    facts = shell.until_size(4)
    guest.expect("-> 4 workers, 4 wanted")
    assert "the job starts" not in guest.output  # before this host came; `edl events` has it
    assert sorted(m["host"] for m in facts["members"]) == ["a", "a", "b", "b"]
    guest.signal(signal.SIGINT)
    assert guest.wait() == 0
    assert "edl: host b has left job j" in guest.output
    facts = shell.until_size(2)
    assert facts["desired"] == {"a": 2, "b": 0}
    assert shell.edl("stop").returncode == 0
    assert job.wait() == 143


def test_who_still_ends_an_earlier_job_of_that_name_is_no_host_of_the_next(shell: Shell) -> None:
    """Its session lives, and the secret stays: it would keep a worker of the new job."""
    (shell.directory / "train.py").write_text(
        "import os, runpy, signal, sys\n"
        f"sys.argv[0] = {STANDIN!r}\n"
        f"runpy.run_path({STANDIN!r}, run_name='__main__')\n"
        "while os.environ['EDL_HOST'] == 'b':\n"
        "    signal.pause()\n"  # it saves and evaluates, until somebody ends it
    )
    first = shell.start(*RUN, sys.executable, "train.py", "--until", "enough")
    shell.until_size(2)
    other = shell.start("join", "--job", "j", "--host", "b", "--slots", "1", "-np", "1")
    shell.until_size(3)
    enough = shell.directory / "enough"
    enough.touch()
    assert first.wait() == 0, first.output
    enough.unlink()
    next_one = shell.start(*RUN, sys.executable, "train.py")
    assert other.wait() == 1
    assert "edl: job 'j' is over, and a new one of that name has taken its place" in other.output
    assert set(shell.until_size(2)["hosts"]) == {"a"}
    assert shell.edl("stop", "j").returncode == 0
    assert next_one.wait() == 143


def test_a_job_without_an_agent_can_be_stopped(shell: Shell) -> None:
    job = start(shell)
    shell.until_size(2)
    job.signal(signal.SIGKILL)
    job.wait()
    assert shell.edl("stop").returncode == 0
    assert shell.status()["state"] == "stopped"
    until(lambda: not shell.processes(), WAIT_S)


def test_a_refused_leave(shell: Shell) -> None:
    job = start(shell, run=("run", "-np", "1", "--max-np", "4", "--slots", "1", *RUN[5:]))
    shell.until_size(1)
    guest = shell.start("join", "--job", "j", "--host", "b", "--slots", "1")
    guest.expect("host b offers")
    assert shell.edl("scale", "--np", "2").returncode == 0
    facts = shell.until_size(2)
    on_a = next(m["id"] for m in facts["members"] if m["host"] == "a")
    assert shell.edl("drain", "j", on_a).returncode == 0
    shell.until_size(1)
    guest.signal(signal.SIGINT)
    guest.expect("host b cannot leave job j: 0 workers would be left and min_np is 1")
    assert shell.until_size(1)["desired"] == {"a": 0, "b": 1}
    assert shell.edl("stop").returncode == 0
    assert (guest.wait(), job.wait()) == (0, 143)


def test_workers_outlive_their_agent_and_another_one_finds_them(shell: Shell) -> None:
    job = start(shell)
    before = shell.until_size(2)
    job.signal(signal.SIGKILL)
    job.wait()
    until(lambda: shell.status()["hosts"] == {}, WAIT_S)
    assert shell.until_size(2)["members"] == before["members"]
    again = shell.start("join", "--job", "j", "--host", "a", "--slots", "3")
    again.expect("host a offers 3 slots")
    assert shell.edl("scale", "--np", "3").returncode == 0
    facts = shell.until_size(3)
    assert facts["members"][:2] == before["members"]
    assert shell.edl("stop").returncode == 0
    assert again.wait() == 0


def test_a_worker_that_dies_before_it_joins_is_started_again(shell: Shell) -> None:
    (shell.directory / "train.py").write_text(
        "import os, runpy, sys\n"
        "if os.environ['EDL_SLOT'] == '1' and not os.path.exists('once'):\n"
        "    open('once', 'w').close()\n"
        "    sys.exit('not yet')\n"
        f"sys.argv[0] = {STANDIN!r}\n"
        f"runpy.run_path({STANDIN!r}, run_name='__main__')\n"
    )
    job = shell.start(*RUN, sys.executable, "train.py", "--steps", "50")
    assert job.wait() == 0
    (failed,) = [event for event in shell.events() if event["kind"] == "worker_failed"]
    assert (failed["exit_code"], failed["slot"], failed["host"]) == (1, 1, "a")
    assert failed["reason"] == "slot 1 on a exited with code 1; its last line: not yet"


def test_a_worker_that_the_system_cannot_start_is_tried_again(shell: Shell) -> None:
    """As when memory, processes or the disk run out; here nothing can be written to its log."""
    job = start(shell)
    shell.until_size(2)
    (logs,) = (shell.directory / "state").glob("edl/jobs/j/logs")
    logs.rename(logs.with_name("earlier"))
    logs.touch()
    assert shell.edl("scale", "j", "--np", "3").returncode == 0

    def failed() -> list[str]:
        return [event["reason"] for event in shell.events() if event["kind"] == "worker_failed"]

    until(lambda: len(failed()) >= 2, WAIT_S)
    command = f"{sys.executable} {STANDIN}"
    end = f"exited with code 126; its last line: cannot start {command}: File exists"
    assert set(failed()) == {f"slot 2 on a {end}"}
    logs.unlink()
    shell.until_size(3)
    assert shell.edl("stop", "j").returncode == 0
    assert job.wait() == 143


def test_an_error_on_all_workers_ends_the_job(shell: Shell) -> None:
    job = start(shell, "--fail-at", "5", "--code", "3")
    assert job.wait() == 3
    facts = shell.status()
    assert (facts["state"], facts["exit_code"]) == ("failed", 3)
    assert "exited with code 3; the last line of w" in facts["reason"]
    assert "fails on purpose" in facts["reason"]


def test_training_goes_on_when_nobody_reads_the_output(shell: Shell) -> None:
    read, write = os.pipe()
    words = [*RUN, sys.executable, STANDIN, "--steps", "30"]
    job = psutil.Popen(
        [sys.executable, "-m", "edl.cli.main", *words],
        cwd=shell.directory,
        env=shell.environment,
        stdout=write,
        stderr=write,
    )
    os.close(read)
    os.close(write)
    assert job.wait(WAIT_S) == 0
    assert shell.status()["state"] == "finished"


def test_zookeeper_is_away_for_a_while(shell: Shell, tmp_path: Path) -> None:
    state = tmp_path / "own-zookeeper"
    shell.environment["EDL_ZOOKEEPER"] = shell.mark = start_local(state)
    try:
        job = start(shell)
        before = shell.until_size(2)
        stop_local(state)
        job.expect("ZooKeeper is away; training goes on")
        assert start_local(state) == shell.mark
        job.expect("ZooKeeper is back")
        until(lambda: shell.status()["hosts"] == {"a": 4}, WAIT_S)
        after = shell.until_size(2)
        assert after["generation"] == before["generation"]
        assert [m["pid"] for m in after["members"]] == [m["pid"] for m in before["members"]]
        assert job.output.count("ZooKeeper is away") == 1
        assert shell.edl("stop", "j").returncode == 0
        assert job.wait() == 143
    finally:
        stop_local(state)


def test_edl_run_starts_a_local_zookeeper_that_the_others_find(shell: Shell) -> None:
    del shell.environment["EDL_ZOOKEEPER"]
    assert "no local ZooKeeper runs" in shell.edl("zookeeper", "status").stdout
    try:
        done = shell.edl(*RUN, sys.executable, STANDIN, "--steps", "5")
        assert done.returncode == 0, done.stderr
        assert json.loads(shell.edl("status", "j", "--json").stdout)["state"] == "finished"
        assert "ZooKeeper runs at 127.0.0.1:" in shell.edl("zookeeper", "status").stdout
    finally:
        assert shell.edl("zookeeper", "stop").stdout == "the local ZooKeeper is stopped\n"


def test_watch_and_follow_end_with_the_job(shell: Shell) -> None:
    job = start(shell, "--until", "enough")
    shell.until_size(2)
    verbs = "status j --watch --json", "status j --watch", "events j --follow"
    watching = [shell.start(*verb.split()) for verb in verbs]
    watching[1].expect("2 of 2 workers; w")
    (shell.directory / "enough").touch()
    assert job.wait() == 0
    assert [one.wait() for one in watching] == [0, 0, 0]
    objects, lines, events = (one.output.splitlines() for one in watching)
    assert '"state": "finished"' in objects[-1]
    assert len({text.partition("; ")[2] for text in lines}) > 1, lines
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d .*; finished: .*", lines[-1]), lines
    assert "the job starts with 2 of 2 workers" in "".join(events)
