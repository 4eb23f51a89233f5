"""The recipes' own commands run here, for real: the spot notice, the pod, the systemd unit."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli_shell import STANDIN, WAIT_S, Running, Shell, shell, until
from metadata import Service, service
from paths import ROOT
from scenario import scenario

from edl.testing.job import EDL

pytestmark = pytest.mark.integration
__all__ = ["shell"]

RECIPES = ROOT / "recipes"
NOTICE = RECIPES / "spot" / "notice.py"
DEAF_TO_NOTHING = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print("up", flush=True)
time.sleep(60)
"""
COUNTING = """
import signal, time
signals = []
signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))
print("up", flush=True)
while not signals:
    time.sleep(0.02)
print("leaving", flush=True)
time.sleep(1.5)
raise SystemExit(len(signals))
"""


@contextmanager
def on_spot(provider: str, url: str, *command: str | Path, **options: Any) -> Iterator[Running]:
    """notice.py around a command; ``options``: of Popen."""
    words = [sys.executable, NOTICE, "--provider", provider, "--url", url, "--every", "0.1", "--"]
    with _running([*words, *command], **options) as running:
        yield running


@contextmanager
def _running(words: Sequence[str | Path], cwd: Path, **options: Any) -> Iterator[Running]:
    log = cwd / f"{time.monotonic_ns()}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            words, stdout=output, stderr=subprocess.STDOUT, cwd=cwd, **options
        )
    running = Running(process, log)
    try:
        yield running
    finally:
        process.kill()
        process.wait(10)


@pytest.fixture
def cloud() -> Iterator[Service]:
    with service() as one:
        yield one


@pytest.mark.parametrize("provider", ["aws", "gcp", "azure"])
def test_the_notice_of_each_provider_is_understood(
    provider: str, cloud: Service, tmp_path: Path
) -> None:
    with on_spot(provider, cloud.url, sys.executable, "-c", DEAF_TO_NOTHING, cwd=tmp_path) as agent:
        agent.expect("up")
        until(lambda: cloud.asked >= 3, WAIT_S, lambda: agent.output)
        assert agent.process.poll() is None, agent.output  # asked again and again, it goes on
        cloud.noticed = True
        assert agent.wait() == 7
        assert agent.output.count("the host leaves the job") == 1


def test_a_silent_metadata_service_ends_nothing(tmp_path: Path) -> None:
    with service() as one:
        url = one.url
    command = [sys.executable, "-c", DEAF_TO_NOTHING]
    with on_spot("aws", url, *command, cwd=tmp_path) as agent:
        agent.expect("does not tell whether this instance stays")
        agent.expect("up")
        agent.signal(signal.SIGTERM)
        assert agent.wait() == 7


def test_a_metadata_service_that_fails_is_asked_again_and_logged_once(
    cloud: Service, tmp_path: Path
) -> None:
    cloud.broken = True
    with on_spot("aws", cloud.url, sys.executable, "-c", DEAF_TO_NOTHING, cwd=tmp_path) as agent:
        agent.expect("up")
        until(lambda: cloud.asked >= 5, WAIT_S, lambda: agent.output)
        assert agent.output.count("does not tell") == 1
        assert agent.process.poll() is None
        cloud.noticed, cloud.broken = True, False
        assert agent.wait() == 7


@pytest.mark.parametrize("notice_first", [True, False])
def test_an_agent_gets_one_signal_though_a_shutdown_and_a_notice_come(
    notice_first: bool, cloud: Service, tmp_path: Path
) -> None:
    with on_spot("aws", cloud.url, sys.executable, "-c", COUNTING, cwd=tmp_path) as agent:
        agent.expect("up")
        if notice_first:
            cloud.noticed = True
        else:
            agent.signal(signal.SIGTERM)
        agent.expect("leaving")
        cloud.noticed = True
        for _ in range(5):  # while the agent leaves
            agent.signal(signal.SIGTERM)
            time.sleep(0.1)
        assert agent.wait() == 1, agent.output


def test_a_command_that_does_not_exist_is_one_sentence(cloud: Service, tmp_path: Path) -> None:
    with on_spot("aws", cloud.url, "edll", "join", cwd=tmp_path) as agent:
        assert agent.wait() == 127
        (sentence,) = agent.output.splitlines()
        assert "edll cannot be started: No such file or directory" in sentence


