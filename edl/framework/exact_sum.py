"""Add tensors up so that the sum has the same bits in any order, and on any number of workers.

A sum of floating-point numbers depends on its order, because each addition is rounded. Here no
addition is: each summand is first rounded to a multiple of one *grain*, a power of two so coarse
that float64 represents all sums of such multiples exactly. So partial sums can be added up in any
order, by any allreduce. The grain follows from the largest summand of a tensor, of which it is some
2**-50: float32 numbers above 2**-25 of the largest keep all their bits, smaller ones lose their
last. (The idea is that of reproducible summation by pre-rounding: J. Demmel and H. D. Nguyen, "Fast
Reproducible Floating-Point Summation", ARITH 2013.)

A number is rounded to a multiple of the grain by adding a large constant and subtracting it again:
the addition rounds it. :func:`rounding_constant` returns the constant, :func:`add_rounded` adds,
and :func:`divide_into` makes the mean of the sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

DIGITS = 51  # bits of float64's 53 that hold a sum; the constant's sign and leading bit need two
CHUNK = 1 << 16  # elements that are rounded at once, so that they stay in the processor's cache


def rounding_constant(largest: float, summands: int) -> float:
    """Return the constant that rounds numbers so that their sums in float64 are exact.

    Args:
        largest: no summand is larger than this, in absolute value; at least 0.
        summands: how many numbers are added up at most, over all workers; at least 1.

    Returns:
        The constant; 0.0 if all summands are 0. It is inf, by which each sum becomes nan, if
        ``largest`` is not finite, or so large that float64 has no such constant (some 2**970).
    """
    if not math.isfinite(largest):
        return math.inf
    if largest == 0.0:
        return 0.0
    exponent = math.frexp(largest)[1] + (summands - 1).bit_length()
    # The sum is below 2**exponent. Next to the constant, float64 has steps of one grain.
    grain = exponent - DIGITS
    return math.ldexp(1.5, grain + 52) if grain + 52 < 1024 else math.inf


def add_rounded(
    total: Any, summands: Sequence[tuple[Any, float]], constant: float, scratch: Any
) -> None:
    """Set ``total`` to the sum of ``summands``, each rounded by ``constant``; see the module.

    All of them are arrays of NumPy, or all are tensors of PyTorch on one device.

    Args:
        total: a float64 array of one dimension; its former values do not matter.
        summands: pairs of an array of one dimension, with as many elements as ``total`` and any
            floating-point type, and the factor for it, which is applied before it is rounded.
        constant: the result of :func:`rounding_constant` for all summands of all workers.
        scratch: a float64 array of one dimension, which is overwritten, and has elements if
            ``total`` has. So many elements are rounded at once (at best :data:`CHUNK`).
    """
    chunk = max(1, len(scratch))
    for begin in range(0, len(total), chunk):
        sums = total[begin : begin + chunk]
        if not summands:
            sums[:] = 0.0
        for number, (summand, weight) in enumerate(summands):
            rounded = scratch[: len(sums)] if number else sums
            rounded[:] = summand[begin : begin + chunk]
            if weight != 1.0:
                rounded *= weight
            rounded += constant
            rounded -= constant
            if number:
                sums += rounded


def divide_into(
    result: Any, total: Any, divisor: float, whole: bool = False, chunk: int = CHUNK
) -> None:
    """Set ``result`` to ``total`` divided by ``divisor``; ``total`` is changed, too.

    Both are arrays of NumPy, or tensors of PyTorch.

    Args:
        result: an array of one dimension, of any type.
        total: a float64 array of one dimension, with as many elements.
        divisor: the number to divide by, not 0.
        whole: whether ``result`` has whole numbers, to which the quotients are rounded.
        chunk: how many elements are divided at once.
    """
    for begin in range(0, len(total), chunk):
        part = total[begin : begin + chunk]
        part /= divisor
        result[begin : begin + chunk] = part.round() if whole else part
