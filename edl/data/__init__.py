"""Sources of training data for PyTorch and TensorFlow, from files or from arrays in memory.

::

    import edl.data

    train = edl.data.tfrecord("train-*.tfrecord", parse=example)
    train = edl.data.text_lines("corpus/**/*.txt")
    train = edl.data.npy("x.npy", "y.npy")
    train = edl.data.parquet("train-*.parquet", columns=["x", "y"])
    train = edl.data.arrays(x=x, y=y)

Each of these is a map-style data set, the same on every host, for edl's data loader; see
docs/guides/data.md. Nothing is ever unpickled. Samples without numbers are a stream, read in
order::

    train = edl.data.stream(shards, open)  # open(shard, offset) returns an iterable of samples
"""

from __future__ import annotations

from typing import Any

from edl.data.columns import arrays
from edl.data.dataset import Dataset
from edl.data.files import Skipped
from edl.data.npy_file import npy
from edl.data.parquet_file import parquet
from edl.data.stream import Stream, stream
from edl.data.text_file import text_lines
from edl.data.tfrecord_file import tfrecord

__all__ = [
    "Dataset",
    "Skipped",
    "Stream",
    "arrays",
    "npy",
    "parquet",
    "stream",
    "text_lines",
    "tfrecord",
]


def __getattr__(name: str) -> Any:
    if name == "npz":
        raise AttributeError(
            'edl.data.npz is gone; load the arrays yourself: edl.data.arrays(**numpy.load("a.npz"))'
            ", or save each as a .npy file for edl.data.npy, which reads by row"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