@pytest.mark.slow
@pytest.mark.long  # `make test` gives notice to pods
def test_a_spot_host_leaves_upon_the_notice_and_each_sample_counts_once(
    tmp_path: Path, zk_hosts: str, cloud: Service
) -> None:
    with scenario(tmp_path, zk_hosts, np=2, max_np=3, options=["--host", "a"]) as job:
        job.wait_for_size(2)
        join = [EDL, "join", "--job", job.name, "--host", "spot", "--slots", "1", "-np", "1"]
        with on_spot("aws", cloud.url, *join, cwd=tmp_path, env=job.environment) as agent:
            job.wait_for_size(3)  # nobody has called `edl scale`
            cloud.noticed = True
            assert agent.wait() == 0, agent.output
            assert "edl: host spot has left job" in agent.output
        assert job.status()["desired"] == {"a": 2, "spot": 0}
        job.wait_for_size(2)
        # The next one is lost without a notice, and another takes its place.
        cloud.noticed = False
        lost = [*join[:5], "lost", *join[6:]]
        with on_spot("aws", cloud.url, *lost, cwd=tmp_path, env=job.environment) as agent:
            now = job.wait_for_size(3)
            pids = [member["pid"] for member in now["members"] if member["host"] == "lost"]
            agents = [p.pid for p in job.processes() if p.ppid() == agent.process.pid]
            for pid in (*agents, *pids):
                os.kill(pid, signal.SIGKILL)
            assert agent.wait() == 128 + signal.SIGKILL
        with on_spot("aws", cloud.url, *join, cwd=tmp_path, env=job.environment) as agent:
            job.wait(lambda now: now["desired"].get("spot") == 1, "the place of the lost host")
            job.wait_for_size(3)
            assert job.status()["desired"] == {"a": 2, "lost": 0, "spot": 1}
            job.prove(workers=3)
            assert agent.wait() == 0, agent.output


def container_of(file: str, kind: str) -> dict[str, Any]:
    """Return the only container of the pods of a manifest."""
    resources = yaml.safe_load_all((RECIPES / "kubernetes" / file).read_text())
    controller = next(one for one in resources if one["kind"] == kind)
    (container,) = controller["spec"]["template"]["spec"]["containers"]
    found: dict[str, Any] = container
    return found


def command_of(deployment: str) -> list[str]:
    """Return the command of the pods of a Deployment of cluster.yaml."""
    resources = yaml.safe_load_all((RECIPES / "kubernetes" / "cluster.yaml").read_text())
    (found,) = [
        one["spec"]["template"]["spec"]["containers"][0]["command"]
        for one in resources
        if (one["kind"], one["metadata"]["name"]) == ("Deployment", deployment)
    ]
    return list(found)


def pod(shell: Shell, name: str, command: Sequence[str]) -> Running:
    """Run a container's command as a process, in the environment of a pod."""
    shell.environment |= {
        "PATH": f"{EDL.parent}:{os.environ['PATH']}",
        "EDL_SECRET_FILE": str(mounted_secret(shell)),
        "EDL_HOST": name,
        "EDL_ADDRESS": "127.0.0.1",
    }
    return shell.launch(command, f"{name}.log")


def mounted_secret(shell: Shell) -> Path:
    """Return the secret as a file of mode 0400, as it is mounted into a pod or unit."""
    path = shell.directory / "mounted"
    if not path.exists():
        path.write_text(f"{shell.secret}\n")
        path.chmod(0o400)
    return path


def pod_of_job(shell: Shell, name: str, checkpoints: Path) -> Running:
    """Start a pod of job.yaml, with the script of this test."""
    container = container_of("job.yaml", "Job")
    words, count = re.subn(
        r"python .* &$", f"{sys.executable} {STANDIN} &", container["args"][0], flags=re.MULTILINE
    )
    assert count == 1
    shell.environment |= {
        one["name"]: one["value"] for one in container["env"] if one["name"] in ("SLOTS",)
    }
    shell.environment["CHECKPOINTS"] = str(checkpoints)
    return pod(shell, name, [*container["command"], words])


