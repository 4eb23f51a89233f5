"""Measure the step time of each job with each number of workers, by `edl profile`.

Each job is started once more with `edl run`, alone on a host, with the most workers that it may
have, and trains until `edl profile` has measured all sizes, the largest first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from benchmarks.cluster_jobs.machines import CLIENT, Machines
from benchmarks.cluster_jobs.marks import step_marks
from benchmarks.cluster_jobs.workload import ENVIRONMENT, HOSTS, MOST, SLOTS, WorkloadJob

STEPS = 8  # measured with each number of workers
ENDLESS = 1000  # epochs of a job that the profile ends
SIZE_S = 120.0  # for one number of workers to be reached and measured
Profiles = dict[str, dict[int, float]]
"""Seconds of a step, by job and number of workers."""


def measure(
    machines: Machines, jobs: Sequence[WorkloadJob], say: Callable[[str], None]
) -> Profiles:
    """Profile ``jobs``, one on each host at a time."""
    waiting = list(jobs)

    def on(host: str) -> Profiles:
        found: Profiles = {}
        while waiting:
            job = waiting.pop(0)
            found[job.name] = step_s = _profile(machines, host, job)
            said = ", ".join(f"{np}: {each_s:.3f} s" for np, each_s in step_s.items())
            say(f"profile of {job.name}: {said}")
        return found

    with ThreadPoolExecutor(len(HOSTS)) as pool:
        parts = list(pool.map(on, HOSTS))
    merged = {name: step_s for part in parts for name, step_s in part.items()}
    return {job.name: merged[job.name] for job in jobs}


def _profile(machines: Machines, host: str, job: WorkloadJob) -> dict[int, float]:
    """Return the seconds of a step of ``job`` by number of workers."""
    name = f"profile-{job.name}"
    directory = machines.directory / name
    (directory / "reports").mkdir(parents=True)
    command = job.command(directory, ENDLESS)
    sizes = ("-np", str(MOST), "--min-np", "1", "--max-np", str(MOST), "--slots", str(SLOTS))
    address = machines.network.address(host)
    words = ("run", *sizes, "--job", name, "--address", address, *command)
    machines.start(name, host, *words, more=ENVIRONMENT)
    machines.until(lambda: any(step_marks(directory)), f"{name} does not train", name)
    options = ("--np", f"1..{MOST}", "--steps", str(STEPS), "--timeout", str(SIZE_S), "--json")
    text = machines.run(CLIENT, "profile", name, *options, timeout_s=MOST * SIZE_S)
    points = json.loads(text.splitlines()[-1])["points"]
    machines.run(CLIENT, "stop", name)
    machines.end(name)
    machines.network.wait_until_empty(host)
    return {int(point["np"]): float(point["step_s"]) for point in points}
