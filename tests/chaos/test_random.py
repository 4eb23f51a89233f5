"""200 seeded instants at which somebody dies, leaves or freezes; the leader and newcomers too.

And 20 for each way to train in TensorFlow, whose newcomers take ten times as long to come up.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from fault_scenario import START_S, even, fault_scenario, training
from striker import Striker

from edl.chaos.fault_schedule import Action

pytestmark = [pytest.mark.chaos]

FAULTS = 25
EPOCHS = 80  # divided by the workers: the fewer there are, the longer the wait for a newcomer
LIMIT_S = 900.0  # for all faults of a run to strike; newcomers come up slowly on a busy machine
ACTIONS = {Action.KILL: 0.7, Action.FREEZE: 0.15, Action.TERM: 0.1, Action.CUT: 0.05}
RUNS = [  # seed, workers, loader processes, seconds that somebody is frozen
    (1, 4, 0, (0.1, 2.0)),
    (2, 4, 0, (0.1, 6.0)),  # longer than the session: evicted
    (3, 3, 0, (0.1, 2.0)),
    (4, 2, 0, (0.1, 2.0)),
    (5, 4, 2, (0.1, 2.0)),
    (6, 3, 2, (0.1, 6.0)),
    (7, 4, 0, (2.0, 6.0)),
    (8, 3, 0, (0.1, 6.0)),
]
TENSORFLOW_FAULTS = 20


@pytest.mark.parametrize(
    ("seed", "workers", "num_workers", "freeze_s"), RUNS, ids=[f"seed{run[0]}" for run in RUNS]
)
def test_random_instants(
    seed: int,
    workers: int,
    num_workers: int,
    freeze_s: tuple[float, float],
    tmp_path: Path,
    zk_hosts: str,
) -> None:
    epochs = EPOCHS // workers
    settings = {"num_workers": num_workers, "epochs": epochs, "throttled": even(0.05)}
    endure(tmp_path, zk_hosts, seed, workers, freeze_s, FAULTS, settings)


@pytest.mark.parametrize(
    ("seed", "mode"), [(11, "function"), (12, "fit"), (13, "graph")], ids=lambda value: f"{value}"
)
def test_random_instants_in_tensorflow(seed: int, mode: str, tmp_path: Path, zk_hosts: str) -> None:
    settings = {"epochs": 8, "throttled": even(0.2), "end_s": 400.0}
    endure(tmp_path, zk_hosts, seed, 4, (0.1, 6.0), TENSORFLOW_FAULTS, settings, training(mode))


def endure(
    directory: Path,
    zookeeper: str,
    seed: int,
    workers: int,
    freeze_s: tuple[float, float],
    faults: int,
    settings: Mapping[str, Any],
    model: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Run a job that gets ``faults`` faults, and prove that it counts right all the same."""
    environment = {"EDL_CHAOS": "1", **model}
    with fault_scenario(
        directory, zookeeper, np=workers, max_np=workers, environment=environment, **settings
    ) as job:
        job.wait_for_step(3, START_S)
        with job.store() as store:
            striker = Striker(store, seed, 1.0, ACTIONS, freeze_s)
            try:
                struck = striker.strike(faults, time.monotonic() + LIMIT_S)
            finally:
                striker.thaw_all()
                job.remember(f"seed {seed}:", *striker.struck)
        assert struck == faults, job.describe(f"only {struck} of {faults} faults could be made")
        job.prove()
