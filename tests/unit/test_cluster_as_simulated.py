"""A live cluster gives its jobs the slots that the simulator gives them, by the same policy."""

from __future__ import annotations

import pytest
from cluster_world import Hints, World
from clusters import nodes, run

from edl.cluster.lifecycle import LifeState
from edl.cluster.policies.registry import policy_named
from edl.cluster.view import JobMeasurements
from edl.simulator.workload import SubmittedJob, TimedWork
from edl.step.batching import Batching

PARALLEL = 0.9  # the part of a step that more slots share
# Arrival, samples (one a second on one slot), slots that it asks for, fewest, most.
JOBS = {
    "a": (0, 900, 4, 1, 8),
    "b": (20, 300, 2, 1, 4),
    "c": (40, 600, 3, 2, 6),
    "d": (60, 200, 1, 1, 2),
    "e": (150, 500, 4, 2, 8),
    "f": (160, 100, 2, 1, 2),
}


def rate(slots: int) -> float:
    return 1 / (1 - PARALLEL + PARALLEL / slots)


@pytest.mark.parametrize("policy", ["fifo", "elastic_tiresias", "jsa", "edl"])
def test_jobs_end_when_the_simulator_says(policy: str) -> None:
    """Within a tenth of each job's time: here a change takes some rounds of one second."""
    submitted = [
        SubmittedJob(name, arrival_s, TimedWork(left / rate(np), np, PARALLEL), np, least, most)
        for name, (arrival_s, left, np, least, most) in JOBS.items()
    ]
    machines = nodes(4, 4)
    simulated = run(policy_named(policy), submitted, machines)
    live = World(4, 4, policy=policy)
    began_s = live.now_s
    while any(job.life.state is not LifeState.ENDED for job in live.jobs.values()) or not live.jobs:
        assert live.now_s < began_s + 2000, str(live)
        for name, (arrival_s, left, np, least, most) in JOBS.items():
            if live.now_s == began_s + arrival_s:
                hints = Hints(samples_per_s={n: rate(n) for n in range(1, most + 1)})
                known = JobMeasurements(global_batch=1, batching=Batching(global_batch=1))
                job = live.submit(name, left, np=np, min=least, max=most, hints=hints)
                job.measured, job.tells_left = known, True
        live.round()
    times = {name: job.life.ended_s - job.life.submitted_s for name, job in live.jobs.items()}
    expected = {name: job.end_s - job.arrival_s for name, job in simulated.items()}
    errors = {name: abs(times[name] - expected[name]) / expected[name] for name in JOBS}
    mean = sum(errors.values()) / len(errors)
    assert mean < 0.1, f"{times} and not {expected}"
