"""An unmodified elastic `horovodrun` as launcher: it starts processes, edl rebuilds the rings."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import forked
import psutil
import pytest
from horovodrun import (
    DISCOVER,
    HOROVODRUN,
    STANDIN,
    WORKER,
    HorovodrunScenario,
    StandinScenario,
)
from paths import SCRIPTS
from scenario import alive, scenario

from edl.testing.job import Status
from edl.testing.zookeeper import ensemble

pytestmark = [pytest.mark.integration, pytest.mark.slow]

WANTED = "localhost:2"
SLOW_S = 180.0  # for horovodrun itself, and two workers at once, to import TensorFlow


@pytest.mark.parametrize(
    ("script", "shield", "np", "driver"),
    [
        pytest.param("counting.py", WORKER, 1, HOROVODRUN, id="torch"),
        pytest.param("counting.py", (), 2, HOROVODRUN, id="torch-alone", marks=pytest.mark.long),
        pytest.param(
            "tf_counting.py", WORKER, 2, HOROVODRUN, id="tensorflow", marks=pytest.mark.long
        ),
    ],
)
def test_out_and_in_and_a_killed_worker(
    tmp_path: Path,
    zk_hosts: str,
    script: str,
    shield: tuple[str, ...],
    np: int,
    driver: Sequence[str],
) -> None:
    """Grow by one worker, shrink again, kill one: samples count once, horovodrun ends with 0."""
    with scenario(
        tmp_path,
        zk_hosts,
        np=np,
        max_np=4,
        kind=HorovodrunScenario,
        script=SCRIPTS / script,
        shield=shield,
        driver=driver,
    ) as job:
        job.wait_for_size(np, SLOW_S)
        job.scale(np + 1)
        job.wait_for_size(np + 1, SLOW_S)
        victim = job.process("w1")
        victim.kill()
        job.wait(lambda now: "w1" not in named(now), "end of w1")
        job.wait_for_size(np + 1, SLOW_S)  # it was started again, in the same slot
        job.wait(lambda now: f"w{np + 1}" in named(now), "a new worker in its place")
        job.scale(np)
        job.wait_for_size(np)
        job.prove(workers=np)
        kinds = [event["kind"] for event in job.events()]
        switches = job.events("switch")
    stalls = [
        parts["stall_s"]
        for switch in switches
        for parts in switch["workers"].values()
        if parts["role"] == "old"
    ]
    assert len(switches) >= 3  # a ring of a step or two shows nothing
    assert max(stalls) < 5.0  # nobody waited for a newcomer to start
    assert kinds.count("worker_failed") == 1
    assert "job_finished" in kinds or "finished" in kinds


@pytest.mark.long
def test_a_script_for_horovod_elastic(tmp_path: Path, zk_hosts: str) -> None:
    """One changed import, and all else as Horovod's users have it: 2 -> 3, one kill -9, -> 2."""
    with scenario(
        tmp_path,
        zk_hosts,
        np=2,
        max_np=3,
        kind=HorovodrunScenario,
        script=SCRIPTS / "hvd_counting.py",
        shield=WORKER,
        samples=2700,
        batch_size=6,  # any mixture of steps of 1, 2 and 3 workers leaves what 1, 2 and 3 divide
    ) as job:
        job.wait_for_size(2, SLOW_S)
        job.scale(3)
        job.wait_for_size(3, SLOW_S)
        job.process("w1").kill()
        job.wait(lambda now: "w1" not in named(now), "end of w1")
        job.wait_for_size(3, SLOW_S)  # it was started again, in the same slot
        job.scale(2)
        job.wait_for_size(2)
        reports = job.prove(workers=2)
    oldest = max(reports, key=lambda report: len(report["rings"]))
    sizes = [size for size, _ in groupby(ring["size"] for ring in oldest["rings"])]
    assert sizes == [2, 3, 2, 3, 2]


@pytest.mark.long  # tests/README.md, Time
def test_another_driver_is_refused_and_edl_stop_ends_the_first_with_success(
    tmp_path: Path, zk_hosts: str
) -> None:
    """Two never share a job."""
    with scenario(tmp_path, zk_hosts, np=2, max_np=3, kind=StandinScenario) as job:
        job.wait(lambda now: now["world_size"] == 2, "2 workers")
        limits = ("-np", "2", "--max-np", "2", "--host-discovery-script", shlex.join(DISCOVER))
        other = forked.by_exec(
            [*HOROVODRUN, *limits, *WORKER, sys.executable, str(STANDIN)],
            90,
            env=job.environment,
            cwd=tmp_path,
        )
        assert other.returncode != 0
        assert f"the job {job.name} is running, and another launcher" in other.stderr
        assert job.status()["state"] == "running"
        job.scale(3)
        job.wait(lambda now: now["world_size"] == 3, "3 workers")
        assert "w0" in job.try_edl("drain", "w0").stderr
        job.edl("stop")
        assert job.end() == 0


