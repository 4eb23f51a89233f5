"""Judge loopback jobs of the counting model by all that its scripts recorded.

:meth:`edl.testing.counting.Counting.prove` says whether each sample counted once an epoch. The
functions here also judge what edl's own tests are about: exchanges, the gradient noise scale, the
size of batches, the rounds of the loop, and jobs that were stopped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from edl.step.noise import NoiseScale
from edl.testing.counting import Counted, Counting, CountingModel


def judge_finished(script: Any, results: Mapping[int, Any]) -> None:
    """Judge a job that was trained to its end."""
    script.prove(results)
    if isinstance(script, Counting):
        first = next(iter(results.values()))
        for worker, result in results.items():
            _judge_exchanges(worker, result, first)
            judge_noise(worker, result.noise, first.noise)
            _judge_largest(script, worker, result)
            for step, count in result.rounds.items():
                assert first.rounds.get(step, count) == count, f"w{worker}: {count} at {step}"
            assert result.batches == first.batches, f"w{worker} had the batches {result.batches}"
            assert not result.split, f"w{worker}: {result.split} steps mix global batches"


def judge_stopped(script: Any, models: Mapping[int, CountingModel]) -> None:
    """No sample was counted more often than once an epoch, and all workers counted alike."""
    for worker, model in models.items():
        assert not model.wrong, f"w{worker}: {model.wrong}"
        assert model.count.max() - model.count.min() <= 1, (
            f"w{worker} counted {np.unique(model.count)}"
        )
        if isinstance(script, Counting):
            first = next(iter(models.values()))
            assert np.array_equal(model.count, first.count), f"w{worker} differs"


def judge_noise(worker: int, noise: NoiseScale, first: NoiseScale) -> None:
    """The gradient noise scale is the same on all workers, and true where workers are compared."""
    assert noise == first, f"w{worker} knows of another noise: {noise}"
    if noise.steps and not noise.is_biased:
        for noise_mean, gradient_mean in (one.means for one in noise.averages):
            is_true = abs(noise_mean - 1.0) < 1e-5 and abs(gradient_mean) < 1e-8
            assert is_true, f"w{worker} has measured {noise}"


def _judge_exchanges(worker: int, result: Counted, first: Counted) -> None:
    """Judge what the workers sent each other between steps: it arrived, the same on all."""
    for step, rows in result.exchanged.items():
        assert first.exchanged.get(step, rows) == rows, f"w{worker} got {rows} at {step}"
        said = {str(row).rpartition("step ")[2].rstrip("'") for row in rows}
        assert said == {f"{step}"}, f"w{worker}: {rows} at {step}"


def _judge_largest(script: Counting, worker: int, result: Counted) -> None:
    """Judge the largest step: it had no more samples than the script allows.

    Each worker of a ring has at least one sample. A batch that was read ahead keeps its size when
    workers join: the k-th worker of a ring has formed its batch in a ring of at least k.
    """
    limit = script.batch_range[1] or script.max_global_batch
    if limit and script.accumulated == 1:
        ahead = sum(-(-limit // ring) for ring in range(1, result.ring + 1))
        most = ahead if script.prefetch_batches else max(limit, result.ring)
        assert result.largest <= most, f"w{worker} has seen a step of {result.largest} samples"