def test_a_pod_that_is_taken_away_leaves_and_says_that_its_work_is_not_done(shell: Shell) -> None:
    saved = shell.directory / "saved"
    saved.mkdir()
    first = pod_of_job(shell, "digits-0-aaaaa", saved)
    shell.until_size(1, "digits")
    second = pod_of_job(shell, "digits-1-bbbbb", saved)
    shell.until_size(2, "digits")
    first.signal(signal.SIGTERM)
    assert first.wait() == 143
    assert "host digits-0-aaaaa has left job digits" in first.output
    shell.until_size(1, "digits")
    third = pod_of_job(shell, "digits-0-ccccc", saved)
    facts = shell.until_size(2, "digits")
    assert sorted(facts["desired"].items())[1:] == [("digits-0-ccccc", 1), ("digits-1-bbbbb", 1)]
    assert shell.edl("stop", "digits").returncode == 0
    assert (second.wait(), third.wait()) == (0, 0)


@pytest.mark.long  # tests/README.md, Time
def test_a_pod_that_joins_leaves_before_it_is_asked_to_end(shell: Shell) -> None:
    saved = shell.directory / "saved"
    saved.mkdir()
    first = pod_of_job(shell, "digits-0-aaaaa", saved)
    shell.until_size(1, "digits")
    container = container_of("join.yaml", "Deployment")
    joined = pod(shell, "digits-join-bbbbb", container["command"])
    shell.until_size(2, "digits")
    stopping = pod(shell, "digits-join-bbbbb", container["lifecycle"]["preStop"]["exec"]["command"])
    assert stopping.wait() == 0, stopping.output
    assert "host digits-join-bbbbb has left job digits" in stopping.output
    assert joined.wait() == 0, joined.output
    shell.until_size(1, "digits")
    assert shell.edl("stop", "digits").returncode == 0
    assert first.wait() == 0


def test_the_unit_of_systemd_starts_an_agent_that_leaves(shell: Shell) -> None:
    shell.environment["EDL_SECRET_FILE"] = str(mounted_secret(shell))
    job = shell.start("run", "-np", "1", "--max-np", "5", "--slots", "1", "--job", "digits",
                      "--host", "a", sys.executable, STANDIN)  # fmt: skip
    shell.until_size(1, "digits")
    unit = (RECIPES / "systemd" / "edl-agent@.service").read_text()
    settings = dict(re.findall(r"^(\w+)=(.*)$", unit, flags=re.MULTILINE))
    file = (RECIPES / "systemd" / "agent.env").read_text()
    values = dict(re.findall(r"^(\w+)=(.*)$", file, flags=re.MULTILINE))
    assert values["EDL_ZOOKEEPER"]
    assert "EDL_SECRET" not in values
    assert "\nLoadCredential=secret:/etc/edl/%i.secret\n" in unit
    assert "\nEnvironment=EDL_SECRET_FILE=%d/secret\n" in unit
    line = settings["ExecStart"].replace("%i", "digits").replace("${SLOTS}", values["SLOTS"])
    program, *words = shlex.split(line)
    assert program == "/opt/edl/bin/edl"
    agent = shell.start(*words, "--host", "b")
    shell.until_size(1 + int(values["SLOTS"]), "digits")
    agent.signal(signal.Signals[settings["KillSignal"]])
    assert agent.wait() == 0
    shell.until_size(1, "digits")
    assert shell.edl("stop", "digits").returncode == 0
    assert job.wait() == 143


@pytest.mark.long  # tests/README.md, Time
def test_the_pods_of_a_cluster_run_a_job_and_leave_it(shell: Shell) -> None:
    """Those of cluster.yaml: a controller, and two hosts, of which one is taken away."""
    controller = pod(shell, "edl-controller-aaaaa", command_of("edl-controller"))
    controller.expect("leads cluster main")
    words = command_of("edl-hosts")
    hosts = [pod(shell, f"edl-hosts-{name}", words) for name in ("bbbbb", "ccccc")]
    for host in hosts:
        host.expect("offers 1 slot to cluster main")
    end = shell.directory / "end"
    manifest = shell.directory / "j.yaml"
    command = json.dumps([sys.executable, STANDIN, "--until", str(end)])
    manifest.write_text(f"name: j\ncommand: {command}\nmin: 1\nmax: 2\n")
    assert shell.edl("submit", str(manifest)).returncode == 0
    shell.until_size(2)
    hosts[0].signal(signal.SIGTERM)
    assert hosts[0].wait() == 0, hosts[0].output
    assert "has left cluster main" in hosts[0].output
    shell.until_size(1)
    end.touch()
    assert shell.edl("wait", "j").returncode == 0
    for one in (hosts[1], controller):
        one.signal(signal.SIGTERM)
        assert one.wait() == 0, one.output
