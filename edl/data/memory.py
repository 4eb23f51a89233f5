"""Make a data set of arrays in memory (:func:`arrays`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import google_crc32c
import numpy as np

from edl.data.columns import ArrayDataset, InMemory, arrange, check_array, check_lengths, native
from edl.data.dataset import Dataset, Fragment
from edl.errors import DataError


def arrays(
    *positional: Any, parse: Callable[[Any], Any] | None = None, **named: Any
) -> Dataset[Any]:
    """Return a data set of arrays in memory, whose record i is row i of each array.

    The records of ``arrays(x=x, y=y)`` are dicts, those of ``arrays(x, y)`` tuples, and those of
    ``arrays(x)`` rows. NumPy arrays in the machine's byte order are not copied, so later changes of
    them show. Only the types and shapes of the arrays enter the data set's fingerprint, not their
    contents.

    Args:
        *positional: the arrays (or what ``numpy.asarray`` takes), if they have no names.
        parse: a function of a record that returns what the script sees; None: the record itself.
        **named: the arrays by name.

    Raises:
        DataError: if an argument is no array, holds Python objects or has no dimension, or if the
            lengths differ.
        UsageError: if there is no array, or some have names and some have none.
    """
    given, names = arrange(positional, named, "edl.data.arrays")
    whats = [f"array {name!r}" for name in names or range(len(given))]
    try:
        found = [np.asarray(each) for each in given]
    except (ValueError, TypeError, RuntimeError) as error:  # a tensor says by it what to call
        raise DataError(f"edl.data.arrays was given something that is no array: {error}") from error
    for what, array in zip(whats, found, strict=True):
        check_array(what, array.dtype, array.shape)
    check_lengths({what: len(array) for what, array in zip(whats, found, strict=True)})
    about = repr([(array.dtype.str, array.shape) for array in found])
    part = Fragment(
        name=",".join(names or ()),
        size=sum(array.nbytes for array in found),
        count=len(found[0]),
        digest=google_crc32c.value(about.encode()),
    )
    columns = [InMemory(native(array)) for array in found]
    return ArrayDataset("array", [part], [columns], names, parse)
