"""The churn: workers are spawned and killed all the time, after a published schedule; our verdict.

    make churn [ARGS="--kills 2000 --seed 1 --json FILE"]

The schedule is that of PCCL's stress test: each 0.5 to 2 s one of 2 to 10 workers is spawned
(weight 0.6) or killed by SIGKILL (0.4); with two left one is spawned always. Its verdict is that
somebody goes on. Ours: each sample was counted once an epoch, and all hold the same state, which is
compared after each step. And now and then the victim is the leader, the agent of `edl run`, or
ZooKeeper, which then come back.

Nobody is killed who may be the only one with the job's state, and no second one before the agent
or ZooKeeper is back.

With ``--exact`` the job has eight logical workers, in TensorFlow four. Then the verdict is that the
state after each step has the bits of one process which nothing disturbs.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from exact_scenario import ExactScenario, FitExactScenario, TensorFlowExactScenario
from fault_scenario import START_S, FaultScenario, even
from scenario import scenario
from soak import FRAMEWORKS, keep, stalls_of

from edl.chaos.fault_schedule import (
    LEADER,
    NEWCOMER,
    WORKER,
    Action,
    ObservedWorker,
    Order,
    choose_worker,
)
from edl.chaos.faults import health, is_process_of, send_signal
from edl.errors import CoordinationError
from edl.job.snapshot import Snapshot
from edl.records import JobState, RequestedBy, Stage
from edl.testing.zookeeper import Server, ensemble
from edl.zookeeper.store import JobStore

LEAST, MOST = 2, 10  # workers
PAUSE_S = (0.5, 2.0)
SPAWN, KILL = 0.6, 0.4
# Of the kills: most are of any worker.
AGENT, ZOOKEEPER = "agent", "ZooKeeper"
VICTIMS = {WORKER: 0.75, LEADER: 0.1, NEWCOMER: 0.1, AGENT: 0.03, ZOOKEEPER: 0.02}
EPOCHS_A_KILL = 0.2  # two cores train half as many meanwhile
END_S = 1800.0
QUIET_S = 120.0  # without a step: nothing that this driver does takes as long
EXACT_STEPS_A_KILL = 21.0  # which eight workers train in 0.2 s each
EXACT = {
    "pytorch": ExactScenario,
    "tensorflow-function": TensorFlowExactScenario,
    "tensorflow-fit": FitExactScenario,
}


@dataclass
class Churn:
    job: FaultScenario
    store: JobStore
    server: Server
    seed: int
    limit: int  # workers
    kills: Counter[str] = field(default_factory=Counter)
    spawned: int = 0
    spared: int = 0  # times that nobody could be killed without losing the state
    most: int = 0  # workers at once
    history: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._step, self._stepped = -1, time.monotonic()

    def run(self, kills: int) -> None:
        while self.kills.total() < kills:
            time.sleep(self._random.uniform(*PAUSE_S))
            snapshot = self._look()
            size = len(snapshot.members)
            self.most = max(self.most, size)
            if size <= LEAST or self._random.random() * (SPAWN + KILL) < SPAWN:
                self._spawn(snapshot)
            else:
                self._kill(snapshot)

    def _look(self) -> Snapshot:
        while True:
            try:
                snapshot = self.store.snapshot()
                break
            except CoordinationError:
                time.sleep(0.1)
        assert snapshot.job.state is JobState.RUNNING, self.job.describe(snapshot.job.reason)
        now = time.monotonic()
        if snapshot.status.step != self._step:
            self._step, self._stepped = snapshot.status.step, now
        quiet_s = now - self._stepped
        assert quiet_s < QUIET_S, self.job.describe(f"no step for {quiet_s:.0f} s")
        return snapshot

    def _spawn(self, snapshot: Snapshot) -> None:
        wanted = sum(snapshot.desired.hosts.values())
        if wanted < self.limit:
            self._want(snapshot, wanted + 1, "churn: one more")
            self.spawned += 1

    def _want(self, snapshot: Snapshot, np: int, why: str) -> None:
        [host] = snapshot.desired.hosts
        self.store.set_desired(lambda _: {host: np}, RequestedBy.PERSON, why)

    def _kill(self, snapshot: Snapshot) -> None:
        victim = self._random.choices(list(VICTIMS), list(VICTIMS.values()))[0]
        if victim == AGENT:
            self.job.agent().kill()
            self.job.until(lambda: not psutil.pid_exists(self.job.agent_pid), "the agent's end")
            self.job.rejoin()
            self.job.wait(lambda now: now["hosts"], "an agent", START_S)
        elif victim == ZOOKEEPER:
            self.server.kill()
            self.server.start()
        elif not self._kill_worker(victim, snapshot):
            self.spared += 1
            return
        self.kills[victim] += 1
        self._remember(f"kill {victim}")

    def _kill_worker(self, target: str, snapshot: Snapshot) -> bool:
        generation, leader = snapshot.generation, snapshot.leader
        workers = []
        for member in snapshot.members:
            known = generation is not None and generation.knows(member.id)
            here = member.stage is not Stage.FINISHED and is_process_of(member)
            in_ring = here and known and member.generation > 0
            trained = in_ring and health(member).generation > 0
            workers.append(ObservedWorker(member.id, in_ring, here, trained))
        order = Order(Action.KILL, target)
        chosen, _ = choose_worker(order, workers, leader.worker if leader else None, self._random)
        if chosen is None:
            return False
        try:
            send_signal(next(m for m in snapshot.members if m.id == chosen), signal.SIGKILL)
        except ProcessLookupError:  # it has left by itself meanwhile
            return False
        wanted = sum(snapshot.desired.hosts.values())
        if wanted > LEAST:
            self._want(snapshot, wanted - 1, "churn: one fewer")
        return True

    def _remember(self, what: str) -> None:
        self.history = [*self.history[-60:], f"{time.strftime('%H:%M:%S')} {what}"]


def churn(
    job: FaultScenario, server: Server, kills: int, seed: int, most: int = MOST
) -> dict[str, Any]:
    """Let it churn, prove, and tell; raises AssertionError for what went wrong."""
    job.wait_for_step(3, START_S)
    began = time.monotonic()
    with job.store() as store:
        driver = Churn(job, store, server, seed, most)
        try:
            driver.run(kills)
        finally:
            job.remember(f"seed {seed}:", *driver.history)
        took_s = time.monotonic() - began
        snapshot = driver._look()
        stalls = stalls_of([event for _, event in store.events.read()])
    print(f"{driver.kills.total()} kills in {took_s:.0f} s; now the job may end", flush=True)
    reports = job.prove()
    assert snapshot.generation is not None
    assert snapshot.leader is not None
    return {
        "minutes": round(took_s / 60, 1),
        "kills": driver.kills.total(),
        "by_victim": dict(sorted(driver.kills.items())),
        "spawns": driver.spawned,
        "spared": driver.spared,
        "most_workers": driver.most,
        "seed": seed,
        "generations": snapshot.generation.number,
        "terms": snapshot.leader.term,
        "steps": reports[0]["steps"],
        "samples_counted": job.samples * job.epochs,
        "stall_s": stalls,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--framework", choices=FRAMEWORKS, default="pytorch")
    parser.add_argument("--exact", action="store_true", help="logical workers")
    parser.add_argument("--json", type=Path, help="write the figures there")
    args = parser.parse_args()
    if args.exact and args.framework not in EXACT:
        parser.error(f"--exact is for {', '.join(EXACT)}")
    kind: type[FaultScenario] = FaultScenario
    most, a_kill, environment = MOST, EPOCHS_A_KILL, dict(FRAMEWORKS[args.framework])
    if args.exact:
        kind = exact = EXACT[args.framework]
        most, a_kill, environment = exact.logical_workers, EXACT_STEPS_A_KILL, {}
        a_kill /= exact.steps_of_epoch
    directory = Path(tempfile.mkdtemp(prefix="edl-churn-"))  # stays when something goes wrong
    with (
        ensemble(directory, 1) as (server,),
        scenario(
            directory,
            server.hosts,
            kind=kind,
            np=LEAST,
            min_np=1,
            max_np=most,
            throttled=even(0.2),
            epochs=max(5, round(a_kill * args.kills)),
            end_s=END_S,
            environment={"EDL_CHAOS": "1", **environment},
        ) as job,
    ):
        result = churn(job, server, args.kills, args.seed, most)
        result |= {"framework": args.framework, "exact": args.exact}
    shutil.rmtree(directory)
    counted = f"each of {result['samples_counted']} samples counted once"
    print(json.dumps(result, indent=2))
    keep(result, args.json)
    print(
        f"churn: {result['kills']} kills and {result['spawns']} spawns in {result['minutes']} "
        f"minutes, {'each step bit for bit that of one process' if args.exact else counted}"
    )


if __name__ == "__main__":
    main()
