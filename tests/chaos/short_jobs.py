"""Ten thousand short jobs through one local ZooKeeper server, and what they leave there.

    make short-jobs [ARGS="--count 10000"]

A job does to ZooKeeper what `edl run` with two workers does that train for a moment: it is created
with a secret of its own, its host and workers register, one is elected, writes a generation and
events, all finish and go. Nothing is trained and no process is started, so that there can be many.
Its agent removes ended jobs as each agent does.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import psutil
from made import make_job

from edl.events import Event, FinishedDetails
from edl.host.host_agent import JobGarbageCollector, Retention
from edl.job.decision import MembershipDecision
from edl.records import Generation, Host, JobState, Member, RingMember, Stage
from edl.zookeeper.access import Access, keep, new_secret
from edl.zookeeper.local_server import local_status, start_local, stop_local
from edl.zookeeper.nodes import job_names
from edl.zookeeper.session import Session
from edl.zookeeper.store import DecisionWriter, JobStore, job_election

HERE = "127.0.0.1"
AT_ONCE = 4
KEPT = 100  # as by default
EVENTS = 10  # of a job, besides what a leader writes
LOOKS = 20  # measurements


@dataclass(frozen=True)
class Use:
    """What the server holds after so many jobs."""

    jobs: int
    seconds: float
    kept: int  # jobs in ZooKeeper
    nodes: int
    memory_mb: float  # resident, of its process
    disk_mb: float


def one_job(hosts: str, state: Path, number: int) -> None:
    name, secret = f"short-{number}", new_secret()
    keep(state, name, secret)
    with Session(hosts, access=Access(name, secret)) as session:
        store = JobStore(session, name)
        store.create(make_job(name=name), {"a": 2})
        store.hosts.put(Host("a", 2, HERE, os.getpid()))
        with JobGarbageCollector(store, state, Retention(KEPT, 7 * 86400.0)):
            members = [
                Member(store.members.new_id(), "a", slot, HERE, 1, os.getpid(), f"{number}-{slot}")
                for slot in range(2)
            ]
            for member in members:
                store.members.put(member)
            election = job_election(store.nodes, members[0].id)
            election.enter()
            leadership = election.leads()
            assert leadership is not None
            ring_members = tuple(
                RingMember(member.id, "a", member.slot, HERE, 1) for member in members
            )
            ids = tuple(ring_member.id for ring_member in ring_members)
            first = Generation(1, leadership.term, ring_members, ids[0], ids, (), "the job starts")
            decision = MembershipDecision(generation=first, reason=first.reason)
            DecisionWriter(store.nodes, leadership).carry_out(decision)
            for step in range(EVENTS):
                store.events.add(Event(time.time(), 1, step, "trained", FinishedDetails()))
            store.snapshot()
            for member in members:
                store.members.put(replace(member, stage=Stage.FINISHED, generation=1))
            store.set_job_state(JobState.FINISHED, "trained 10 steps")
            election.leave()
            for member in members:
                store.members.remove(member.id, member.attempt_id)


def run(count: int, state: Path) -> list[Use]:
    """Run ``count`` jobs, some at the same time; what the server holds from time to time."""
    hosts, began = start_local(state), time.monotonic()
    numbers, uses, lock = iter(range(count)), [], threading.Lock()

    def work() -> None:
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            one_job(hosts, state, number)
            if (number + 1) % max(1, count // LOOKS) == 0:
                uses.append(use(hosts, state, number + 1, time.monotonic() - began))
                print(json.dumps(asdict(uses[-1])), flush=True)

    threads = [threading.Thread(target=work) for _ in range(AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return uses


def use(hosts: str, state: Path, jobs: int, seconds: float) -> Use:
    server = local_status(state)
    assert server is not None, "the server has ended"
    with Session(hosts) as session:
        kept = len(job_names(session))
        nodes = int(session.client.command(b"srvr").rsplit("Node count: ", 1)[1].split()[0])
    disk = sum(file.stat().st_size for file in server.data_dir.rglob("*") if file.is_file())
    memory = psutil.Process(server.pid).memory_info().rss
    return Use(jobs, round(seconds, 1), kept, nodes, round(memory / 1e6, 1), round(disk / 1e6, 1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=10_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="edl-short-jobs-") as scratch:
        try:
            uses = run(args.count, Path(scratch))
        finally:
            stop_local(Path(scratch))
    most = max(use.kept for use in uses)
    print(
        f"short jobs: {uses[-1].jobs} in {uses[-1].seconds:.0f} s; at most {most} in ZooKeeper, "
        f"{max(use.nodes for use in uses)} nodes, {max(use.memory_mb for use in uses):.0f} MB of "
        f"memory, {max(use.disk_mb for use in uses):.0f} MB on disk"
    )
    return 0 if len(uses) and most <= 2 * KEPT else 1


if __name__ == "__main__":
    raise SystemExit(main())
