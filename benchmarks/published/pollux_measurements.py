"""Read the published measurements and workloads of Pollux, which are files of the package.

:func:`measured_applications` returns the measurements, :func:`pollux_rows` the rows of any file.
``data/pollux/NOTICE`` says where they come from and what the columns are.
"""

from __future__ import annotations

import csv
import gzip
import io
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from importlib.resources import files

from benchmarks.published.application import Application, Scaled, Timed, Validation

# The number of epochs after which each application is trained, and the largest local batch that
# fits, where it is not the largest measured. Source: applications.py of the artifact.
EPOCHS = {"bert": 2, "cifar10": 100, "deepspeech2": 80, "imagenet": 90, "ncf": 10, "yolov3": 50}
MAX_LOCAL_BATCH = {"yolov3": 8}

Row = dict[str, str]


def pollux_rows(table: str) -> Iterator[Row]:
    """Yield the rows of a published table: the text of each cell by its column."""
    packed = (files("benchmarks.published") / "data" / "pollux" / f"{table}.csv.gz").read_bytes()
    return csv.DictReader(io.StringIO(gzip.decompress(packed).decode()))


@cache
def measured_applications() -> dict[str, Application]:
    """Return the six applications that Pollux' authors measured, by name, like "bert"."""
    timed: dict[str, list[Timed]] = defaultdict(list)
    for row in pollux_rows("placements"):
        slots = tuple(int(digit) for digit in row["placement"])
        timed[row["application"]].append(Timed(slots, int(row["local_bsz"]), *_times(row)))
    scaled: dict[str, list[Scaled]] = defaultdict(list)
    for row in pollux_rows("scalability"):
        numbers = int(row["num_nodes"]), int(row["num_replicas"]), int(row["local_bsz"])
        scaled[row["application"]].append(Scaled(*numbers, *_times(row)))
    trained = _validations()
    return {
        name: Application(
            name, epochs, trained[name], timed[name], scaled[name], MAX_LOCAL_BATCH.get(name)
        )
        for name, epochs in EPOCHS.items()
    }


def _times(row: Row) -> tuple[float, float]:
    return float(row["step_time"]), float(row["sync_time"])


def _validations() -> dict[str, list[Validation]]:
    """Return the measured trainings of each application, by its name."""
    epochs: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for row in pollux_rows("validation"):
        epochs[row["application"], int(row["batch_size"])].append(row)
    found: dict[str, list[Validation]] = defaultdict(list)
    for (name, batch), of_it in epochs.items():
        columns = ("progress", "iteration", "grad_sqr", "grad_var")
        values = (tuple(float(row[column]) for row in of_it) for column in columns)
        found[name].append(Validation(batch, *values))
    return found
