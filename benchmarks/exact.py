"""What logical workers cost: a step of them beside the same microbatches, added up as they come.

The two jobs have the same workers, microbatches and number of steps, and train in turns (see
:mod:`benchmarks.step_time`). What is longer is the seeding and keeping of each logical worker, and
the sum without rounding in place of float32.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.jobs import EdlJob
from benchmarks.page import Section, markdown
from benchmarks.step_time import WORKERS, Comparison, compare

LOGICAL = 4
MODELS = {"mlp": 64, "resnet": 4, "transformer": 8}  # the batch of one logical worker
TITLES = {
    "mlp": "MLP, 4.7 M parameters",
    "resnet": "ResNet-18 for 32 by 32 pixels, 11.2 M",
    "transformer": "transformer of 2 layers, 1.8 M",
}


class ExactJob(EdlJob):
    """A job with logical workers."""

    def options(self) -> list[str]:
        return ["--logical", str(LOGICAL), "--max-np", str(LOGICAL)]


@dataclass(frozen=True)
class Exact:
    """What logical workers cost one model. Shares are of a step of them."""

    steps: Comparison  # a: microbatches as they come, b: of logical workers
    switching: float  # seeds, copies of buffers, gradients put aside
    reducing: float  # the sums without rounding, and the wait for the other workers


def measure(
    model: str, jobs: tuple[EdlJob, ExactJob], turns: Path, rounds: int, block: int
) -> Exact:
    """Train ``model`` with and without logical workers, in turns."""
    script = "benchmarks.torch.exact"
    free, exact = jobs
    found = compare((free, script), (exact, script), turns, rounds, block, ("--mode", model))
    spent = [json.loads(path.read_text()) for path in exact.directory.rglob("*.parts")]
    a_step = {
        name: float(np.mean([one[name] / one["steps"] for one in spent])) / found.b_s
        for name in ("begin_piece", "end_piece", "means")
    }
    return Exact(found, a_step["begin_piece"] + a_step["end_piece"], a_step["means"])


def measure_all(
    job: Callable[[type[EdlJob]], EdlJob], scratch: Path, rounds: int, say: Callable[[str], None]
) -> dict[str, Exact]:
    """Return the cost for each model, by its name."""
    found = {}
    for model in MODELS:
        free, exact = job(EdlJob), job(ExactJob)
        assert isinstance(exact, ExactJob)
        one = measure(model, (free, exact), scratch / f"exact-{model}", rounds, 10)
        found[model] = one
        say(
            f"exact, {model}: {one.steps.a_s * 1e3:.1f} ms and {one.steps.b_s * 1e3:.1f} ms, ratio "
            f"{one.steps.ratio:.3f} ({one.steps.low:.3f} to {one.steps.high:.3f}); switching "
            f"{one.switching:.2%}, reducing {one.reducing:.1%} of it"
        )
    return found


def page(found: Mapping[str, Exact], machine: str) -> str:
    """benchmarks/results/exact.md."""
    rows = [
        [
            TITLES[model],
            str(MODELS[model]),
            f"{1e3 * one.steps.a_s:.0f}",
            f"{1e3 * one.steps.b_s:.0f}",
            f"{one.steps.ratio - 1:+.1%} ({one.steps.low - 1:+.1%} to {one.steps.high - 1:+.1%})",
            f"{1e3 * one.steps.a_cpu_s:.0f}, {1e3 * one.steps.b_cpu_s:.0f}",
            f"{one.switching:.2%}",
            f"{one.reducing:.1%}",
        ]
        for model, one in found.items()
    ]
    head = ["", "batch of one", "free, ms", "logical, ms", "longer by (95 %)",
            "processor time, ms", "switching", "reducing"]  # fmt: skip
    pairs = max(len(one.steps.ratios) for one in found.values())
    how = (
        f"Two jobs of {WORKERS} workers train in turns, a block of steps each: {LOGICAL} logical "
        f"workers (`edl run --logical {LOGICAL}`), and the same {LOGICAL} microbatches of a fixed "
        f"global batch (`global_batch`, `micro_batch`) without them. The medians of {pairs} pairs "
        "of blocks. *Switching* is what comes before and after each logical worker's pass (seeds, "
        "BatchNorm's averages, gradients put aside), *reducing* the sum without rounding with the "
        "wait for the other worker in it, both as a share of the step with logical workers. "
        "EasyScale (SC'23) publishes at most 2 % for switching."
    )
    section = Section("A step of logical workers", how, head, rows)
    command = "python -m benchmarks --only exact"
    return markdown("What logical workers cost", command, f"Machine: {machine}.", [section])
