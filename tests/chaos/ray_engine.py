"""Ray as the engine below a cluster: two nodes in network namespaces, whose parts are killed.

A node of which the raylet was killed is started again as a new one, as `ray start` does. The head
(its GCS) is started again with the state that it had on disk. Ray has no preemption.

Ray 2.60 loses a resource when its GCS dies while a raylet starts a worker for an actor: the worker
keeps the resource, for nobody, as long as the raylet lives. An administrator starts such a node
again (:meth:`RayEngine.calm`).
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import psutil
from fleet_cluster import Later
from net import Net
from ray_nodes import PORT, RayNodes

NODES = ("a", "b")
NAMES = "127.0.0.1 localhost\n10.77.0.1 a\n10.77.0.2 b\n"
CALL_S = 60.0
SOON_S = 5.0
LOST_S = 20.0  # for an actor to begin, or for its resource to be free again
CALM_S = 240.0  # for Ray to notice which nodes are dead
WEIGHTS = {
    "GCS": 3.0,
    "frozen GCS": 1.0,
    "raylet": 2.0,
    "frozen raylet": 0.7,
    "lease's actor": 2.0,
    "ray program": 1.0,
}
LOOK = """\
import json, sys, ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
nodes = [one["NodeManagerHostname"] for one in ray.nodes() if one["Alive"]]
names = [one["name"] for one in ray.util.list_named_actors(all_namespaces=True)]
host_of = {one["NodeID"]: one["NodeManagerHostname"] for one in ray.nodes()}
parts = ray._private.state.available_resources_per_node().items()
free = [host_of[node] for node, one in parts if one.get("edl_host")]
print(json.dumps({"nodes": sorted(nodes), "names": sorted(names), "free": sorted(free)}))
"""


class RayEngine:
    """An :class:`fleet_cluster.Engine`; a function that uses it must be on the first node."""

    hosts = NODES
    weights = WEIGHTS

    def __init__(self, net: Net, ray: RayNodes) -> None:
        self.net, self.ray = net, ray
        self.address = net.address(NODES[0])
        self.enter: Sequence[str] = net.enter(NODES[0])
        self._gcs = f"{self.address}:{PORT}"
        own = (f"python={ray.python}", f"address={self._gcs}")
        self.options = ("--fleet", "ray", *(f"--fleet-option={one}" for one in own))
        kept = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")
        self.environment = {name: ray.environment[name] for name in kept}
        self._changing = threading.RLock()
        self._is_head_away = False
        self._held: set[str] = set()

    def strike(self, action: str, pick: float, size: float, later: Later) -> str:
        node = self.hosts[min(int(pick * len(self.hosts)), len(self.hosts) - 1)]
        if action == "GCS":
            return self._kill_gcs(15.0 * size, later)
        if action == "raylet":
            return self._kill_raylet(node, 20.0 * size, later)
        if action == "frozen GCS":
            return self._freeze(self.ray.gcs(), 8.0 * size, later)
        if action == "frozen raylet":
            return self._freeze(self.ray.raylet(node), 12.0 * size, later)
        if action == "ray program":
            found = [one for one in self.net.processes(self.hosts[0]) if _is_program(one)]
        else:
            found = [one for host in self.hosts for one in self._actors(host)]
        if not found:
            return ""
        one = found[min(int(pick * len(found)), len(found) - 1)]
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
        return f"process {one.pid}"

    def daemons(self, host: str) -> list[psutil.Process]:
        raylet = self.ray.raylet(host)
        return [*([raylet] if raylet is not None else []), *self._actors(host)]

    def take_down(self, host: str) -> None:
        """Kill the raylet of a node, and the actors there."""
        with self._changing:
            self._held.add(host)
            for one in self.daemons(host):
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()

    def bring_up(self, host: str) -> None:
        """Start a node of Ray again, as soon as the head is there."""
        with self._changing:
            self._held.discard(host)
            self._repair()

    def calm(self) -> None:
        """Let the head and all nodes live, and each lend its host or have lent it."""
        with self._changing:
            self._held.clear()
            self.bring_head_up()
        lost_s: dict[str, float] = {}  # node -> since when its resource is with nobody
        deadline_s = time.monotonic() + CALM_S
        while True:
            now = self._look()
            lost = {h for h in self.hosts if not (h in now["free"] or self._actors(h))}
            if now["nodes"] == sorted(self.hosts) and not lost:
                return
            assert time.monotonic() < deadline_s, f"Ray has the nodes {now}"
            lost_s = {host: lost_s.get(host, time.monotonic()) for host in lost}
            for host, since_s in lost_s.items():
                if time.monotonic() - since_s > LOST_S:
                    self.ray.kill_raylet(host)
            self._repair()
            time.sleep(1.0)

    def leases(self) -> list[str]:
        """Return the actors that are left; all resources must be free."""
        now = self._look()
        return [*now["names"], *(f"host {h}" for h in self.hosts if h not in now["free"])]

    def story(self) -> str:
        return str(self._look())

    def _look(self) -> dict[str, list[str]]:
        """Return the nodes that live, the names of the actors, and the nodes that are not lent."""
        try:
            done = subprocess.run(
                [*self.enter, str(self.ray.python), "-c", LOOK, self._gcs],
                env=os.environ | self.ray.environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=CALL_S,
            )
        except subprocess.TimeoutExpired:
            return {"nodes": [], "names": ["Ray does not answer"], "free": []}
        answers = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode or not answers:  # Ray's library prints warnings, too
            return {"nodes": [], "names": [done.stderr[-500:]], "free": []}
        found: dict[str, list[str]] = json.loads(answers[-1])
        return found

    def _kill_gcs(self, away_s: float, later: Later) -> str:
        """Kill the head, which is started again after so many seconds."""
        with self._changing:
            if self._is_head_away or self.ray.gcs() is None:
                return ""
            self.take_head_down()
        later(away_s, self.bring_head_up)
        return f"for {away_s:.1f} s"

    def take_head_down(self) -> None:
        with self._changing:
            self.ray.kill_gcs()
            self._is_head_away = True

    def bring_head_up(self) -> None:
        with self._changing:
            if self._is_head_away:
                self.ray.start_gcs()
                self._is_head_away = False
            self._repair()

    def _kill_raylet(self, host: str, away_s: float, later: Later) -> str:
        """Kill the raylet of a node, which is started again after so many seconds."""
        with self._changing:
            if self.ray.raylet(host) is None:
                return ""
            self.ray.kill_raylet(host)
        later(away_s, self._repair)
        return f"{host}, for {away_s:.1f} s"

    def _repair(self) -> None:
        """Start all nodes that are down and not held, if the head is there.

        A node that cannot be started now, because the head is frozen or another one is down, is
        started the next time, and by :meth:`calm` at the latest.
        """
        with self._changing:
            for host in self.hosts:
                if not (self._is_head_away or host in self._held or self.ray.raylet(host)):
                    with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
                        self.ray.start_raylet(host)

    def _actors(self, host: str) -> list[psutil.Process]:
        found = self.net.processes(host)
        return [one for one in found if "".join(_words(one)[:1]).startswith("ray::LeaseActor")]

    def _freeze(self, process: psutil.Process | None, away_s: float, later: Later) -> str:
        """Stop a process for so many seconds."""
        if process is None:
            return ""

        def thaw() -> None:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()
            later(SOON_S, self._repair)  # Ray may have counted it as dead, and then it ends itself

        with contextlib.suppress(psutil.NoSuchProcess):
            process.suspend()
        later(away_s, thaw)
        return f"process {process.pid}, for {away_s:.1f} s"


@contextmanager
def ray_engine() -> Iterator[RayEngine]:
    """Start Ray for the time of a ``with`` block, in which this thread is on its first node."""
    with ExitStack() as stack:
        net = stack.enter_context(Net(*NODES, etc={"hosts": NAMES}))
        ray = stack.enter_context(RayNodes(net, NODES))
        stack.enter_context(net.visited(NODES[0]))
        yield RayEngine(net, ray)


def _is_program(process: psutil.Process) -> bool:
    return any(word.endswith("/ray_program.py") for word in _words(process))


def _words(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []
