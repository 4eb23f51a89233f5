"""Ramps of the learning rate in which workers come, go and die.

They are the same on all workers, and the weights are those of one process that plays the same
batches and knows nothing of edl.

What happens when: scripts/ramp_diary.py. Each worker writes down the samples, the rate, the weights
and the momentum of each step. The rates are computed here, by their formula; so edl's own word for
the global batch is not used, nor its schedules.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import forked
import numpy as np
import pytest
from paths import SCRIPTS

from edl.testing.job import started

pytestmark = [pytest.mark.integration, pytest.mark.slow]

# As in scripts/ramp_problem.py.
SAMPLES, EPOCHS, BATCH = 100, 7, 4
PEAK_LR = 0.05
BASE, RAMP = 8, 12
ALIKE = ("epoch", "samples", "batch", "rate", "weights", "momenta")  # on all workers, to the bit
CLOSE = 1e-6  # of the largest number, between the job and the single process
SENT_RATE = {"torch": 1e-12, "tensorflow": 1e-6, "fit": 1e-6}  # Keras is told a float32

Row = dict[str, Any]


@dataclass(frozen=True)
class Step:
    """An update of the job, by all that were in it."""

    rows: list[Row]  # of those who have seen its end, with their names as `who`
    lost: list[Row]  # the batches of those who have begun it, and died
    ids: list[int]  # of its samples

    @property
    def row(self) -> Row:
        return self.rows[0]

    @property
    def batch(self) -> int:
        """Samples, if each worker has a whole batch."""
        sizes = {row["size"] for row in self.rows if not row["missed"]}
        assert len(sizes) == 1, self.rows
        return BATCH * int(sizes.pop())


def steps_of(out: Path) -> list[Step]:
    """Each update once; all workers say the same of it, and together have its samples."""
    begun: dict[int, list[Row]] = defaultdict(list)
    complete: dict[int, list[Row]] = defaultdict(list)
    for path in sorted(out.glob("*.jsonl")):
        for row in map(json.loads, path.read_text().splitlines()):
            if "begun" in row:
                begun[row["begun"]].append({**row, "who": path.stem})
            else:
                complete[row["step"]].append({**row, "who": path.stem})
    assert sorted(complete) == [*range(len(complete))]
    return [_step(begun[number], complete[number]) for number in sorted(complete)]


def _step(begun: list[Row], complete: list[Row]) -> Step:
    number = complete[0]["step"]
    for name in ALIKE:
        said = {row["who"]: row[name] for row in complete}
        assert all(value == complete[0][name] for value in said.values()), (number, name, said)
    batches = {row["who"]: row["ids"] for row in begun}
    for row in complete:
        assert row["ids"] == batches[row["who"]], (number, "it began with other samples", row)
    seen = {row["who"] for row in complete}
    lost = [row for row in begun if row["who"] not in seen]
    ids = [sample for row in complete for sample in row["ids"]]
    if len(ids) < complete[0]["samples"]:  # who has died had brought its gradients
        ids += [sample for row in lost for sample in row["ids"]]
    assert len(ids) == complete[0]["samples"] == len({*ids}), (number, ids)
    return Step(complete, lost, ids)


def gammas(batches: list[int], ramp: int = RAMP) -> list[float]:
    """Return the factor of the rate of each update, from the global batch of each.

    gamma_t = 1 + (t - t0) / T (k - 1), where the ramp begins at 1 (Lin and others, arXiv
    1904.12043); a ramp that begins during another one begins at the factor reached there.
    """
    begin = end = batches[0] / BASE
    t0, found = 0, [begin]
    for t in range(1, len(batches)):
        if batches[t] != batches[t - 1]:
            begin += min(1.0, (t - t0) / ramp) * (end - begin)
            end, t0 = batches[t] / BASE, t
        found.append(begin + min(1.0, (t - t0) / ramp) * (end - begin))
    return found


def test_the_formula() -> None:
    """T = 4, k = 1.5 from t0 = 1; at t = 3 the ramp is at 1.25, and goes to 1 from there."""
    expected = [1.0, 1.0, 1.125, 1.25, 1.1875, 1.125, 1.0625, 1.0, 1.0]
    assert gammas([8, 12, 12, 8, 8, 8, 8, 8, 8], ramp=4) == expected


def replayed(framework: str, steps: list[Step], *factors: list[float]) -> list[list[Row]]:
    """Weights and momenta after each update, in a process without edl; for each of ``factors``."""
    updates = [
        [{"ids": step.ids, "gamma": gamma} for step, gamma in zip(steps, each, strict=True)]
        for each in factors
    ]
    done = forked.by_exec(
        [sys.executable, SCRIPTS / "ramp_replay.py", framework],
        240,
        input=json.dumps(updates),
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    found: list[list[Row]] = json.loads(done.stdout.splitlines()[-1])
    return found


def difference(steps: list[Step], played: list[Row], name: str) -> float:
    """Return the largest difference of ``name`` in any update, relative to its largest number."""
    return max(
        float(np.abs(np.array(step.row[name]) - other[name]).max() / np.abs(other[name]).max())
        for step, other in zip(steps, played, strict=True)
    )


@pytest.mark.parametrize(
    ("framework", "point", "missed"),
    [
        ("torch", "gradient", False),
        pytest.param("torch", "applied", True, marks=pytest.mark.long),
        pytest.param("tensorflow", "gradient", False, marks=pytest.mark.long),
        pytest.param("tensorflow", "applied", True, marks=pytest.mark.long),
        pytest.param("fit", "gradient", False, marks=pytest.mark.long),
        pytest.param("fit", "applied", True, marks=pytest.mark.long),
    ],
)
def test_a_job_that_changes_during_ramps(
    framework: str, point: str, missed: bool, tmp_path: Path, zk_hosts: str
) -> None:
    """A worker joins, the leader is killed, another worker joins, and one leaves.

    The leader is killed in the midst of its gradients, or when only one of the others knows that
    the update is complete.
    """
    chance = random.Random(f"{framework} {point}")
    death_at, wait_at = (chance.randrange(3, RAMP - 2) for _ in range(2))
    out = tmp_path / "out"
    out.mkdir()
    names = {"torch": "ramp_torch.py", "tensorflow": "ramp_tf.py", "fit": "ramp_fit.py"}
    script = SCRIPTS / names[framework]
    words = ["--out", str(out), "--point", point, *(["--missed"] if missed else [])]
    words += ["--death-at", str(death_at), "--wait-at", str(wait_at)]
    environment = {"EDL_STATE_CHECK_STEPS": "1", "EDL_BACKOFF_MAX_S": "1"}
    with started(
        tmp_path, zk_hosts, script, *words, np=2, max_np=3, environment=environment
    ) as job:
        for stage, size in ((0, 3), (3, 2)):
            job.wait(lambda _, n=stage: (out / f"waits-{n}").exists(), f"stage {stage}")
            job.scale(size)
        assert job.end(240.0) == 0, job.describe("it failed")
        assert not job.events("state_differs")

    steps = steps_of(out)
    batches = [step.batch for step in steps]
    changes = [n for n in range(1, len(batches)) if batches[n] != batches[n - 1]]
    assert [batches[0], *(batches[n] for n in changes)] == [8, 12, 8, 12, 8]
    assert all(later - since < RAMP for since, later in pairwise(changes)), changes
    assert len(steps) > changes[-1] + RAMP, "the last ramp has no end"

    # Each sample once an epoch; those that the dead one held in vain are trained by others.
    for epoch in range(EPOCHS):
        ids = [sample for step in steps if step.row["epoch"] == epoch for sample in step.ids]
        assert sorted(ids) == [*range(SAMPLES)], epoch
    (death,) = [number for number, step in enumerate(steps) if step.lost]
    assert death == changes[0] + death_at
    assert bool({*steps[death].lost[0]["ids"]} & {*steps[death].ids}) == missed
    assert [row["missed"] for row in steps[death].rows].count(True) == int(missed)
    assert changes[1] == death + int(missed)

    factors = gammas(batches)
    for number, (step, gamma) in enumerate(zip(steps, factors, strict=True)):
        assert step.row["batch"] == step.batch, number
        expected = pytest.approx(PEAK_LR * gamma, rel=SENT_RATE[framework])
        assert step.row["rate"] == expected, number

    played, at_once = replayed(framework, steps, factors, [batch / BASE for batch in batches])
    for name in ("weights", "momenta"):
        found, control = (difference(steps, each, name) for each in (played, at_once))
        print(f"{framework}, {point}: {len(steps)} updates, {name} differ by {found:.1e} at most")
        assert found <= CLOSE, name
        assert control > 1000 * CLOSE, "the test would not see whether there is a ramp"
