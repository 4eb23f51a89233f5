"""Controllers of a cluster as processes: they create runs, and another one leads when one dies."""

from __future__ import annotations

import json
import random
import re
import signal
import sys
import time
from dataclasses import replace
from typing import Any

import pytest
from cli_shell import STANDIN, WAIT_S, Running, Shell, shell, until
from hand_host import HandHost
from kazoo.security import make_digest_acl
from paths import ROOT

from edl.cluster.lifecycle import LifeResult, LifeState
from edl.cluster.manifest import JobManifest
from edl.cluster.nodes import create_cluster, open_cluster, own_version
from edl.cluster.records import ClusterRecord, Goal
from edl.cluster.store import ClusterStore
from edl.cluster.submission import submit_job
from edl.cluster.view import JobView
from edl.zookeeper.access import Access, new_secret
from edl.zookeeper.paths import JobPaths
from edl.zookeeper.session import Session

pytestmark = pytest.mark.integration
__all__ = ["shell"]

LAB = Access("lab", new_secret())


@pytest.fixture
def cluster(shell: Shell) -> Shell:
    shell.environment["EDL_SECRET"] = LAB.secret
    return shell


def start(shell: Shell, policy: str = "fifo") -> Running:
    return shell.start("cluster", "start", "--name", "lab", "--policy", policy)


def manifest(shell: Shell, name: str, *options: str, **changes: Any) -> JobManifest:
    command = (sys.executable, STANDIN, *options)
    return replace(JobManifest(name, command, 1, 4, cwd=str(shell.directory)), **changes)


def until_state(store: ClusterStore, job: str, state: LifeState) -> JobView:
    found: list[JobView] = []

    def is_so() -> bool:
        found[:] = [store.jobs.get(job)]
        return found[0].life.state is state

    until(is_so, WAIT_S, lambda: f"{job} is not {state}: {found[0].life}")
    return found[0]


def leading(store: ClusterStore, controllers: list[Running]) -> Running:
    by_pid = {one.process.pid: one for one in controllers}
    until(lambda: store.snapshot().leader.get("pid") in by_pid, WAIT_S)
    return by_pid[store.snapshot().leader["pid"]]


def until_slots(host: HandHost, **slots: int) -> None:
    def is_so() -> bool:
        [view] = host.store.snapshot().hosts
        owned = {job: len(one.devices) for job, one in view.assigned.jobs.items()}
        return owned == slots == {job: host.size(job) for job in slots}

    until(is_so, WAIT_S, lambda: f"not {slots}: {host.store.snapshot().hosts}")


@pytest.mark.long  # tests/README.md, Time
def test_a_job_runs_to_its_end(cluster: Shell) -> None:
    controller = start(cluster)
    controller.expect("leads cluster lab in term 1")
    with HandHost(cluster, LAB, "a", 2) as host:
        submit_job(host.store, manifest(cluster, "j", "--steps", "20", max=2))
        ended = until_state(host.store, "j", LifeState.ENDED)
        assert ended.life.result is LifeResult.FINISHED
        until(lambda: not host.store.snapshot().hosts[0].assigned.jobs, WAIT_S)
        events = [(event.kind, event.reason) for _, event in host.store.events.read()]
    controller.process.terminate()
    assert controller.wait() == 0
    assert "job j: queued -> starting" in controller.output
    assert events[0][0] == "leader"


def test_junk_in_the_records_of_one_job_holds_up_no_other(cluster: Shell) -> None:
    """The code of a job has the job's secret, and with it all rights on the records of its run."""
    controller = start(cluster)
    controller.expect("leads cluster lab in term 1")
    with HandHost(cluster, LAB, "a", 2) as host:
        submit_job(host.store, manifest(cluster, "j", "--steps", "100000", max=1))
        until_state(host.store, "j", LifeState.RUNNING)
        own = Access("j", host.store.jobs.secret("j") or "")
        with Session(cluster.environment["EDL_ZOOKEEPER"], 10.0, access=own) as session:
            session.client.set(JobPaths("j").assigned, b"\xff")
            session.client.set_acls(JobPaths("j").desired, [make_digest_acl("x", "x", all=True)])
        submit_job(host.store, manifest(cluster, "k", "--steps", "20", max=1))
        ended = until_state(host.store, "k", LifeState.ENDED)
        assert ended.life.result is LifeResult.FINISHED
        assert host.store.jobs.get("j").life.state is LifeState.RUNNING
        until(lambda: "run cannot be read" in host.store.leader.reasons().reasons["j"], WAIT_S)
        host.store.jobs.change_wanted("j", lambda now: replace(now, goal=Goal.GONE))
        until_state(host.store, "j", LifeState.ENDED)
        until(lambda: not host.store.snapshot().hosts[0].assigned.jobs, WAIT_S)
    controller.process.terminate()
    assert controller.wait() == 0
    assert "cannot plan" not in controller.output


