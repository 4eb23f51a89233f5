"""What ZooKeeper is asked, and how long a look takes: by the leader or an agent, and by a worker.

One process writes the nodes of the members into a real ZooKeeper. Another session reads them as edl
does, with watches and a copy of what it has read, and once more without that copy.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.page import Section
from edl.job.daemon import DaemonLimits
from edl.job.decision import Limits, MembershipDecision
from edl.job.liveness import AgeTracker
from edl.job.membership import decide
from edl.job.snapshot import Snapshot
from edl.records import Generation, Job, JobState, Member, RingMember, Stage
from edl.spec import JobSpec, Sizes
from edl.zookeeper.access import Access
from edl.zookeeper.local_server import start_local, stop_local
from edl.zookeeper.reads import Issue
from edl.zookeeper.session import Session
from edl.zookeeper.store import DecisionWriter, JobStore, job_election

ON_A_HOST = 8
LOOKS = 10
SIZES = (16, 64, 256, 1024)
AT_ONCE = Limits(60.0, 60.0, 0.0, 60.0, 60.0, 60.0, 0.0)  # newcomers are not gathered
GATHER_S = DaemonLimits().gather_s
WAIT_S = 60.0


@dataclass(frozen=True)
class Look:
    """The median of looks: seconds, and requests to ZooKeeper."""

    seconds: float
    requests: float


@dataclass(frozen=True)
class ZooKeeperCost:
    """Of one look at the job of ``workers``.

    Attributes:
        agent: of a leader or an agent, when nothing has changed.
        agent_anew: the same without answers that are kept.
        agent_one: when one worker has changed.
        worker: of a worker that does not lead, when nothing has changed.
        joining: how many newcomers were then registered as fast as ZooKeeper takes them.
        turns: seconds of each turn of a leader meanwhile: to read, and to decide.
    """

    workers: int
    agent: Look
    agent_anew: Look
    agent_one: Look
    worker: Look
    joining: int
    turns: Sequence[float]


class CountingSession(Session):
    """Counts the requests that it sends."""

    requests = 0

    def _settle(self, what: str, issues: Sequence[Issue], *args: Any, **kwargs: Any) -> list[Any]:
        self.requests += len(issues)
        return super()._answers_to(what, issues, *args, **kwargs)


def member(number: int, stage: Stage) -> Member:
    """Return the record of a worker that has taken note of generation 1.

    An active one is in it.
    """
    host, slot = f"host{number // ON_A_HOST}", number % ON_A_HOST
    launch, in_ring = f"launch-{number}", int(stage is Stage.ACTIVE)
    return Member(
        number, host, slot, "127.0.0.1", 1 + number, 1, launch, stage, in_ring, newest_generation=1
    )


def measure(say: Callable[[str], None]) -> list[ZooKeeperCost]:
    """At each size, with a ZooKeeper of its own."""
    found = []
    with tempfile.TemporaryDirectory(prefix="edl-bench-") as directory:
        state = Path(directory)
        hosts = start_local(state)
        try:
            for workers in SIZES:
                one = zookeeper(hosts, workers)
                found.append(one)
                say(
                    f"ZooKeeper, {workers} workers: {one.agent.requests:g} requests a look of an "
                    f"agent, {one.worker.requests:g} of a worker"
                )
        finally:
            stop_local(state)
    return found


def section(found: Sequence[ZooKeeperCost]) -> Section:
    """Return the section on ZooKeeper, with a row for each number of workers."""
    rows = []
    for one in found:
        looks = (one.agent_anew, one.agent, one.agent_one, one.worker)
        shown = [f"{look.requests:g} ({1e3 * look.seconds:.1f})" for look in looks]
        middle, most = 1e3 * median(one.turns), 1e3 * max(one.turns)
        turns = f"{one.joining}: {middle:.1f}, {most:.1f}"
        rows.append([f"{one.workers} workers", *shown, turns])
    head = [
        "",
        "an agent or the leader, without its copy",
        "the same with its copy, nothing has changed",
        "the same with its copy, one worker has changed",
        "a worker that does not lead",
        "newcomers: a turn of the leader, ms: median, most",
    ]
    notes = [
        "Requests of one look, and in brackets its milliseconds.",
        (
            "A turn reads what is new and decides. Another process registers the newcomers as fast "
            "as it can; the longest turns are those that read many at once."
        ),
    ]
    return Section("ZooKeeper", " ".join((__doc__ or "").split()), head, rows, notes)


def zookeeper(hosts: str, workers: int) -> ZooKeeperCost:
    """Measure what a job of ``workers`` costs ZooKeeper at ``hosts``, and a leader.

    Half as many workers are added to the job.
    """
    access = Access(f"thousand-{workers}", "a secret")
    joining = workers // 2
    with (
        Session(hosts, access=access) as writing,
        CountingSession(hosts, access=access) as session,
    ):
        store, looking = JobStore(writing, access.job), JobStore(session, access.job)
        _create(store, workers, joining)
        changed = threading.Event()

        def look() -> Snapshot:
            changed.clear()
            return looking.snapshot(changed.set)

        def one_changes() -> None:
            look()
            store.members.put(replace(member(0, Stage.ACTIVE), newest_generation=next(number)))
            assert changed.wait(WAIT_S)

        number = iter(range(2, 2 + LOOKS))
        cost = ZooKeeperCost(
            workers,
            agent=_look(session, look, look),
            agent_anew=_look(session, looking.snapshot),
            agent_one=_look(session, look, one_changes),
            worker=_worker(session, looking, workers),
            joining=joining,
            turns=_turns(look, changed, hosts, access, workers, joining),
        )
        store.set_job_state(JobState.FINISHED, "measured")
    return cost


def _create(store: JobStore, workers: int, joining: int) -> None:
    """Create the job, with ``workers`` members in a ring; ``joining`` more are wanted."""
    slots = Counter(member(each, Stage.ACTIVE).host for each in range(workers + joining))
    spec = JobSpec(("python", "train.py"), workers, Sizes(1, workers + joining))
    store.create(Job(store.name, spec), slots)
    there = [member(each, Stage.ACTIVE) for each in range(workers)]
    for each in there:
        store.members.put(each)
    election = job_election(store.nodes, 0)
    election.enter()
    leadership = election.leads()
    assert leadership is not None
    members = tuple(
        RingMember(each.id, each.host, each.slot, each.address, each.port) for each in there
    )
    first = Generation(1, leadership.term, members, 0, (), (), "the job starts")
    decision = MembershipDecision("it starts", generation=first)
    DecisionWriter(store.nodes, leadership).carry_out(decision)


def _look(
    session: CountingSession,
    look: Callable[[], object],
    before: Callable[[], object] = lambda: None,
) -> Look:
    seconds, requests = [], []
    for _ in range(LOOKS):
        before()
        sent, began = session.requests, time.perf_counter()
        look()
        seconds.append(time.perf_counter() - began)
        requests.append(session.requests - sent)
    return Look(median(seconds), median(requests))


def _worker(session: CountingSession, store: JobStore, worker: int) -> Look:
    """Measure the turn of the daemon of ``worker``, which does not lead."""
    election, wake = job_election(store.nodes, worker), threading.Event()

    def turn() -> None:
        store.watch_generation(wake.set)
        election.enter()
        election.leads(wake.set)

    return _look(session, turn, turn)


def _turns(
    look: Callable[[], Snapshot],
    changed: threading.Event,
    hosts: str,
    access: Access,
    workers: int,
    joining: int,
) -> list[float]:
    """Read and decide whenever something changes, while newcomers register; seconds of each."""
    ages, turns = AgeTracker(time.monotonic()), []
    others = multiprocessing.get_context("spawn")  # they register from other machines
    registering = others.Process(target=_register, args=(hosts, access, workers, joining))
    look()
    registering.start()
    deadline, decision = time.monotonic() + WAIT_S, MembershipDecision("")
    while decision.generation is None or len(decision.generation.members) < workers + joining:
        assert time.monotonic() < deadline, decision.reason
        changed.wait(0.1)
        time.sleep(GATHER_S)
        began = time.perf_counter()
        snapshot = look()
        decision = decide(snapshot, 1, ages.observe(snapshot, time.monotonic()), AT_ONCE)
        turns.append(time.perf_counter() - began)
    registering.kill()
    registering.join()
    return turns


def _register(hosts: str, access: Access, workers: int, joining: int) -> None:
    """Newcomers that are ready; their session lasts until this process is ended."""
    with Session(hosts, access=access) as session:
        store = JobStore(session, access.job)
        for number in range(workers, workers + joining):
            store.members.put(member(number, Stage.READY))
        threading.Event().wait(WAIT_S)
