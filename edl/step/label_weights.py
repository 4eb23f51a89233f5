"""Decide how batches are weighted whose losses are means over labels, and not over samples.

A language model's loss is the mean over the labels that are not masked (tokens). Hugging Face's
``Trainer`` divides each batch's sum by the labels of the whole step, over all accumulated batches
and all processes, so that each label counts alike. edl averages gradients over samples. This module
has the factors that turn one into the other.

With i over the workers and b over the accumulated batches of a step, let n_ib be a batch's samples,
t_ib its labels, m_ib the mean loss over its labels, and k the number of accumulated batches. edl
turns losses L_ib into the gradient of ``k * sum(n_ib * L_ib) / N``, where N is the sum of n_ib. The
gradient that is wanted is that of ``sum(t_ib * m_ib) / T``, where T is the sum of t_ib. So

- each batch's loss is multiplied by ``t_ib / (n_ib * k)`` (:func:`batch_factor`), which needs no
  other worker;
- the averaged gradient is multiplied by ``N / T`` (:func:`step_factor`), where the sums are over
  the workers whose gradients were averaged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple


class Counts(NamedTuple):
    """The numbers of samples and of labels that one worker trains in a step."""

    worker: int
    samples: int  # over all accumulated batches, without padding
    labels: int  # of these samples, that enter the loss


def batch_factor(samples: int, labels: int, batches: int) -> float:
    """Return the factor for the loss of one batch, which is a mean over its labels."""
    return labels / (samples * batches) if samples else 1.0 / batches


def step_factor(counts: Iterable[Counts], averaged: Collection[int]) -> float:
    counted = [one for one in counts if one.worker in averaged]
    samples = sum(one.samples for one in counted)
    labels = sum(one.labels for one in counted)
    return samples / labels if labels else 1.0  # all are masked: the gradient is 0 anyway