def test_slots_move_between_jobs(cluster: Shell) -> None:
    """And back; a job is halted, resumed, and deleted."""
    controller = start(cluster, "max_min")
    controller.expect("leads cluster lab in term 1")
    end = cluster.directory / "end"
    with HandHost(cluster, LAB, "a", 4) as host:
        submit_job(host.store, manifest(cluster, "x", "--until", str(end)))
        until_slots(host, x=4)
        submit_job(host.store, manifest(cluster, "y", "--until", str(end)))
        until_slots(host, x=2, y=2)
        for goal, state in ((Goal.HALT, LifeState.HALTED), (Goal.RUN, LifeState.RUNNING)):
            host.store.jobs.change_wanted("x", lambda now, goal=goal: replace(now, goal=goal))
            until_state(host.store, "x", state)
            until_slots(host, **({"y": 4} if goal is Goal.HALT else {"x": 2, "y": 2}))
        host.store.jobs.change_wanted("y", lambda now: replace(now, goal=Goal.GONE))
        until_slots(host, x=4)
        assert until_state(host.store, "y", LifeState.ENDED).life.result is LifeResult.DELETED
        end.touch()
        assert until_state(host.store, "x", LifeState.ENDED).life.result is LifeResult.FINISHED
        until_slots(host)
    controller.process.terminate()
    assert controller.wait() == 0


@pytest.mark.long  # tests/README.md, Time
def test_it_is_shown_and_changed_while_jobs_run(cluster: Shell) -> None:
    controller = start(cluster)
    controller.expect("leads cluster lab in term 1")

    def said(*words: str) -> str:
        done = cluster.edl("cluster", *words, "--cluster", "lab")
        assert done.returncode == 0, done.stderr
        return done.stdout

    with HandHost(cluster, LAB, "a", 4) as host:
        submit_job(host.store, manifest(cluster, "x"))
        until_slots(host, x=4)
        submit_job(host.store, manifest(cluster, "y"))
        now = json.loads(said("status", "--json"))
        assert (now["used"], now["slots"], now["policy"], now["term"]) == (4, 4, "fifo", 1)
        assert f"process {controller.process.pid}" in now["leader"]
        assert now["hosts"][0]["jobs"] == {"x": 4}

        def planned(*words: str) -> dict[str, Any]:
            plans = json.loads(said(*words, "--json"))
            return {one["job"]: one["planned"] for one in plans}

        controller.expect("job x: starting -> running")  # until then it keeps its slots
        assert planned("plan") == {"x": {"a": 4}, "y": {}}
        assert planned("plan", "--policy", "max_min") == {"x": {"a": 2}, "y": {"a": 2}}
        assert planned("what-if", "--add-host", "8") == {"x": {"a": 4}, "y": {"new": 4}}
        rule = "in the order of submission; a job that does not fit holds up later ones"
        assert said("policy") == f"policy: fifo\n{rule}\n"
        assert said("policy", "max_min").startswith("policy: max_min\n")
        until_slots(host, x=2, y=2)
        assert "there is no policy 'maxmin'" in cluster.edl("cluster", "policy", "maxmin").stderr
        page = (ROOT / "docs" / "guides" / "writing-a-policy.md").read_text()
        mine = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[0]
        (cluster.directory / "my_policy.py").write_text(mine)
        controller.expect("job y: starting -> running")  # until then it keeps its slots
        assert planned("plan", "--policy", "my_policy:Fewest") == {"x": {"a": 1}, "y": {"a": 3}}
        assert said("policy", "my_policy:Fewest", "spare=2").startswith(
            "policy: my_policy:Fewest spare=2\n"
        )
        until_slots(host, x=1, y=1)
        endless = mine.replace(
            "        return ", "        while True:\n            pass\n        return "
        )
        (cluster.directory / "my_policy.py").write_text(endless)
        said("policy", "my_policy:Fewest")
        controller.expect("jobs keep their slots: the policy my_policy:Fewest has not answered wi")
        until_slots(host, x=1, y=1)
        host.store.settings.change(lambda now: replace(now, policy="future"))
        controller.expect("jobs keep their slots: there is no policy 'future'")
        for job in ("x", "y"):
            host.store.jobs.change_wanted(job, lambda now: replace(now, goal=Goal.GONE))
        until_slots(host)
    controller.process.terminate()
    assert controller.wait() == 0


