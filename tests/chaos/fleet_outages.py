"""Move slots between jobs on borrowed hosts while the head of the engine is killed all the time.

    make fleet-outages [ARGS="--minutes 10 --fleet slurm"]

One job trains a counting model on all slots. Another one is resumed and halted in turns, so that
half of the slots move to it and back, while slurmctld, or the GCS of Ray, is dead. The first job
must not notice: no worker of it fails, no ring breaks, no host is asked for or given back, each
sample is counted once an epoch. The directory with all logs stays when something goes wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from cluster_driver import ENVIRONMENT, STANDIN, STEP_LOG
from cluster_soak import started
from fleet_cluster import SLOTS, Engine, FleetCluster
from paths import SCRIPTS

from edl.client import Cluster
from edl.cluster.lifecycle import JobLifecycle, LifeResult, LifeState
from edl.cluster.manifest import JobManifest
from edl.errors import CoordinationError, UnknownJob
from edl.events import Event, EventKind, GenerationDetails
from edl.records import Stage
from edl.testing.throttle import Throttle

STEP_S, BATCH, SAMPLES = 0.5, 4, 960
MORE = 1.5  # so many times the steps that the time has
START_S = 120.0  # until slots begin to move, on a busy machine
WAIT_S = 300.0
OUTAGE_S = 60.0  # a longer one ends, though slots have not moved yet
TROUBLES = {
    EventKind.WORKER_FAILED,
    EventKind.WORKER_FROZEN,
    EventKind.EVICTED,
    EventKind.SLOT_DISABLED,
}


class Outages:
    """The two jobs, and what has been seen of the first one."""

    def __init__(self, lab: FleetCluster, minutes: float) -> None:
        self.moves = self.kills = 0
        self._lab = lab
        self._engine: Engine = lab.engine
        self._seconds = 60.0 * minutes
        self._slots = SLOTS * len(lab.hosts)
        self._throttle = lab.directory / "throttle"
        self._end = lab.directory / "end"
        self._events: list[Event] = []
        self._seen = -1
        steps = MORE * (START_S + self._seconds) / STEP_S
        self._epochs = max(2, round(steps * BATCH * self._slots / SAMPLES))

    def run(self) -> None:
        Throttle(STEP_S, 10**6, STEP_S).put(self._throttle)
        self._submit()
        hosts = self._offered()
        began_s = time.monotonic()
        while time.monotonic() - began_s < self._seconds:
            self._engine.take_head_down()
            self.kills += 1
            killed_s = time.monotonic()
            for verb, size in (("resume", self._slots // 2), ("halt", self._slots)):
                self._ask(lambda client, verb=verb: getattr(client, verb)("y"))
                self._until(lambda size=size: self._trains(size), f"x has not {size} workers")
                self.moves += 1
                if time.monotonic() - killed_s > OUTAGE_S:
                    self._engine.bring_head_up()
            self._engine.bring_head_up()
            time.sleep(self.kills % 3)  # now and then it is killed before it is quite there
            self._check_events()
        self._engine.calm()
        assert self._offered() == hosts, f"the hosts were {hosts}, and are {self._offered()}"
        with self._lab.store() as store:
            table, _ = store.leader.leases()
        assert table.last == len(hosts), f"other hosts were asked for: {table}"
        self._finish()

    def _submit(self) -> None:
        """Submit both jobs, and wait until the first one has all slots again."""
        directory = self._lab.directory / "x"
        directory.mkdir()
        own = {"samples": SAMPLES, "epochs": self._epochs, "batch-size": BATCH, "out": directory}
        words = [word for key, value in own.items() for word in (f"--{key}", str(value))]
        log = [sys.executable, str(STEP_LOG), str(directory), str(self._throttle)]
        self._run("x", [*log, str(SCRIPTS / "counting.py"), *words])
        self._until(lambda: self._trains(self._slots), "x does not train")
        self._run("y", [sys.executable, str(STANDIN), "--until", str(self._end)])
        self._until(lambda: self._trains(self._slots // 2), "y does not get half of the slots")
        self._ask(lambda client: client.halt("y"))
        self._until(lambda: self._trains(self._slots), "x does not grow again")

    def _run(self, name: str, command: list[str]) -> None:
        """Submit a job that needs half of the slots, and takes all."""
        least, most = self._slots // 2, self._slots
        manifest = JobManifest(name, tuple(command), least, most, cwd="/", env=ENVIRONMENT)
        self._ask(lambda client: client.submit(manifest, key=name))

    def _finish(self) -> None:
        """Let both jobs end, and check what the first one has counted, and that all is returned."""
        self._throttle.unlink()
        self._until(lambda: self._life("x").state is LifeState.ENDED, "x does not end")
        life = self._life("x")
        assert (life.result, life.runs) == (LifeResult.FINISHED, 1), f"x is {life}"
        self._check_events()
        reports = list((self._lab.directory / "x").glob("*.json"))
        assert reports, "no worker of x has reported"
        for path in reports:
            report = json.loads(path.read_text())
            assert report["wrong"] == [], f"{path}: {report}"
            assert report["counts"] == {str(self._epochs): SAMPLES}, f"{path}: {report}"
        self._ask(lambda client: client.delete("y"))
        self._until(lambda: not self._engine.leases(), "the hosts are not given back")
        assert set(self._lab.end().values()) == {0}
        left = self._lab.left()
        assert not left, f"these processes are left: {left}"

    def _trains(self, size: int) -> bool:
        """Return whether the first job trains with so many workers, and no other one comes."""
        with self._lab.store() as store:
            if store.jobs.secret("x") is None:
                return False  # it has no run yet
            with self._lab.run_of(store, "x") as run:
                now = run.snapshot()
        ring = len(now.generation.members) if now.generation is not None else 0
        active = [one for one in now.members if one.stage is Stage.ACTIVE]
        return ring == len(active) == len(now.members) == size

    def _check_events(self) -> None:
        """Check that nothing has happened to the first job since the last look."""
        with self._lab.store() as store, self._lab.run_of(store, "x") as run:
            news = run.events.read(self._seen)
        for number, event in news:
            self._seen = number
            self._events.append(event)
            assert event.kind not in TROUBLES, self._events[-20:]
            ring = event.details if isinstance(event.details, GenerationDetails) else None
            assert ring is None or not ring.repair or event.generation == 1, self._events[-20:]

    def _offered(self) -> list[str]:
        with self._lab.store() as store:
            return [host.name for host in store.hosts.list() if host.offer is not None]

    def _life(self, job: str) -> JobLifecycle:
        with self._lab.store() as store:
            return store.jobs.get(job).life

    def _ask(self, ask: Callable[[Cluster], object]) -> None:
        ask(self._lab.client())

    def _until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for a condition, while ZooKeeper may be slow to answer."""
        deadline_s = time.monotonic() + WAIT_S
        while True:
            with contextlib.suppress(CoordinationError, UnknownJob):  # its run is to be created
                if condition():
                    return
            if time.monotonic() >= deadline_s:
                said = [one.output[-3000:] for one in self._lab.controllers]
                raise AssertionError("\n".join([what, *said, self._engine.story()]))
            time.sleep(0.1)


def outages(directory: Path, minutes: float, fleet: str) -> Mapping[str, float]:
    """Move slots while the controller of an engine is killed; return how often both happened."""
    with started(directory, fleet, members=1, controllers=1) as (lab, _):
        assert isinstance(lab, FleetCluster)
        one = Outages(lab, minutes)
        one.run()
        return {"moves": one.moves, "kills": one.kills}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="with each engine")
    parser.add_argument("--fleet", choices=["slurm", "ray"], action="append")
    args = parser.parse_args()
    for fleet in args.fleet or ("slurm", "ray"):
        directory = Path(tempfile.mkdtemp(prefix=f"edl-outages-{fleet}-"))
        print(f"fleet {fleet}, in {directory}", flush=True)
        found = outages(directory, args.minutes, fleet)
        shutil.rmtree(directory)
        what = {"slurm": "slurmctld", "ray": "the GCS"}[fleet]
        print(
            f"fleet outages, {fleet}: {found['moves']} moves of half the slots while {what} was "
            f"killed {found['kills']} times in {args.minutes:g} minutes; no job has noticed",
            flush=True,
        )


if __name__ == "__main__":
    main()