WITH_BASH = ("unshare", "--mount", "sh", "-c", 'mount --bind /bin/bash /bin/sh && exec "$@"', "-")


@pytest.mark.parametrize(
    "here",
    [
        pytest.param((), id="sh"),
        pytest.param(WITH_BASH, id="bash-as-sh", marks=pytest.mark.long),
    ],
)
def test_a_signal_to_horovodrun_ends_the_job(
    here: Sequence[str], tmp_path: Path, zk_hosts: str
) -> None:
    """Bash becomes the last command that it runs: no shell is left for horovodrun to end."""
    with scenario(tmp_path, zk_hosts, np=2, kind=StandinScenario, here=here) as job:
        job.wait(lambda now: now["world_size"] == 2, "2 workers")
        job.until(lambda: repeats(job), "answer of edl-discover that needs no ZooKeeper")
        job.interrupt(signal.SIGTERM)
        job.end(60.0)
        job.until(lambda: job.status()["state"] == "stopped", "end of the job in ZooKeeper")


@pytest.mark.long
def test_a_signal_before_the_first_ring_ends_the_job(tmp_path: Path, zk_hosts: str) -> None:
    """There is no leader yet that could let the ring end."""
    slow = tmp_path / "imports.py"
    slow.write_text("import time\ntime.sleep(600)\n")
    with scenario(tmp_path, zk_hosts, np=2, kind=StandinScenario, script=slow) as job:
        started = [f"slot {slot} runs" for slot in (0, 1)]
        job.until(lambda: all(said in job.output() for said in started), "start of both workers")
        job.interrupt(signal.SIGTERM)
        job.end(60.0)
        job.until(lambda: job.status()["state"] == "stopped", "end of the job in ZooKeeper")


def test_a_script_that_fails_at_once_fails_horovodrun(tmp_path: Path, zk_hosts: str) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("raise SystemExit(7)\n")
    with scenario(tmp_path, zk_hosts, np=2, kind=StandinScenario, script=broken) as job:
        assert job.end() != 0
        assert "broken.py exited with code 7 before joining the job" in job.output()
        assert job.status()["state"] == "failed"


def test_when_all_workers_die_without_a_checkpoint_the_job_has_failed(
    tmp_path: Path, zk_hosts: str
) -> None:
    """The slot's process is the script's, without edl-worker, and starts one that is killed."""
    with scenario(tmp_path, zk_hosts, np=2, kind=StandinScenario, shield=()) as job:
        job.wait(lambda now: now["world_size"] == 2, "2 workers")
        job.process("w1").kill()
        job.wait(lambda now: named(now) == {"w0", "w2"}, "another one")
        for member in job.members("w0", "w2").values():
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(member["pid"]).kill()
        assert job.end() != 0
        assert "there is no checkpoint to resume from" in job.output()


@pytest.mark.long  # tests/README.md, Time
def test_a_slot_that_keeps_failing_stays_empty(tmp_path: Path, zk_hosts: str) -> None:
    """Its edl-worker stays: the driver would bar the host. Each end has its last line."""
    script = tmp_path / "failing.py"
    script.write_text(
        "import os, runpy, sys\n"
        "if os.environ['EDL_SLOT'] == '1':\n"
        "    sys.argv += ['--fail-at', '20']\n"
        "    if os.path.exists('failed'):\n"
        "        raise ValueError('the disk is full')\n"
        "    open('failed', 'w').close()\n"
        "    print('[2026-11-21 19:21:26.287: W horovod/common/x.cc:1] noise', file=sys.stderr)\n"
        f"runpy.run_path({str(STANDIN)!r}, run_name='__main__')\n"
    )
    with scenario(
        tmp_path,
        zk_hosts,
        np=2,
        kind=StandinScenario,
        script=script,
        environment={"EDL_MAX_RESTARTS": "1"},
    ) as job:
        now = job.wait(lambda now: now["disabled_slots"], "end of the crash loop", SLOW_S)
        assert list(now["disabled_slots"]) == ["localhost:1"]
        job.wait(lambda now: len(now["members"]) == 1, "one worker")
        fails = job.events("worker_failed")
        job.edl("stop")
        assert job.end() == 0
        (exited,) = job.events("worker_exited")
    assert [(f["exit_code"], f["slot"], f["termination_message"]) for f in fails] == [
        (3, 1, ""),
        (1, 1, "ValueError: the disk is full (failing.py:5)"),
    ]
    assert (exited["exit_code"], exited["slot"]) == (0, 0)