def test_another_one_leads_when_the_leader_dies(cluster: Shell) -> None:
    first = start(cluster)
    first.expect("leads cluster lab in term 1")
    second = start(cluster)
    second.expect("waits: process")
    second_waits = time.monotonic()
    first.process.send_signal(signal.SIGKILL)
    second.expect("leads cluster lab in term 2")
    took_s = time.monotonic() - second_waits
    third = start(cluster)
    third.expect("waits: process")
    second.process.send_signal(signal.SIGSTOP)  # it is silent, but no port is closed
    third.expect("leads cluster lab in term 3")
    second.process.send_signal(signal.SIGCONT)
    second.expect(f"waits: process {third.process.pid}")
    with Session(cluster.environment["EDL_ZOOKEEPER"], 10.0) as session:
        store = ClusterStore(open_cluster(session, LAB))
        store.settings.change(lambda now: replace(now, format=99, version="7.0"))
        for one in (second, third):  # neither leads a cluster of another edl
            assert one.wait() == 2
            assert one.output.endswith("reads and writes format 1; install edl 7.0\n")
        assert store.leader.controllers() == []
    assert took_s < 2.0


@pytest.mark.long  # tests/README.md, Time
def test_leaders_die_all_the_time(cluster: Shell) -> None:
    """Each job is run once and to its end, and no slot is lost, whenever leaders are killed."""
    chance = random.Random(42)
    controllers = [start(cluster, "max_min") for _ in range(2)]
    controllers[0].expect("cluster lab")
    with HandHost(cluster, LAB, "a", 2) as a, HandHost(cluster, LAB, "b", 2) as b:
        store = a.store
        for kills in range(8):
            submit_job(store, manifest(cluster, f"j{kills}", "--steps", "60"))
            time.sleep(chance.uniform(0.0, 2.0))
            leader = leading(store, controllers)
            leader.process.send_signal(signal.SIGKILL)
            controllers.remove(leader)
            controllers.append(start(cluster, "max_min"))
        for job in store.jobs.list():
            until_state(store, job.name, LifeState.ENDED)
        until(lambda: not any(h.assigned.jobs for h in store.snapshot().hosts), WAIT_S)
        lives = [job.life for job in store.jobs.list()]
        assert [life.result for life in lives] == [LifeResult.FINISHED] * 8
        assert [life.failures for life in lives] == [0] * 8
        assert [life.runs for life in lives] == [1] * 8
        assert {run for one in (a, b) for _, run in one.agents} == {life.run for life in lives}
    for one in controllers:
        one.process.terminate()
        assert one.wait() == 0


def test_the_policy_of_a_cluster_that_is_there_stays(cluster: Shell) -> None:
    with Session(cluster.environment["EDL_ZOOKEEPER"], 10.0) as session:
        create_cluster(session, LAB, ClusterRecord(version=own_version(), policy="priority"))
    for policy in ("priority", "fifo"):
        one = start(cluster, policy)
        one.expect("leads cluster lab")
        one.process.terminate()
        assert one.wait() == 0
        stays = "its policy stays priority; `edl cluster policy fifo` changes it\n"
        assert (stays in one.output) == (policy == "fifo")


def test_what_is_refused_is_one_sentence(cluster: Shell) -> None:
    """Another secret, records of another version of edl, and options that do not go together."""

    def refused(*options: str, secret: str = LAB.secret) -> str:
        cluster.environment["EDL_SECRET"] = secret
        one = cluster.start("cluster", "start", "--name", "lab", *options)
        assert one.wait() == 2
        return one.output.removeprefix("edl: ").removesuffix("\n")

    with Session(cluster.environment["EDL_ZOOKEEPER"], 10.0) as session:
        create_cluster(session, LAB, ClusterRecord(format=99, version="7.0"))
    assert refused("--slots", "2").startswith("--slots needs --local; on other machines")
    assert refused("--policy", "fair").startswith("there is no policy 'fair'; use one of fifo, ")
    assert refused(secret=new_secret()).startswith("the secret of cluster lab is another than")
    assert refused() == (
        f"cluster lab has records of format 99, which edl 7.0 writes, and this edl {own_version()} "
        "reads and writes format 1; install edl 7.0"
    )
