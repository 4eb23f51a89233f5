"""What happens to a job of two workers that may have three, and saves checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from edl.testing.job import Job


def through_a_join_and_a_kill(job: Job, first_steps: int, restarts: bool = False) -> int:
    """Let that happen, and the job end; the first generation after a restart of all, or 0."""
    job.wait_for_step(first_steps)
    job.scale(3)
    job.wait_for_size(3)
    job.kill(job.leader())
    job.wait_for_eviction()
    job.wait_for_size(3)
    if restarts:
        for name in job.members():  # at once: the newest checkpoint goes on
            job.process(name).kill()
        job.wait(lambda _: job.events("resumed"), "restart")
        job.wait_for_size(3)
    job.hurry()
    assert job.end() == 0, job.describe("it failed")
    return job.events("resumed")[0]["generation"] if restarts else 0


def agreed_rows(directory: Path) -> dict[tuple[int, int], list[Any]]:
    """Return what all workers have written alike of each (generation, update), in order."""
    rows: dict[tuple[int, int], list[Any]] = {}
    for path in directory.glob("w*.jsonl"):
        for generation, number, *row in map(json.loads, path.read_text().splitlines()):
            before = rows.setdefault((generation, number), row)
            assert before == row, f"update {number} of generation {generation} differs"
    return dict(sorted(rows.items()))
