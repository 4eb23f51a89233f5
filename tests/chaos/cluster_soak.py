"""The soak of a live cluster: verbs of users and kills of all parts, by seed; nothing is lost.

    make cluster-soak [ARGS="--minutes 30 --seed 1 --every 1.5 --fleet slurm"]

Three ZooKeeper servers, two controllers, three hosts with two slots each, all on this machine. Jobs
are counting models on PyTorch, and stand-ins that only sleep. What is done and what is proven:
cluster_driver.py, cluster_judge.py. The directory with all logs stays when something goes wrong.

With ``--fleet`` the hosts are borrowed, and the daemons of the engine are among the victims: three
of a real Slurm (slurm_engine.py), or two of a real Ray in network namespaces (ray_engine.py, root).
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from cluster_driver import LULL, VERBS, Driver, choices
from cluster_judge import Judge
from fleet_cluster import SLOTS, FleetCluster
from ray_engine import ray_engine
from slurm_engine import slurm_engine

from benchmarks.cluster.live import LiveCluster
from edl.cluster.records import Goal
from edl.testing.throttle import Throttle
from edl.testing.zookeeper import Server, ensemble

HOSTS = ("a", "b", "c")  # where no engine lends them
STEP_S = 0.15  # of counting jobs, as long as there is trouble
END_S = 900.0  # for all jobs to end after that: a job may wait 300 s for its next try


def soak(
    directory: Path, minutes: float, seed: int, every_s: float, fleet: str = "none"
) -> dict[str, Any]:
    """Drive and kill for so long, then prove; return what was done."""
    throttled = directory / "throttle"
    Throttle(STEP_S, 10**6, STEP_S).put(throttled)
    print(f"seed {seed}, fleet {fleet}, in {directory}", flush=True)
    with started(directory, fleet) as (lab, servers), lab.store() as store:
        driver = Driver(lab, servers, store, throttled, directory / "done.log")
        with Judge(lab, driver.submissions) as judge:
            return _driven(driver, judge, minutes, seed, every_s)


@contextmanager
def started(
    directory: Path, fleet: str, members: int = 3, controllers: int = 2
) -> Iterator[tuple[LiveCluster, tuple[Server, ...]]]:
    """Start a cluster with its ZooKeeper, and the engine that lends its hosts."""
    with ExitStack() as stack:
        if fleet == "none":
            zookeeper = stack.enter_context(ensemble(directory, members))
            lab = LiveCluster(directory, _addresses(zookeeper), policy="max_min")
        else:
            engine = stack.enter_context(
                slurm_engine(directory / "slurm") if fleet == "slurm" else ray_engine()
            )
            zookeeper = stack.enter_context(ensemble(directory, members, engine.address))
            lab = FleetCluster(directory, _addresses(zookeeper), engine)
        stack.enter_context(lab)
        for _ in range(controllers):
            lab.start_controller()
        for host in HOSTS if fleet == "none" else ():
            lab.start_host(host, SLOTS)
        yield lab, zookeeper


def _addresses(servers: tuple[Server, ...]) -> str:
    return ",".join(server.hosts for server in servers)


def _driven(
    driver: Driver, judge: Judge, minutes: float, seed: int, every_s: float
) -> dict[str, Any]:
    began_s = time.monotonic()
    for choice in choices(seed, every_s, driver.more_choices):
        time.sleep(choice.pause_s)
        if time.monotonic() - began_s >= 60.0 * minutes:
            break
        driver.do(choice)
        assert not judge.wrong, judge.wrong
    driver.calm()
    driver.throttle.unlink()
    halted = [one for one in driver.living() if one.goal is Goal.HALT]
    for one in halted[::2]:  # the others stay halted
        driver.acknowledged(lambda client, one=one: client.resume(one.name))
        one.goal = Goal.RUN
    calm_s = time.monotonic()
    print(f"{driver.counts.total()} done; now all jobs may end", flush=True)
    judge.wait_for_the_end(END_S)
    if driver.engine is not None:
        driver.claim_all()  # so each host is lent once more, and ends what an earlier lease left
        judge.wait_for_the_end(END_S)
        judge.wait_for_the_hosts(END_S)
    ended_s = time.monotonic() - calm_s
    ends = judge.check_ends(driver.frozen)
    codes = driver.lab.end()
    assert set(codes.values()) == {0}, codes
    judge.check_nothing_is_left()
    counts = sorted(driver.counts.items())
    return {
        "seed": seed,
        "minutes": round((calm_s - began_s) / 60, 1),
        "verbs": {name: count for name, count in counts if name in VERBS | LULL},
        "kills": {name: count for name, count in counts if name not in VERBS | LULL},
        "ends": ends,
        "leases": judge.count_leases(),
        "end_s": round(ended_s, 1),
        "looks_at_processes": judge.looks[0],
        "looks_at_records": judge.looks[1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", type=float, default=1.5, help="seconds between two, on average")
    parser.add_argument("--fleet", choices=["none", "slurm", "ray"], default="none")
    args = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="edl-cluster-soak-"))
    found = soak(directory, args.minutes, args.seed, args.every, args.fleet)
    shutil.rmtree(directory)
    print(json.dumps(found, indent=2))
    done = sum(found["verbs"].values()), sum(found["kills"].values())
    print(
        f"cluster soak: {done[0]} verbs and {done[1]} kills in {found['minutes']} minutes; no job "
        "was lost or run twice, no slot or lease leaked, nothing is left"
    )


if __name__ == "__main__":
    main()
