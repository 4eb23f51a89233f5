"""A learning rate by samples: the same on all workers, whoever comes and goes."""

from __future__ import annotations

from pathlib import Path

import pytest
from churned import agreed_rows, through_a_join_and_a_kill
from paths import SCRIPTS

from edl.schedules import Knee, Scaling
from edl.testing.job import started
from edl.testing.throttle import Throttle

pytestmark = [pytest.mark.integration, pytest.mark.slow]

# As in the script.
TOTAL = 480 * 6
KNEE = Knee(peak_lr=0.4, warmup=240, explore=1200, total=TOTAL)


@pytest.mark.parametrize(
    ("rule", "restarts"),
    [
        pytest.param("linear", False, marks=pytest.mark.long),
        pytest.param("linear", True, marks=pytest.mark.long),
        pytest.param("adascale", True, marks=pytest.mark.long),
    ],
)
def test_it_follows_samples_and_batch_through_a_join_and_a_kill(
    rule: str, restarts: bool, tmp_path: Path, zk_hosts: str
) -> None:
    script = [SCRIPTS / "lr_schedule.py", "--out", str(tmp_path), "--rule", rule]
    options = ["--noise-scale-steps", "1"]
    with started(
        tmp_path, zk_hosts, *script, np=2, max_np=3, throttled=Throttle(), options=options
    ) as job:
        resumed = through_a_join_and_a_kill(job, 5, restarts)
    rows = agreed_rows(tmp_path)
    batches: list[tuple[int, int]] = []
    for (generation, number), (after, batch, known, weight, bias) in rows.items():
        if restarts and generation >= resumed and len({size for _, size in batches}) > 1:
            batches.clear()  # a resumed job has no ramp
        if not batches or batches[-1][1] != batch:
            batches.append((number, batch))
        factor = Scaling(batch=8, rule=rule, ramp=4).at(number, batches, known)
        assert weight == bias == pytest.approx(factor * KNEE.at(after)), (generation, number)
        assert KNEE.at(after) <= weight * (1 + 1e-9) <= 12 / 8 * KNEE.at(after) * (1 + 2e-9)
    assert {row[1] for row in rows.values()} == {8, 12}
    *_, (_, (after, batch, known, *rates)) = rows.items()
    assert (after, batch, rates) == (TOTAL, 12, [0.0, 0.0])
    assert known, "the noise scale was known in some update"
