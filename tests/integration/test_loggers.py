"""Loggers get each point of a job once, by `edl.log`, through deaths of the worker that writes."""

from __future__ import annotations

import json
from pathlib import Path

import forked
import pytest
from extra_python import python_with
from paths import ROOT, SCRIPTS

from edl.testing.job import EDL, Job
from edl.testing.throttle import Throttle

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.long]

READ = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
import mlflow

board = EventAccumulator(f"{sys.argv[1]}/board")
board.Reload()
client = mlflow.MlflowClient(f"file:{sys.argv[1]}/mlflow")
(run,) = client.search_runs([client.get_experiment_by_name("mean-loss").experiment_id])
metrics = client.get_metric_history(run.info.run_id, "loss")
print(json.dumps([[e.step for e in board.Scalars("loss")], sorted(m.step for m in metrics)]))
"""


def test_each_step_is_logged_once(tmp_path: Path, zk_hosts: str) -> None:
    """Rank 0 dies before it writes a step; later all die, and the job trains some steps again."""
    python = python_with("mlflow-3.17.2", "mlflow-skinny==3.17.2", beside_edl=True)
    job = Job(tmp_path, zk_hosts)
    job.throttle(Throttle(0.05, 400))
    job.environment |= {"MLFLOW_ALLOW_FILE_STORE": "true", "PYTHONPATH": str(ROOT)}
    try:
        limits = ["-np", "2", "--min-np", "1", "--max-np", "2"]
        script = SCRIPTS / "loggers.py"
        job._begin([EDL, "run", *limits, "--job", job.name, python, script, str(tmp_path)])
        assert job.end(300.0) == 0, job.describe("it failed")
        resumed = [event["step"] for event in job.events("resumed")]
    finally:
        job.close()
    points = [json.loads(line) for line in (tmp_path / "points.jsonl").read_text().splitlines()]
    read = forked.by_exec([python, "-c", READ, str(tmp_path)], 120, env=job.environment)
    assert read.returncode == 0, read.stderr
    board, metrics = json.loads(read.stdout)
    steps = [one["step"] for one in points]
    assert resumed
    assert all(step <= 50 for step in resumed)
    assert steps == list(range(1, steps[-1] + 1))
    assert len(steps) >= 80
    assert board == metrics == steps
