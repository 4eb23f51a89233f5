"""What `edl host --memory-per-slot` limits, by a real systemd: a job that takes more is killed."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import forked
import pytest
from cli_shell import STANDIN
from systemd_namespace import Systemd, booted

from benchmarks.cluster.live import LiveCluster
from edl.cluster.manifest import JobManifest
from edl.spec import JobSettings
from edl.testing.zookeeper import ensemble

pytestmark = [pytest.mark.integration, pytest.mark.long]

Wait = Callable[..., None]
ROOT = Path(__file__).resolve().parents[2]
MEMORY, TASKS = 400 << 20, 300  # of a slot
SETTINGS = JobSettings(template=False, max_restarts=0)

# It takes so many MB in a process of its own, and says what became of that.
TAKES = """
import os, sys
pid = os.fork()
if not pid:
    taken = b"x" * (int(sys.argv[1]) << 20)
    os._exit(0)
_, status = os.waitpid(pid, 0)
print("the child ended with", os.waitstatus_to_exitcode(status), flush=True)
print("cgroup", open("/proc/self/cgroup").read().split(), flush=True)
sys.exit(3)
"""

# The agents of `edl host`, whose agent is a shell script, run as "nobody".
STARTS = """
import os, sys, time
from pathlib import Path
from types import SimpleNamespace
from edl.cluster.manifest import JobManifest
from edl.cluster.records import HostAssignment, JobAssignment
from edl.cluster.host_jobs import SlotLimits
from edl.cluster.host import agents as host_agents
from edl.cluster.host.agents import AgentOptions, HostAgents, StartOfRun
from edl.cluster.host.users import JobUser, JobUsers, job_users
from edl.cluster.host.logs import LogPlaces
from edl.cluster.host.users import SecretFiles
from edl.cluster.host.processes import Slices

root, run = Path(sys.argv[1]), "0" * 24
own = job_users(["nobody"]).find("j")
users = JobUsers({"": JobUser(own.name, own.uid, own.gid, own.groups, root / "home")})
places = LogPlaces(root / "jobs", root / "agents", users)
host_agents.sys = SimpleNamespace(executable=str(root / "agent"))
agents = HostAgents(
    AgentOptions("a", "m", 2, "127.0.0.1", "zoo:1"), places, dict(os.environ),
    SecretFiles(root / "secrets"), users, Slices(SlotLimits(memory_bytes=100 << 20), "m"),
)
agents.limit(HostAssignment({"j": JobAssignment(run, (0, 1))}))
environment = {"LD_PRELOAD": "/no/such/library.so", "PYTHONPATH": str(root), "PYTHONSTARTUP": "x"}
agents.start(StartOfRun(run, JobManifest("j", ("x",), 1, 1, env=environment), "the secret"))
while agents.children():
    time.sleep(0.02)
print(places.of_agent("j", run).read_text())
"""


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    with booted(tmp_path) as one:
        yield one


@pytest.fixture
def lab(systemd: Systemd, tmp_path: Path) -> Iterator[LiveCluster]:
    place = tmp_path / "lab"
    place.mkdir()
    with ensemble(place, 1) as [zookeeper]:
        options = {"policy": "max_min", "environment": {"EDL_TEMPLATE": "0"}}
        with LiveCluster(place, zookeeper.hosts, enter=systemd.enter, **options) as one:
            yield one


def test_a_job_gets_so_much_for_each_slot(
    lab: LiveCluster, systemd: Systemd, tmp_path: Path, wait_until: Wait
) -> None:
    lab.start_controller()
    limits = ("--memory-per-slot", "400M", "--tasks-per-slot", str(TASKS), "--cpus-per-slot", "2")
    lab.start_host("a", 2, *limits)
    script = tmp_path / "takes.py"
    script.write_text(textwrap.dedent(TAKES))
    command = (sys.executable, STANDIN)
    trains = JobManifest("trains", command, 1, 2, cwd=str(tmp_path), settings=SETTINGS)

    def says(limit: int) -> dict[str, str]:
        return {
            "MemoryMax": str(limit * MEMORY),
            "TasksMax": str(limit * TASKS),
            "CPUQuotaPerSecUSec": f"{2 * limit}s",
        }

    def takes(name: str, megabytes: int) -> JobManifest:
        command = (sys.executable, str(script), str(megabytes))
        return replace(trains, name=name, command=command, max=1, retries=0)

    def ended(name: str) -> bool:
        return client.show(name).job.outcome == "failed"

    def logs(name: str) -> str:
        return "".join(one.text for one in client.logs(name))

    with lab.client() as client:
        client.submit(trains)
        wait_until(lambda: len(systemd.slices()) == 1, 60.0)
        [first] = systemd.slices()
        wait_until(lambda: systemd.properties(first, *says(2)) == says(2), 60.0)
        wait_until(lambda: "standin_worker" in systemd.systemctl("status", first), 60.0)

        client.submit(takes("little", 200))  # it takes a slot of the first one
        wait_until(lambda: systemd.properties(first, *says(1)) == says(1), 60.0)
        wait_until(lambda: ended("little"), 60.0)
        assert "the child ended with 0" in logs("little")
        client.submit(takes("much", 800))
        wait_until(lambda: ended("much"), 60.0)
        assert "the child ended with -9" in logs("much"), "the kernel has killed it"
        wait_until(lambda: systemd.slices() == [first], 60.0)
        assert "standin_worker" in systemd.systemctl("status", first), "the other job lives on"

        lab.hosts["a"].kill()
        wait_until(lambda: lab.hosts["a"].starts == 2 and lab.hosts["a"].pid, 60.0)
        wait_until(lambda: systemd.properties(first, *says(2)) == says(2), 60.0)
        client.delete("trains")
        wait_until(lambda: not systemd.slices(), 60.0)
    left = systemd.systemctl("show", first, "--property=DropInPaths")
    assert left == "DropInPaths=", "nothing of it is left"


def test_nothing_of_a_tenant_reaches_what_runs_as_root(systemd: Systemd, tmp_path: Path) -> None:
    """The environment of its manifest comes to its own user's processes, which are limited."""
    root = Path(tempfile.mkdtemp(prefix="edl-limits-"))  # pytest's none but its user can enter
    try:
        root.chmod(0o755)
        (root / "home").mkdir()
        os.chown(root / "home", pwd.getpwnam("nobody").pw_uid, -1)
        agent = root / "agent"
        agent.write_text(
            "#!/bin/sh\necho user $(id -u) groups $(id -G) umask $(umask)\n"
            "echo preload $LD_PRELOAD startup $PYTHONSTARTUP\ncat $EDL_SECRET_FILE\n"
            "cat /proc/self/cgroup\n"
        )
        agent.chmod(0o755)
        (root / "json.py").write_text("raise SystemExit('it was imported by root')")
        done = forked.by_exec(
            [*systemd.enter, sys.executable, "-c", STARTS, str(root)],
            120,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            check=True,
        )
    finally:
        shutil.rmtree(root)
    nobody = pwd.getpwnam("nobody")
    groups = sorted({nobody.pw_gid, *os.getgrouplist("nobody", nobody.pw_gid)})
    said = done.stdout
    assert f"user {nobody.pw_uid} groups {' '.join(map(str, groups))} umask 0077" in said
    assert "preload /no/such/library.so startup x" in said
    assert "the secret" in said
    assert re.search(r":memory:.*/edl-.*-.*\.slice/.*\.scope|^0::.*/edl-.*\.slice/", said, re.M)
    # Each of the five programs of the agent says that it cannot load the library; root's do not.
    assert said.count("ERROR: ld.so") == 5, said
    assert "imported by root" not in said + done.stderr
