"""Choose the global batch with the largest goodput, where a job may choose it (Pollux, OSDI 2021).

The entry point is :func:`choose_batch`. The global batch is the number of samples of one batch of
all workers together.

With a larger batch the same samples make fewer updates, and each update is worth more; how much
more follows from the gradient noise scale. A larger batch takes less time for each sample, because
a step has costs, such as the reduction, that do not grow with the batch. Goodput is the product of
both, so a job takes the batch with the largest goodput: a small one while the gradients have little
noise, as at the beginning; a larger one later, and a larger one with more workers.

No batch is tried that gives a worker more than twice the largest batch that was measured, because
the model of the step time is not reliable there. If only one batch was measured, twice that batch
is tried once: with one batch the model cannot tell the part of a step's time that grows with the
batch from the part that does not. It is not tried where the allowed range ends so near that both
would count as one measured batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from edl.core.policy.observation import Observation, alike
from edl.step.batching import Batching

CANDIDATES = 50  # in equal ratios, as in adaptdl
LEAST_GAIN = 0.05  # of goodput: for less nothing is changed
BEYOND = 2  # times the largest batch of a worker that was measured
ENOUGH_STEPS = 10  # with a batch, to know what it trains


class BatchDecision(NamedTuple):
    """The decision about a job's global batch, with the reason."""

    batch: int  # samples of all workers together; 0: the present number stays
    reason: str


def best_global_batch(now: Observation, size: int) -> tuple[int, float]:
    """Return the allowed global batch with the largest goodput, and that goodput."""
    assert now.batching is not None
    batches = [now.batching.of_all(size)]
    if now.batching.is_chosen:
        batches = _candidates(now, now.batching, size)
    return max(zip(batches, _goodputs(now, size, batches), strict=True), key=lambda one: one[1])


def choose_batch(now: Observation) -> BatchDecision:
    """Return the global batch to use next with the present number of workers, and why."""
    assert now.batching is not None
    mine = now.batching.of_all(now.np)
    stays = f"the global batch stays {mine}"
    if now.awaits:
        return BatchDecision(0, f"{stays}: the workers change")
    seen = now.seen.get(now.np)
    each = mine * now.step_batches / now.np
    if (
        now.model is None
        or seen is None
        or seen.steps < ENOUGH_STEPS
        or not alike(seen.batch, each)
    ):
        return BatchDecision(0, f"{stays}: its steps are yet to be measured")
    scale = now.noise.samples
    if scale is None:
        return BatchDecision(0, f"{stays}: the gradient noise scale is not known")
    most = now.batching.batch_range[1]
    twice = min(2 * mine, most)
    # With one batch the model cannot tell the part of a step's time that grows with the batch.
    if len(now.batches_seen) == 1 and not alike(twice, mine):
        return BatchDecision(
            twice, f"the global batch becomes {twice}: one size of it tells nothing"
        )
    best, then = best_global_batch(now, now.np)
    gain = then / _goodputs(now, now.np, [mine])[0] - 1.0
    about = f"{best} would make {gain:+.1%} of its progress, by a noise scale of {scale:,.0f}"
    if gain < LEAST_GAIN:
        return BatchDecision(0, f"{stays}: {about}, less than {LEAST_GAIN:.0%}")
    return BatchDecision(best, f"the global batch becomes {best}: {about}")


def _goodputs(now: Observation, size: int, batches: Sequence[int]) -> list[float]:
    # In samples a second, each worth as much as one in the job's first global batch.
    assert now.model is not None
    steps = [batch * now.step_batches for batch in batches]  # samples of each
    rates = now.model.with_batches(size, [samples / size for samples in steps])
    efficiencies = map(now.noise.efficiency, steps)
    return [rate * each for rate, each in zip(rates, efficiencies, strict=True)]


def _candidates(now: Observation, batching: Batching, size: int) -> list[int]:
    """Return the global batches, in samples and ascending, that are compared for `size` workers."""
    least, most = (max(size, one) for one in batching.batch_range)
    known = max([batching.of_all(now.np) * now.step_batches / now.np, *now.batches_seen])
    most = max(least, min(most, round(BEYOND * known * size / now.step_batches)))
    ratio = (most / least) ** (1 / (CANDIDATES - 1))
    several = (round(least * ratio**place) for place in range(CANDIDATES - 1))
    return sorted({*several, most, batching.of_all(size)})