@pytest.mark.long  # tests/README.md, Time
def test_what_a_wrapper_has_started_dies_with_it_and_all_with_the_driver(
    tmp_path: Path, zk_hosts: str
) -> None:
    """Else two would train in one slot."""
    shield = (*WORKER, "bash", "-c", '"$@"; exit $?', "wrapper")  # bash stays: it does not exec
    with scenario(tmp_path, zk_hosts, np=2, kind=StandinScenario, shield=shield) as job:
        job.wait(lambda now: now["world_size"] == 2, "2 workers")
        victim = job.process("w1")
        wrapper = victim.parent()
        assert wrapper.name() == "bash"
        wrapper.kill()
        job.until(lambda: not alive(victim), "end of what it had started", timeout_s=10.0)
        job.wait(lambda now: now["world_size"] == 2 and named(now) != {"w0", "w1"}, "another one")
        job.agent().kill()
        job.until(lambda: not job.processes(), "end of all processes")


@pytest.mark.long  # tests/README.md, Time
def test_sigterm_to_an_edl_worker_gives_up_a_slot(tmp_path: Path, zk_hosts: str) -> None:
    """The driver takes the highest one, so the slot that was asked begins again."""
    with scenario(tmp_path, zk_hosts, np=3, max_np=3, kind=StandinScenario) as job:
        job.wait(lambda now: now["world_size"] == 3, "3 workers")
        with job.store() as store:
            job.until(lambda: store.snapshot().desired.hosts, "the word of edl-discover")
        before = slots(job)
        before[0].parent().terminate()
        job.until(lambda: slots(job).keys() == {0, 1} and slots(job)[0] != before[0], "2 slots")
        # The status may be a second older: of the ring of 2 that the first one to leave left.
        job.wait(
            lambda now: (now["world_size"], now["assigned"]) == (2, {"localhost": 2}), "ring of 2"
        )
        job.edl("stop")
        assert job.end() == 0


@pytest.mark.long
def test_the_only_host_is_not_barred_when_an_edl_worker_is_killed(
    tmp_path: Path, zk_hosts: str
) -> None:
    """The driver would end the job at the next change of slots, so none is made any more."""
    with scenario(tmp_path, zk_hosts, np=2, max_np=3, kind=StandinScenario) as job:
        now = job.wait(lambda now: now["world_size"] == 2, "2 workers")
        psutil.Process(now["members"][1]["pid"]).parent().kill()
        job.until(lambda: "and is not scaled: the driver would end it" in job.output(), "sentence")
        job.scale(3)
        step = job.status()["step"]
        job.wait(lambda now: now["step"] >= step + 250, "five seconds of training")
        assert job.status()["state"] == "running"
        job.edl("stop")
        assert job.end() != 0  # horovodrun counts the one that was killed


@pytest.mark.long  # `make test` takes it away from `edl run`: test_sessions.py
def test_two_hosts_and_a_zookeeper_that_comes_back(tmp_path: Path) -> None:
    with (
        ensemble(tmp_path, 1) as (zookeeper,),
        scenario(
            tmp_path,
            zookeeper.hosts,
            np=2,
            max_np=3,
            kind=StandinScenario,
            discover=(*DISCOVER, "localhost:2", "127.0.0.1:1"),
        ) as job,
    ):
        now = job.wait(lambda now: now["world_size"] == 2, "2 workers")
        assert now["assigned"] == {"localhost": 1, "127.0.0.1": 1}
        generation = now["generation"]
        zookeeper.kill()
        job.wait(lambda now: now["away"], "ZooKeeper away")
        zookeeper.start()
        job.wait(lambda now: not now["away"], "ZooKeeper back")
        refused = job.try_edl("scale", "--np", "4")
        assert (refused.returncode, "max_np is 3" in refused.stderr) == (2, True)
        job.scale(3)
        now = job.wait(lambda now: now["world_size"] == 3, "3 workers")
        assert now["assigned"] == {"localhost": 2, "127.0.0.1": 1}
        assert now["generation"] == generation + 1
        job.edl("stop")
        assert job.end() == 0


LATE = (
    "sh",
    "-c",
    'touch begun; while [ ! -e go ]; do sleep 0.05; done; exec "$@"',
    "late",
    *WORKER,
)
ONE, TWO, THREE = (f"localhost:{slots}\n127.0.0.1:{n}\n" for slots, n in ((1, 0), (1, 1), (2, 1)))


