"""Agents that run as other users of the machine: what the code of a tenant tries in vain.

`edl host` starts a shell script in place of `edl agent`. It runs as root here, as it must for this.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from edl.cluster.host import agents as host_agents
from edl.cluster.host.agents import AgentOptions, HostAgents, StartOfRun
from edl.cluster.host.logs import LogPlaces
from edl.cluster.host.processes import RUN_VARIABLE, find_processes, run_mark
from edl.cluster.host.users import JobUser, JobUsers, SecretFiles, job_users
from edl.cluster.manifest import JobManifest

pytestmark = [pytest.mark.integration, pytest.mark.long]

Wait = Callable[..., None]
RUN = "0" * 24


@pytest.fixture
def root() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="edl-users-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def users(root: Path) -> JobUsers:
    found = {}
    for tenant, user in job_users(["ann=nobody", "bob=daemon"]).of_tenants.items():
        home = root / tenant
        home.mkdir(mode=0o700)
        os.chown(home, user.uid, user.gid)
        found[tenant] = JobUser(user.name, user.uid, user.gid, user.groups, home)
    return JobUsers(found)


def test_the_code_of_a_tenant_reads_nothing_of_root_or_of_another_tenant(
    root: Path, users: JobUsers, monkeypatch: pytest.MonkeyPatch, wait_until: Wait
) -> None:
    state = root / "state"
    state.mkdir(mode=0o700)
    (state / "secret").write_text("of the cluster")
    places = LogPlaces(state / "jobs", state / "agents", users)
    script = root / "agent.sh"
    options = AgentOptions("a", "m", 2, "10.0.0.5", "zoo:2181")
    environment = {"PATH": os.environ["PATH"], "AWS_SECRET": "of root", "EDL_SECRET": "x" * 64}
    agents = HostAgents(options, places, environment, SecretFiles(root / "secrets"), users)
    monkeypatch.setattr(host_agents, "sys", SimpleNamespace(executable=str(script)))

    def start(job: str, lines: str) -> Path:
        script.write_text(f"#!/bin/sh\n{lines}\necho done\n")
        script.chmod(0o755)
        run = StartOfRun(
            RUN,
            JobManifest(job, ("x",), 1, 1),
            f"secret of {job}",
            {f"{job}.key": f"key of {job}".encode()},
        )
        agents.start(run)
        log = places.of_agent(job, RUN)
        wait_until(lambda: not agents.children() and log.read_text().endswith("done\n"))
        return log

    start("ann.digits", 'umask; echo hidden > "$HOME/data"')
    (secrets,) = root.glob("secrets*")
    victim = f"{secrets}/ann.digits+{RUN}"
    assert (users.of_tenants["ann"].directory / "data").stat().st_mode & 0o777 == 0o600
    log = start(
        "bob.digits",
        f"""
        echo "user $(id -u) groups $(id -G) home $HOME"
        echo "own $(cat "$EDL_SECRET_FILE") $(cat "$EDL_SECRETS_DIR/bob.digits.key")"
        for path in {state}/secret {root}/ann/data {victim}/ann.digits.key {places.agents}; do
            cat $path 2>&1; ls $path 2>&1
        done
        ls {secrets} {victim} 2>&1
        rm -f {secrets}/bob.digits+{RUN}/bob.digits.key 2>&1
        ln -s {state}/secret $EDL_SECRETS_DIR/link 2>&1
        env
        """,
    )
    said = log.read_text()
    bob = users.of_tenants["bob"]
    groups = " ".join(str(group) for group in sorted(bob.groups))
    assert f"user {bob.uid} groups {groups} home {bob.directory}" in said
    assert "own secret of bob.digits key of bob.digits" in said
    for hidden in ("of the cluster", "hidden", "of root", "secret of ann", "key of ann"):
        assert hidden not in said, said
    assert "EDL_SECRET=" not in said
    assert said.count("Permission denied") >= 10
    assert (secrets / f"bob.digits+{RUN}" / "bob.digits.key").exists()

    with pytest.raises(PermissionError, match="has been given no user for job digits"):
        start("digits", "")


def test_a_process_of_another_user_passes_for_none_of_a_job(users: JobUsers) -> None:
    """Bob gives a process of his the environment of ann's; ann's own is found."""
    mark = f"{os.getpid():032x}"
    ann, bob = (users.of_tenants[tenant] for tenant in ("ann", "bob"))
    environment = {RUN_VARIABLE: run_mark(mark, "ann.digits", RUN)}
    command = ["/bin/sleep", "60"]
    with (
        subprocess.Popen(command, env=environment, user=bob.uid) as forged,
        subprocess.Popen(command, env=environment, user=ann.uid) as own,
    ):
        try:
            assert [one.pid for one in find_processes(mark, users)] == [own.pid]
            assert len(find_processes(mark)) == 2
        finally:
            forged.kill()
            own.kill()
