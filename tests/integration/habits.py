"""The proof that a job of scripts/torch_habits.py trained as one process does, step by step."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import forked
import pytest
from paths import SCRIPTS

ALONE = """
import json, sys, torch
from torch_habits import SAMPLES, Training
training = Training()
rows = [training.train(torch.tensor(indices, dtype=int), e) for indices, e in json.load(sys.stdin)]
print(json.dumps([SAMPLES, rows]))
"""
NEVER = slice(8, 12)  # of the weights: the parameter without a gradient

Line = dict[str, Any]


def prove_as_one_process(out: Path, epochs: int, workers: int | None = None) -> list[Line]:
    """Repeat each step on its global batch; return what the workers wrote of theirs."""
    batches: dict[tuple[int, int], list[int]] = {}
    steps: dict[int, list[Line]] = defaultdict(list)
    finals = []
    for file in sorted(out.glob("*.jsonl")):
        for line in map(json.loads, file.read_text().splitlines()):
            if "begun" in line:
                batches[line["begun"], line["worker"]] = line["indices"]
            elif "step" in line:
                steps[line["step"]].append(line)
            else:
                finals.append(line)
    assert sorted(steps) == list(range(len(steps)))

    global_batches: list[tuple[list[int], int]] = []
    trained: dict[int, list[int]] = defaultdict(list)
    for step, rows in sorted(steps.items()):
        (counted,) = {json.dumps(row["counted"]) for row in rows if "counted" in row}
        indices = [i for w, n in json.loads(counted) for i in batches.get((step, w), [])[:n]]
        (epoch,) = {row["epoch"] for row in rows}
        trained[epoch] += indices
        global_batches.append((indices, epoch))
    samples, alone = _train_alone(global_batches)
    for step, expected in enumerate(alone):
        _compare(steps[step], expected, step)
    assert {epoch: sorted(indices) for epoch, indices in trained.items()} == {
        epoch: list(range(samples)) for epoch in range(epochs)
    }
    assert finals
    assert workers in (None, len(finals))
    for final in finals:
        assert final == finals[0]
        assert final["steps"] == len(steps)
        assert final["final"][NEVER] == [1.0] * 4, "no weight decay without a gradient"
    return [row for rows in steps.values() for row in rows]


def _train_alone(batches: list[tuple[list[int], int]]) -> tuple[int, list[Line]]:
    """Train the batches without a job; return the samples of an epoch, and each step."""
    done = forked.python("torch", ["-c", ALONE], 120.0, json.dumps(batches), cwd=SCRIPTS)
    assert done.returncode == 0, done.stderr
    samples, rows = json.loads(done.stdout)
    return samples, rows


def _compare(rows: list[Line], expected: Line, step: int) -> None:
    for row in rows:
        assert row["weights"] == pytest.approx(expected["weights"], abs=1e-9), (step, row)
        assert row["scale"] == expected["scale"], (step, row)
        if "counted" not in row:  # it has missed the step, and was given the weights
            assert not row["moved"]
            assert math.isfinite(row["norm"]) is expected["moved"], (step, row)
            continue
        assert (row["has"], row["moved"]) == (expected["has"], expected["moved"]), (step, row)
        if expected["moved"]:
            assert row["norm"] == pytest.approx(expected["norm"]), (step, row)
