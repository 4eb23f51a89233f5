"""Decide whether the loss of a batch is a mean over its samples, as the weights of a step assume.

:func:`why_no_mean` decides about one :class:`LossTerm`. The update of a step is ``sum_i (n_i / N)
g_i``: worker i has the gradient g_i over its n_i samples, and all workers have N
(:mod:`edl.core.step.weighting`). That is the gradient of the mean over all N samples when the loss
of each worker is a sum over its batch that is divided by ``n_i`` times a constant. It is not that
gradient for a sum that is not divided, nor for a mean over the entries that are no padding, or over
the weights of the classes: the divisor of such a mean changes from batch to batch, so an entry of a
batch with few entries counts more than an entry of a batch with many.
"""

from __future__ import annotations

from dataclasses import dataclass

TOLERANCE = 1e-4  # relative difference of divisors that count as equal; they may be float32
# In a packed batch, a dict or a tuple, len(x) is another number.
SAMPLES = "which is {count} here (len(x) only if x is a tensor with a row for each sample)"
SEE = 'see "The loss is a mean over the samples" in docs/get-started/your-script.md'


@dataclass(frozen=True)
class LossTerm:
    """One term of a loss: a sum over the batch, divided by a number."""

    name: str  # of the function that computes the sum, for messages
    samples: int  # of the batch
    # what the sum is divided by, in the function if `is_mean`, else in the script; 1.0: it is not
    divisor: float
    is_mean: bool  # whether the function itself divides the sum
    # the product of the numbers from 0 to 1 that the script multiplies the sum by. No part of
    # `divisor`: it may be 1 / n, or a coefficient that changes during a training, so it is not
    # compared between batches.
    factor: float = 1.0

    @property
    def per_sample(self) -> float:
        """`divisor`, divided by the number of samples of the batch."""
        return self.divisor / self.samples


def why_no_mean(term: LossTerm, before: LossTerm | None) -> str | None:
    """Return why `term` is not a mean over the samples of its batch, as an error message."""
    # A factor below 1 counts as dividing.
    if not term.is_mean and term.divisor / term.factor < term.samples:
        return (
            f"the loss ({term.name}) is a sum over the {term.samples} samples of a batch, and edl "
            "weights the gradient of each worker with its samples, as for a mean: divide the sum "
            f"by the number of samples, {SAMPLES.format(count=term.samples)}; {SEE}"
        )
    is_divided = term.is_mean or term.divisor >= term.samples
    if before is None or not is_divided:
        return None
    if abs(term.per_sample - before.per_sample) <= TOLERANCE * abs(before.per_sample):
        return None
    return (
        f"the loss ({term.name}) is a mean over {before.divisor:g} entries (or weights) in a batch "
        f"of {before.samples} samples and over {term.divisor:g} in one of {term.samples}, and edl "
        "weights the gradient of each worker with its samples: entries of a batch with few of them "
        "count more, and the update depends on who trains which samples. Divide the sum of the "
        f"entries by the number of samples, {SAMPLES.format(count=term.samples)}, times a "
        f"constant, such as {before.per_sample:.3g}; {SEE}"
    )
