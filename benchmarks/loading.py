"""How many samples a second edl's loaders give to a loop that does little but load.

A job of one worker trains a model of one weight, by edl's loader and by the framework's own, in
turns (see :mod:`benchmarks.step_time`). A step of edl has all in it that edl does for each batch:
it forms the batch of the samples that are not trained yet, seeds the random generators for each
sample (not for those of a ``TensorDataset``, which draws no random numbers), and records the step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from benchmarks.jobs import EdlJob, Job, PlainJob
from benchmarks.page import Section, markdown
from benchmarks.step_time import WARM, Comparison, compare

# The samples and loader processes of each case, as the script's modes, and its batch.
CASES: Mapping[str, Mapping[str, tuple[str, int]]] = {
    "torch": {
        "tensors-0": ("16 numbers of a `TensorDataset`, `num_workers=0`", 64),
        "tensors-2": ("16 numbers of a `TensorDataset`, `num_workers=2`", 64),
        "tiny-0": ("16 numbers, `num_workers=0`", 64),
        "tiny-2": ("16 numbers, `num_workers=2`", 64),
        "image-0": ("3 x 224 x 224, `num_workers=0`", 32),
        "image-2": ("3 x 224 x 224, `num_workers=2`", 32),
    },
    "tensorflow": {
        "tiny": ("16 numbers", 64),
        "image": ("224 x 224 x 3", 32),
    },
}
BLOCK = 100  # steps
AHEAD = 10  # steps at the start of a block, whose batches were loaded before it
GOAL = 1.0  # of the framework's own, at least


def measure(
    framework: str,
    job: Callable[[type[Job]], Job],
    scratch: Path,
    rounds: int,
    say: Callable[[str], None],
) -> dict[str, Comparison]:
    """Compare the loaders of ``framework``.

    Args:
        framework: "torch" or "tensorflow".
        job: a function that returns a new job of a class.
        scratch: a directory in which the jobs take turns.
        rounds: the number of pairs of blocks of each case.
        say: told of each result.

    Returns:
        A comparison of steps by the names in :data:`CASES`; job A has the framework's own loader.
    """
    found = {}
    for mode, (_, batch) in CASES[framework].items():
        plain, elastic = (
            (job(kind), f"benchmarks.{framework}.loading.{script}")
            for kind, script in ((PlainJob, "plain"), (EdlJob, "edl"))
        )
        turns, arguments = scratch / f"loading-{framework}-{mode}", ("--mode", mode)
        one = compare(plain, elastic, turns, rounds, BLOCK, arguments, 1, block_mean)
        found[mode] = one
        say(
            f"loading, {framework}, {mode}: {batch / one.a_s:.0f} and {batch / one.b_s:.0f} "
            f"samples/s, {1 / one.ratio:.2f} of it ({1 / one.high:.2f} to {1 / one.low:.2f})"
        )
    return found


def block_mean(job: Job, turn: int, block: int) -> float:
    """Return the mean time of a step in a block, in seconds.

    Batches of loader processes come several at a time, so a median of their times says little.
    """
    (steps,) = job.steps().values()
    first = WARM + turn * block  # the step that ended before the block
    within = steps.time_s[(steps.step >= first + AHEAD) & (steps.step <= first + block)]
    return float(np.diff(within).mean())


def page(found: Mapping[str, Mapping[str, Comparison]], machine: str) -> str:
    """Return the text of benchmarks/results/loading.md, of the results of :func:`measure`."""
    own = {"torch": "torch.utils.data.DataLoader", "tensorflow": "tf.data"}
    head = ["samples", "samples/s", "edl, samples/s", "edl's part of it (95 %)",
            "processor time of a batch, ms", "edl, ms", "goal reached"]  # fmt: skip
    sections = []
    for framework, cases in found.items():
        rows = []
        for mode, one in cases.items():
            title, batch = CASES[framework][mode]
            rows.append(
                [
                    f"{title}, batches of {batch}",
                    f"{batch / one.a_s:,.0f}",
                    f"{batch / one.b_s:,.0f}",
                    f"{1 / one.ratio:.2f} ({1 / one.high:.2f} to {1 / one.low:.2f})",
                    f"{1e3 * one.a_cpu_s:.2f}",
                    f"{1e3 * one.b_cpu_s:.2f}",
                    "yes" if 1 / one.ratio >= GOAL else "**no**",
                ]
            )
        pairs = max(len(one.ratios) for one in cases.values())
        how = (
            f"Beside {own[framework]}: the medians of {pairs} pairs of blocks of {BLOCK} steps. "
            "The processor time is that of the training process, without its loader processes."
        )
        sections.append(Section(framework, how, head, rows))
    text = " ".join((__doc__ or "").split("\n\n", 1)[1].split())
    text = text.replace(" (see :mod:`benchmarks.step_time`)", "").replace("``", "`")
    command = "python -m benchmarks --only loading"
    return markdown("Loader throughput", command, f"Machine: {machine}. {text}", sections)
