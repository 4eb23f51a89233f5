"""The soak of a live cluster: verbs of users and kills of all parts, by seed; nothing is lost.

    make cluster-soak [ARGS="--minutes 30 --seed 1 --every 1.5"]

Three ZooKeeper servers, two controllers, three hosts with two slots each, all on this machine. Jobs
are counting models on PyTorch, and stand-ins that only sleep. What is done and what is proven:
cluster_driver.py, cluster_judge.py. The directory with all logs stays when something goes wrong.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from cluster_driver import VERBS, Driver, choices
from cluster_judge import Judge

from benchmarks.cluster.live import LiveCluster
from edl.core.cluster.records import Goal
from edl.testing import throttle
from edl.testing.throttle import Throttle
from edl.testing.zookeeper import ensemble

HOSTS, SLOTS = ("a", "b", "c"), 2
CONTROLLERS = 2
STEP_S = 0.15  # of counting jobs, as long as there is trouble
END_S = 900.0  # for all jobs to end after that: a job may wait 300 s for its next try


def soak(directory: Path, minutes: float, seed: int, every_s: float) -> dict[str, Any]:
    """Drive and kill for so long, then prove; return what was done.

    Raises:
        AssertionError: something was lost, run twice, leaked or left.
    """
    throttled = directory / "throttle"
    Throttle(STEP_S, 10**6, STEP_S).put(throttled)
    environment = {throttle.FILE: str(throttled), "HOROVOD_CYCLE_TIME": "5"}
    print(f"seed {seed}, in {directory}", flush=True)
    with ensemble(directory, 3) as servers:
        zookeeper = ",".join(server.hosts for server in servers)
        with LiveCluster(directory, zookeeper, environment, policy="max_min") as lab:
            for _ in range(CONTROLLERS):
                lab.start_controller()
            for host in HOSTS:
                lab.start_host(host, SLOTS)
            with lab.store() as store:
                driver = Driver(lab, servers, store, directory / "done.log")
                with Judge(lab, driver.submissions) as judge:
                    return _driven(driver, judge, minutes, seed, every_s, throttled)


def _driven(
    driver: Driver, judge: Judge, minutes: float, seed: int, every_s: float, throttled: Path
) -> dict[str, Any]:
    """Drive for so long, and wait for the end of all jobs."""
    began_s = time.monotonic()
    for choice in choices(seed, every_s):
        time.sleep(choice.pause_s)
        if time.monotonic() - began_s >= 60.0 * minutes:
            break
        driver.do(choice)
        assert not judge.wrong, judge.wrong
    driver.calm()
    throttled.unlink()
    halted = [one for one in driver.living() if one.goal is Goal.HALT]
    for one in halted[::2]:  # the others stay halted
        driver.acknowledged(lambda client, one=one: client.resume(one.name))
        one.goal = Goal.RUN
    calm_s = time.monotonic()
    print(f"{driver.counts.total()} done; now all jobs may end", flush=True)
    judge.wait_for_the_end(END_S)
    ended_s = time.monotonic() - calm_s
    ends = judge.check_ends(driver.frozen)
    codes = driver.lab.end()
    assert set(codes.values()) == {0}, codes
    judge.check_nothing_is_left()
    verbs = {name: count for name, count in sorted(driver.counts.items()) if name in VERBS}
    kills = {name: count for name, count in sorted(driver.counts.items()) if name not in VERBS}
    return {
        "seed": seed,
        "minutes": round((calm_s - began_s) / 60, 1),
        "verbs": verbs,
        "kills": kills,
        "ends": ends,
        "end_s": round(ended_s, 1),
        "looks_at_processes": judge.looks[0],
        "looks_at_records": judge.looks[1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", type=float, default=1.5, help="seconds between two, on average")
    args = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="edl-cluster-soak-"))
    found = soak(directory, args.minutes, args.seed, args.every)
    shutil.rmtree(directory)
    print(json.dumps(found, indent=2))
    done = sum(found["verbs"].values()), sum(found["kills"].values())
    print(
        f"cluster soak: {done[0]} verbs and {done[1]} kills in {found['minutes']} minutes; no job "
        "was lost or run twice, no slot leaked, nothing is left"
    )


if __name__ == "__main__":
    main()
