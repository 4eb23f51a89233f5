"""The cluster that is measured: a real ZooKeeper, real controllers, and stand-ins for the rest."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from benchmarks.cluster.live import LiveCluster, Supervised, until
from benchmarks.cluster_scale.observed import Turn
from benchmarks.cluster_scale.standins import StandIns
from benchmarks.cluster_scale.workload import HOSTS, StandInJob
from edl.cluster.lifecycle import LifeState
from edl.cluster.manifest import JobManifest
from edl.cluster.records import Goal
from edl.cluster.store import ClusterStore
from edl.cluster.submission import submit_job
from edl.zookeeper.access import Access
from edl.zookeeper.local_server import start_local, stop_local
from edl.zookeeper.nodes import content
from edl.zookeeper.reads import get

NAME = "scale"
LIMIT_S = 300.0
NOWHERE = {"nowhere": "yes"}  # the labels of jobs that are only planned


class ScaleLab:
    """A cluster of stand-ins with two controllers; :func:`running_lab` gives one.

    Attributes:
        standins: its hosts and the runs of its jobs.
        store: its records.
    """

    def __init__(self, live: LiveCluster, standins: StandIns, store: ClusterStore) -> None:
        self._live = live
        self.standins = standins
        self.store = store
        self._turns = live.directory / "turns"

    def submit(self, job: StandInJob) -> None:
        """Submit a job that the stand-ins train."""
        self.standins.book.jobs[job.name] = job
        submit_job(self.store, job.manifest)

    def submit_probe(self, name: str) -> None:
        """Submit a job that no host may run."""
        submit_job(self.store, JobManifest(name, ("true",), 1, 1, labels=NOWHERE))

    def delete(self, names: Sequence[str]) -> None:
        """Delete jobs, which then end."""
        for name in names:
            self.store.jobs.change_wanted(name, lambda wanted: replace(wanted, goal=Goal.GONE))

    def use(self, policy: str) -> None:
        """Let the cluster use another policy."""
        self.store.settings.change(lambda settings: replace(settings, policy=policy))

    def pause_controllers(self) -> None:
        """Kill all controllers; none is started again until :meth:`resume_controllers`."""
        for one in self._live.controllers:
            one.hold()
            one.kill()

    def resume_controllers(self) -> None:
        """Let the controllers run again."""
        for one in self._live.controllers:
            one.release()

    def leader(self) -> Supervised:
        """Return the controller that leads; wait for it."""
        found: list[Supervised] = []

        def leads() -> bool:
            path = self.store.paths.leader
            pid = content(path, self.store.nodes.read(get(path))[0]).get("pid")
            found[:] = [one for one in self._live.controllers if one.pid == pid]
            return bool(found)

        until(leads, "leader", timeout_s=LIMIT_S)
        return found[0]

    def candidates(self) -> int:
        """Return how many controllers lead or stand for election."""
        return len(self.store.leader.controllers())

    def is_planned(self, job: str) -> bool:
        """Return whether the leader has written its first record of a job."""
        return self.store.jobs.get(job).life.submitted_s > 0

    def unended(self) -> list[str]:
        """Return the names of the jobs that have not ended."""
        jobs = self.store.jobs.list()
        return [job.name for job in jobs if job.life.state is not LifeState.ENDED]

    def turns(self, since_s: float, until_s: float | None = None) -> list[Turn]:
        """Return the turns of leading controllers that ended in a time, the earliest first.

        Args:
            since_s: its beginning, in seconds since 1970.
            until_s: its end; None: now.
        """
        end_s = time.time() if until_s is None else until_s
        lines = self._turns.read_text().splitlines()
        found = [Turn(**json.loads(line)) for line in lines if line.endswith("}")]
        return [one for one in found if since_s <= one.at_s <= end_s]

    def until_quiet(self, quiet_s: float = 3.0, within_s: float = LIMIT_S) -> bool:
        """Wait until no run was created and no device was given or taken for some seconds.

        Args:
            quiet_s: for so long.
            within_s: the longest wait, in seconds.

        Returns:
            False if that did not come true in time: a policy may change its mind again and again.
        """
        book, since_s, seen = self.standins.book, time.monotonic(), (-1, -1, -1)
        deadline_s = since_s + within_s
        while time.monotonic() < deadline_s:
            self.standins.check()
            training = self.standins.runs.training()
            now = (book.runs.total(), book.resizes.total(), training)
            if now != seen:
                seen, since_s = now, time.monotonic()
            if time.monotonic() - since_s >= quiet_s:
                return True
            time.sleep(0.2)
        return False


@contextmanager
def running_lab(directory: Path, policy: str, say: Callable[[str], None]) -> Iterator[ScaleLab]:
    """While entered, provide a cluster with two controllers and all stand-in hosts.

    Args:
        directory: an existing directory for logs and state.
        policy: the first policy of the cluster.
        say: shows a sentence to the user.
    """
    state = directory / "zookeeper"
    zookeeper = start_local(state)
    observed = ("-m", "benchmarks.cluster_scale.observed", str(directory / "turns"))
    try:
        with LiveCluster(
            directory, zookeeper, policy=policy, name=NAME, controller=observed
        ) as live:
            for _ in range(2):
                live.start_controller()
            access = Access(NAME, live.secret)
            with live.store() as store, StandIns(zookeeper, access, HOSTS) as standins:
                standins.offer()
                say(f"{HOSTS} hosts are offered")
                yield ScaleLab(live, standins, store)
    finally:
        stop_local(state)
