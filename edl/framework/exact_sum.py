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
    """Return the constant by which sums of so many numbers, none above `largest`, are exact."""
    if not math.isfinite(largest):
        return math.inf  # by which each sum becomes nan
    if largest == 0.0:
        return 0.0
    exponent = math.frexp(largest)[1] + (summands - 1).bit_length()
    # The sum is below 2**exponent. Next to the constant, float64 has steps of one grain.
    grain = exponent - DIGITS
    return math.ldexp(1.5, grain + 52) if grain + 52 < 1024 else math.inf


def add_rounded(
    total: Any, summands: Sequence[tuple[Any, float]], constant: float, scratch: Any
) -> None:
    """Set `total` to the sum of `summands`, each rounded by `constant`; see the module."""
    # All have one dimension, of NumPy or of PyTorch; `total` and `scratch` are float64.
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
    """Set `result` to `total` divided by `divisor`; `total` is changed, too."""
    for begin in range(0, len(total), chunk):
        part = total[begin : begin + chunk]
        part /= divisor
        result[begin : begin + chunk] = part.round() if whole else part
