"""`edl host` on a real ZooKeeper: it makes what is assigned so, whatever dies meanwhile."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from cli_shell import STANDIN, WAIT_S, Running, Shell, shell, until

from edl.client import Job, submit
from edl.cluster.client.logs import HostLogs
from edl.cluster.manifest import JobManifest
from edl.cluster.nodes import create_cluster, open_cluster
from edl.cluster.records import (
    ClusterRecord,
    HostAssignment,
    HostOffer,
    HostReport,
    JobAssignment,
    JobReport,
)
from edl.cluster.store import ClusterStore, HostOwner, HostRegistration
from edl.cluster.submission import submit_job
from edl.cluster.view import HostView
from edl.cluster.writer import ClusterWriter, assigned_write
from edl.errors import CoordinationError, UsageError
from edl.testing.zookeeper import ensemble
from edl.zookeeper.access import Access, new_secret
from edl.zookeeper.session import Session

pytestmark = pytest.mark.integration
__all__ = ["shell"]

RUN, LATER = "0123456789abcdef" * 2, "fedcba9876543210" * 2
SECRET = new_secret()  # two runs of these tests at once would end each other's processes


@dataclass
class Lab:
    shell: Shell
    store: ClusterStore
    writer: ClusterWriter

    def start(self, *options: str) -> Running:
        environment = self.shell.environment
        own = {"EDL_SECRET": SECRET, "EDL_TEMPLATE": "0", "CUDA_VISIBLE_DEVICES": "6,7"}
        self.shell.environment = {**environment, **own}
        try:
            words = ("--cluster", "lab", "--host", "a", "--slots", "2")
            return self.shell.start("-v", "host", *words, *options)
        finally:
            self.shell.environment = environment

    @property
    def host(self) -> HostView:
        return next(iter(self.store.snapshot().hosts))

    @property
    def report(self) -> HostReport:
        hosts = self.store.snapshot().hosts
        return (hosts[0].report if hosts else None) or HostReport()

    def of(self, job: str = "j") -> JobReport:
        return self.report.jobs.get(job, JobReport(""))

    def assign(self, **jobs: JobAssignment) -> int:
        return self.assign_to("a", **jobs)

    def assign_to(self, name: str, **jobs: JobAssignment) -> int:
        """Assign ``jobs`` to a host; return the version."""
        host = next(one for one in self.store.snapshot().hosts if one.name == name)
        write = assigned_write(self.store.paths, host, HostAssignment(jobs))
        assert self.writer.commit([write])
        return host.version + 1

    def end(self, job: str = "j") -> int:
        """Say that the run of a job ends on the host; return the version."""
        host = self.host
        jobs = dict(host.assigned.jobs)
        jobs[job] = replace(jobs[job], ends=host.version + 1)
        return self.assign(**jobs)

    def submit(self, *options: str, name: str = "j", **changes: Any) -> None:
        command = (sys.executable, STANDIN, *options)
        manifest = JobManifest(name, command, 1, 2, cwd=str(self.shell.directory))
        submit_job(self.store, replace(manifest, **changes))

    def create(self, run: str = RUN, name: str = "j", workers: int = 2) -> Job:
        manifest, environment = self.store.jobs.get(name).manifest, self.shell.environment
        job = submit(
            manifest.command,
            {"a": workers},
            devices={"a": tuple(range(workers))},
            name=name,
            run=run,
            cwd=manifest.cwd,
            secret=self.writer.job_secret(name),
            zookeeper=environment["EDL_ZOOKEEPER"],
            min_np=manifest.min,
            max_np=manifest.max,
        )
        job.close()
        return job

    def until(self, condition: Callable[[], object]) -> None:
        until(condition, WAIT_S, lambda: f"{self.report}\n{self.outputs}")

    @property
    def outputs(self) -> str:
        logs = Path(self.shell.environment["XDG_STATE_HOME"]).glob("edl/clusters/lab/**/*.log")
        texts = [log.read_text()[-2000:] for log in logs]
        return "\n".join([*(one.output[-3000:] for one in self.shell.started), *texts])


@pytest.fixture
def lab(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    for name in ("EDL_ZOOKEEPER", "XDG_STATE_HOME", "EDL_SESSION_TIMEOUT_S"):
        monkeypatch.setenv(name, shell.environment[name])
    with lab_in(shell) as one:
        yield one


@contextlib.contextmanager
def lab_in(shell: Shell) -> Iterator[Lab]:
    access = Access("lab", SECRET)
    with Session(shell.environment["EDL_ZOOKEEPER"], session_timeout_s=10.0) as session:
        create_cluster(session, access, ClusterRecord())
        store = ClusterStore(open_cluster(session, access))
        election = store.leader.election("test", {})
        election.enter()
        leadership = election.leads()
        assert leadership is not None
        yield Lab(shell, store, ClusterWriter(store, leadership))


def agents_of(lab: Lab, job: str = "j") -> list[psutil.Process]:
    found = []
    for one in lab.shell.processes():
        with contextlib.suppress(psutil.Error):
            if _has(one.cmdline(), ["agent", "--job", job]):
                found.append(one)
    return found


def _has(line: list[str], words: list[str]) -> bool:
    return any(line[at : at + len(words)] == words for at in range(len(line)))


def times_taken_over(lab: Lab) -> int:
    offer = lab.host.offer
    if offer is None or len(agents_of(lab)) != 1:
        return 0
    lines = HostLogs("a", offer, Access("lab", SECRET)).read("j", f"agent-{RUN}", last=100_000)
    return b"".join(lines).count(b"took over the worker in slot 1")


def test_a_run_from_its_assignment_to_its_end(lab: Lab) -> None:
    host = lab.start()
    host.expect("host a offers 2 slots to cluster lab")
    offer = lab.host.offer
    assert offer is not None
    assert (offer.numbers, offer.address) == ((0, 1), "127.0.0.1")
    variables = {"COLOUR": "blue", "CUDA_VISIBLE_DEVICES": "0"}
    lab.submit("--until", str(lab.shell.directory / "end"), env=variables)
    lab.assign(j=JobAssignment(RUN, (0, 1)))  # ahead of the run
    lab.until(lambda: lab.of().reason == "its run has not been created yet")
    lab.create()
    lab.until(lambda: lab.of().agent and len(lab.of().processes) == 2)
    lab.shell.until_size(2)
    workers = lab.of().processes
    devices = sorted(psutil.Process(pid).environ()["CUDA_VISIBLE_DEVICES"] for pid in workers)
    assert devices == ["6", "6,7"], "those of the host, of which the job has 0 and 1"

    logs = HostLogs("a", offer, Access("lab", SECRET))
    sizes = logs.names("j")
    assert sizes.keys() == {"w0", "w1", f"agent-{RUN}"}
    [own_lines] = logs.read("j", f"agent-{RUN}", last=1000)
    assert b"host a offers 2 slots to job j" in own_lines
    assert logs.names("other") == {}
    with pytest.raises(UsageError, match="host a has no log w9 of job j"):
        next(logs.read("j", "w9"))
    with pytest.raises(CoordinationError, match="refused to give logs, with status 401"):
        HostLogs("a", offer, Access("lab", "0" * 64)).names("j")

    [agent] = agents_of(lab)
    own = agent.environ()
    assert own["COLOUR"] == "blue"
    secrets = {SECRET, lab.writer.job_secret("j")}
    assert not secrets & {*own.values(), *agent.cmdline()}

    host.signal(signal.SIGKILL)
    host.wait()
    os.kill(agent.pid, signal.SIGKILL)
    host = lab.start()
    lab.until(lambda: lab.host.offer not in (None, offer))  # nothing answers at the killed one's
    lab.until(lambda: times_taken_over(lab) == 1)
    assert lab.of().processes == workers
    [agent] = agents_of(lab)
    os.kill(agent.pid, signal.SIGKILL)
    lab.until(lambda: times_taken_over(lab) == 2)
    assert lab.of().processes == workers

    second = lab.start()
    assert second.wait() == 2
    assert "another `edl host` of host a of cluster lab lives on this machine" in second.output

    offer = lab.host.offer
    assert offer is not None
    following = HostLogs("a", offer, Access("lab", SECRET)).read("j", f"agent-{RUN}", follow=True)
    (lab.shell.directory / "end").touch()
    text = b""
    while b'"end": "finished"' not in text:
        text += next(following)
    lab.until(lambda: lab.of() == JobReport(RUN, False, 0, (), lab.of().reason))
    version = lab.end()
    lab.until(lambda: lab.report.version == version)
    assert lab.host.reports_end("j")
    lab.assign()
    lab.until(lambda: lab.report.jobs == {})
    host.signal(signal.SIGTERM)
    assert host.wait() == 0
    assert lab.host.offer is None


@pytest.mark.long  # tests/README.md, Time
def test_what_does_not_end_is_killed(lab: Lab) -> None:
    """A run that ends here though its job goes on, and whose workers ignore SIGTERM."""
    host = lab.start()
    host.expect("offers 2 slots")
    lab.submit("--deaf")
    lab.create()
    lab.assign(j=JobAssignment(RUN, (0, 1)))
    lab.until(lambda: len(lab.of().processes) == 2)
    lab.shell.until_size(2)
    [agent] = agents_of(lab)
    agent.suspend()
    version = lab.end()
    lab.until(lambda: lab.report.version >= version)
    assert not lab.host.reports_end("j"), "they live"
    lab.until(lambda: lab.host.reports_end("j"))
    lab.assign()
    host.signal(signal.SIGTERM)
    assert host.wait() == 0


@pytest.mark.long
def test_what_nobody_assigned_is_ended(lab: Lab) -> None:
    """Also what has no agent, after a death of `edl host`; of another host it touches nothing."""
    other = lab.shell.launch(["sleep", "60"], "sleep.log")
    host = lab.start()
    host.expect("offers 2 slots")
    lab.submit("--deaf")
    lab.create()
    lab.assign(j=JobAssignment(RUN, (0, 1)))
    lab.shell.until_size(2)
    host.signal(signal.SIGKILL)
    host.wait()
    [agent] = agents_of(lab)
    agent.kill()
    lab.submit("--steps", "0", name="k")
    lab.create(LATER, "k", workers=1)
    lab.assign(k=JobAssignment(LATER, (0,)))
    later = lab.start()
    lab.until(lambda: lab.report.version == lab.host.version)
    assert len(lab.of().processes) == 2
    assert lab.of("k") == JobReport(""), "it waits for the devices"
    lab.until(lambda: len(lab.of("k").processes) == 1)
    assert "j" not in lab.report.jobs
    assert other.process.poll() is None
    other.signal(signal.SIGKILL)
    later.signal(signal.SIGTERM)
    later.expect("host a leaves")
    later.signal_again(signal.SIGTERM)
    assert later.wait() == 0


@pytest.mark.long
def test_an_agent_waits_for_the_data_of_its_job(lab: Lab) -> None:
    host = lab.start()
    host.expect("offers 2 slots")
    data = lab.shell.directory / "data"
    lab.submit("--steps", "5", data=(str(data),))
    lab.create(workers=1)
    lab.assign(j=JobAssignment(RUN, (0,)))
    why = f"this host lacks the job's data {data}"
    lab.until(lambda: lab.of() == JobReport(RUN, reason=why, refused=True))
    data.touch()
    lab.until(lambda: lab.of().exit_code == 0)
    assert not lab.of().lives
    lab.assign()
    host.signal(signal.SIGTERM)
    assert host.wait() == 0


@pytest.mark.long
def test_a_host_that_leaves_lets_its_jobs_go_on(lab: Lab) -> None:
    a, b = lab.start("--label", "gpu=h100"), lab.start("--host", "b")
    for host in (a, b):
        host.expect("offers 2 slots")
    offer = lab.host.offer
    assert offer is not None
    assert offer.labels == {"gpu": "h100"}
    lab.submit()
    job = lab.create(workers=1)
    lab.assign(j=JobAssignment(RUN, (0, 1)))
    lab.assign_to("b", j=JobAssignment(RUN, (0, 1)))
    lab.shell.until_size(1)
    job.place({"a": 1, "b": 1}, {"a": [0, 1], "b": [0, 1]})
    lab.shell.until_size(2)
    a.signal(signal.SIGTERM)
    lab.until(lambda: not lab.host.takes_slots)
    lab.shell.until_size(1)
    lab.until(lambda: lab.of() == JobReport(RUN, exit_code=92, reason=lab.of().reason))
    lab.assign()
    assert a.wait() == 0
    assert lab.report == HostReport(lab.host.version)
    assert lab.host.offer is None
    b.signal(signal.SIGTERM)
    b.expect("a second signal kills")
    assert b.process.poll() is None, "the job needs its worker"
    b.signal_again(signal.SIGTERM)
    assert b.wait() == 0


@pytest.mark.long
def test_a_lost_session_and_a_zookeeper_that_is_away(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ensemble(tmp_path, 1) as (server,):
        shell.environment["EDL_ZOOKEEPER"] = shell.mark = server.hosts
        monkeypatch.setenv("XDG_STATE_HOME", shell.environment["XDG_STATE_HOME"])
        with lab_in(shell) as lab:
            host = lab.start()
            lab.submit()
            lab.create()
            host.expect("offers 2 slots")
            lab.assign(j=JobAssignment(RUN, (0, 1)))
            lab.shell.until_size(2)
            host.process.send_signal(signal.SIGSTOP)
            lab.until(lambda: lab.host.offer is None)
            [agent] = agents_of(lab)
            agent.kill()
            host.process.send_signal(signal.SIGCONT)
            lab.until(lambda: lab.host.offer is not None)
            lab.until(lambda: len(agents_of(lab)) == 1)
            workers = lab.of().processes
            [agent] = agents_of(lab)
            server.kill()
            host.expect("the jobs train on, and nothing is started or ended here")
            agent.kill()
            time.sleep(2.0)
            assert not [one for one in agents_of(lab) if one.pid != agent.pid]
            server.start()
            host.expect("ZooKeeper is back")
            lab.until(lambda: len(agents_of(lab)) == 1)
            assert lab.of().processes == workers
            lab.assign()
            host.signal(signal.SIGTERM)
            host.expect("host a leaves")
            host.signal_again(signal.SIGTERM)
            assert host.wait() == 0


@pytest.mark.long
def test_a_host_process_that_is_killed_at_any_moment(lab: Lab) -> None:
    """One agent at most lives at any time, workers stay, and what ended while it was dead ends."""
    chance = random.Random(42)
    lab.start().expect("offers 2 slots")
    lab.submit()
    lab.create()
    lab.submit("--until", str(lab.shell.directory / "end"), name="k")
    lab.create(LATER, "k", workers=1)
    lab.assign(j=JobAssignment(RUN, (0, 1)), k=JobAssignment(LATER, (2,)))
    lab.shell.until_size(2)
    lab.shell.until_size(1, "k")
    lab.until(lambda: len(lab.of().processes) == 2)
    workers = lab.of().processes
    for number in range(12):
        host = lab.shell.started[-1]
        time.sleep(chance.uniform(0.0, 1.0))
        host.signal(signal.SIGKILL)
        host.wait()
        if number % 2:
            for one in agents_of(lab):
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
        lab.start()
        deadline = time.monotonic() + chance.uniform(0.2, 2.0)
        while time.monotonic() < deadline:
            assert len(agents_of(lab)) <= 1
            assert len(agents_of(lab, "k")) <= 1
            time.sleep(0.02)
    lab.until(lambda: lab.of().agent and lab.of("k").agent)
    assert lab.of().processes == workers
    host = lab.shell.started[-1]
    host.signal(signal.SIGKILL)
    host.wait()
    (lab.shell.directory / "end").touch()
    version = lab.end()
    lab.start()
    lab.until(lambda: lab.host.reports_end("j") and not lab.of("k").lives)
    assert lab.report.version == version
    assert lab.of("k").exit_code == 0
    lab.assign()
    lab.until(lambda: lab.report == HostReport(lab.host.version))
    lab.shell.started[-1].signal(signal.SIGTERM)
    assert lab.shell.started[-1].wait() == 0


@pytest.mark.long
def test_a_host_that_another_machine_offers(lab: Lab) -> None:
    """It is refused at first; and one that lost its host while it was frozen ends all it had."""
    registration = HostRegistration(lab.store.nodes, "a", HostOwner("other", "elsewhere", 1))
    registration.register(HostOffer(1), lambda _: True)
    refused = lab.start()
    assert refused.wait() == 2
    assert "host a of cluster lab is offered by process 1 on elsewhere; end that" in refused.output
    registration.withdraw()

    host = lab.start()
    host.expect("offers 2 slots")
    lab.submit()
    lab.create()
    lab.assign(j=JobAssignment(RUN, (0, 1)))
    lab.shell.until_size(2)
    host.process.send_signal(signal.SIGSTOP)
    lab.until(lambda: lab.host.offer is None)
    registration.register(HostOffer(1), lambda _: False)
    version = lab.report.version
    host.process.send_signal(signal.SIGCONT)
    assert host.wait() == 1
    # It finds out when it registers again, or before that when it writes its report.
    seen = "is offered by process 1 on elsewhere; end that", "belongs to process 1 on elsewhere now"
    assert any(f"host a of cluster lab {one}" in host.output for one in seen), host.output
    assert lab.shell.processes() == []
    assert lab.report.version == version, "it has written nothing"
