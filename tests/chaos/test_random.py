"""200 seeded instants at which somebody dies, leaves or freezes; the leader and newcomers too."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from ordeal import ordeal
from striker import Striker

from edl.core.chaos import Action

pytestmark = [pytest.mark.chaos]

FAULTS = 25
EPOCHS = 80  # divided by the workers: the fewer there are, the longer the wait for a newcomer
LIMIT_S = 400.0  # for all faults of a run to strike; newcomers come up slowly on a busy machine
ACTIONS = {Action.KILL: 0.7, Action.FREEZE: 0.15, Action.TERM: 0.1, Action.CUT: 0.05}
SHORT = (9, 3, 0, (0.1, 2.0))
RUNS = [  # seed, workers, loader processes, seconds that somebody is frozen
    (1, 4, 0, (0.1, 2.0)),
    (2, 4, 0, (0.1, 6.0)),  # longer than the session: given up
    (3, 3, 0, (0.1, 2.0)),
    (4, 2, 0, (0.1, 2.0)),
    (5, 4, 2, (0.1, 2.0)),
    (6, 3, 2, (0.1, 6.0)),
    (7, 4, 0, (2.0, 6.0)),
    (8, 3, 0, (0.1, 6.0)),
]


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
    endure(tmp_path, zk_hosts, seed, workers, num_workers, freeze_s, FAULTS)


@pytest.mark.chaos_short
def test_a_few_random_instants(tmp_path: Path, zk_hosts: str) -> None:
    endure(tmp_path, zk_hosts, *SHORT, 6)


def endure(
    directory: Path,
    zookeeper: str,
    seed: int,
    workers: int,
    num_workers: int,
    freeze_s: tuple[float, float],
    faults: int,
) -> None:
    """A job that gets ``faults`` and counts right all the same."""
    with ordeal(
        directory,
        zookeeper,
        np=workers,
        max_np=workers,
        num_workers=num_workers,
        step_delay_s=0.05,
        epochs=EPOCHS // workers if faults == FAULTS else 6,
        environment={"EDL_CHAOS": "1"},
    ) as job:
        job.wait_for_step(3)
        with job.store() as store:
            striker = Striker(store, seed, 1.0, ACTIONS, freeze_s)
            try:
                struck = striker.strike(faults, time.monotonic() + LIMIT_S)
            finally:
                striker.thaw_all()
                job.remember(f"seed {seed}:", *striker.struck)
        assert struck == faults, job.story(f"only {struck} of {faults} faults could be made")
        job.prove()
