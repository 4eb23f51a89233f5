"""Metrics of torchmetrics over all workers, while one joins, one leaves and one dies."""

from __future__ import annotations

from pathlib import Path

import pytest
from extra_python import lightning_python
from paths import ROOT, SCRIPTS
from scenario import Scenario, scenario

pytestmark = [pytest.mark.integration, pytest.mark.long]  # unit/test_torch_metric_sync.py


class MetricsJob(Scenario):
    script = SCRIPTS / "torchmetrics_counting.py"

    def begin(self, np: int, max_np: int, min_np: int = 1) -> None:
        self.python = lightning_python()
        self.environment |= {"EDL_TEMPLATE": "0", "PYTHONPATH": str(ROOT)}  # as test_lightning.py
        super().begin(np, max_np, min_np)


def test_each_sample_is_in_the_metrics_once(tmp_path: Path, zk_hosts: str) -> None:
    with scenario(tmp_path, zk_hosts, np=2, max_np=3, kind=MetricsJob) as job:
        job.join_leave_and_die()
        reports = job.prove(workers=2)
    # Of 15 numbers in a row, by class: i % 3 == i % 5 % 3; i % 3; i % 5 % 3.
    right, predicted, true = (2, 2, 1), (5, 5, 5), (6, 6, 3)
    recall = sum(r / t for r, t in zip(right, true, strict=True)) / 3
    f1 = sum(2 * r / (p + t) for r, p, t in zip(right, predicted, true, strict=True)) / 3
    for report in reports:
        for epoch in report["epochs"]:
            assert epoch["accuracy"] == pytest.approx(recall, abs=1e-6)
            assert epoch["f1"] == pytest.approx(f1, abs=1e-6)
            assert epoch["mean"] == pytest.approx((job.samples - 1) / 2, abs=1e-3)
            assert epoch["spread"] == job.samples - 1
    last = [report["epochs"][-1]["trained"] for report in reports]
    assert last[0] == last[1]