@pytest.mark.long  # unit/test_late_start.py
@pytest.mark.parametrize(
    ("changes", "options", "assigned"),
    [
        pytest.param((ONE, TWO), (), {"localhost": 1, "127.0.0.1": 1}, id="a-host-comes"),
        pytest.param((TWO, ONE), (), {"localhost": 1, "127.0.0.1": 0}, id="a-host-goes"),
        pytest.param((ONE, TWO, THREE), (), {"localhost": 2, "127.0.0.1": 1}, id="two-come"),
        pytest.param(
            (ONE, TWO), ("--reset-limit", "1"), {"localhost": 1, "127.0.0.1": 1}, id="limited"
        ),
    ],
)
def test_hosts_that_change_while_the_workers_start(
    changes: Sequence[str],
    options: Sequence[str],
    assigned: dict[str, int],
    tmp_path: Path,
    zk_hosts: str,
) -> None:
    """The driver tells nobody of it: rank 0, whom it tells of changes, is not there yet."""
    hosts = tmp_path / "hosts"
    hosts.write_text(changes[0])
    script = tmp_path / "mine"
    script.write_text("#!/bin/sh\ncat hosts\ncp hosts said\n")
    script.chmod(0o755)
    with scenario(
        tmp_path,
        zk_hosts,
        np=changes[0].count(":1"),
        max_np=3,
        kind=StandinScenario,
        discover=(str(script),),
        shield=LATE,
        options=options,
    ) as job:
        job.until((tmp_path / "begun").exists, "start of a slot")
        for change in changes[1:]:
            hosts.write_text(change)
            job.until(lambda: (tmp_path / "said").read_text() == hosts.read_text(), "look there")
        (tmp_path / "go").touch()
        size = sum(assigned.values())
        job.wait(lambda now: (now["world_size"], now["assigned"]) == (size, assigned), "new hosts")
        job.edl("stop")
        assert job.end() == 0


def call(*words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    outside = {k: v for k, v in os.environ.items() if not k.startswith(("EDL_", "HOROVOD_"))}
    return forked.by_exec(words, 120, env=outside | environment)


def test_wrong_uses_are_one_sentence(tmp_path: Path, zk_hosts: str) -> None:
    bare = call(*WORKER, sys.executable, STANDIN)
    assert bare.returncode == 2
    assert bare.stderr.count("\n") == 1
    assert "edl-worker is started by elastic horovodrun" in bare.stderr
    for words, said in {
        (): "no host is offered",
        ("node1",): "'node1' is no host with its slots",
        ("--file", str(tmp_path / "none")): "cannot read the hosts file",
    }.items():
        done = call(*DISCOVER, *words)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert said in done.stderr


def test_a_hosts_file_is_printed_as_it_is(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("# two machines\nnode1:4\n\nnode2:2  # the small one\n")
    assert call(*DISCOVER, "--file", hosts).stdout == "node1:4\nnode2:2\n"
    hosts.write_text("localhost:2\n")
    assert call(*DISCOVER, "--file", hosts).stdout == "localhost:2\n127.0.0.1:0\n"


def test_the_wrong_horovodrun_is_named(tmp_path: Path, zk_hosts: str) -> None:
    """Without a discovery script each process would train alone, unnoticed.

    The script has the part of `edl.init()` that is the same for all frameworks.
    """
    script = tmp_path / "plain.py"
    script.write_text(
        "from edl.binding.process import start\nstart(lambda: None, {})\nprint('alone')\n"
    )
    done = call(
        *HOROVODRUN, "-np", "2", sys.executable, script, OMP_NUM_THREADS="1", EDL_ZOOKEEPER=zk_hosts
    )
    assert done.returncode != 0
    assert "a launcher without elasticity" in done.stdout + done.stderr
    assert "alone" not in done.stdout
    assert not alive_with(tmp_path)


def named(now: Status) -> set[str]:
    return {member["id"] for member in now["members"]}


def slots(job: HorovodrunScenario) -> dict[int, psutil.Process]:
    with job.store() as store:
        return {member.slot: psutil.Process(member.pid) for member in store.snapshot().members}


def repeats(job: HorovodrunScenario) -> bool:
    """Return whether `edl-discover` has kept its answer for as many workers as are desired."""
    state = Path(job.environment["XDG_STATE_HOME"], "edl", "horovodrun")
    kept = {path.read_text() for path in state.glob("*.desired")}
    return kept == {path.read_text().split("\0")[1] for path in state.glob("*.said")} == {WANTED}


def alive_with(directory: Path) -> list[psutil.Process]:
    """Return the living processes that run something in ``directory``."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if any(str(directory) in word for word in process.cmdline()) and alive(process):
                found.append(process)
    return found
