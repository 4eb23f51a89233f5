"""Define what a metric is: its declaration, and the values that it has at one moment.

A :class:`Metric` is declared once, in :mod:`edl.metrics`; `make docs` generates the tables of
docs/reference/metrics.md from there. Names follow the rules of Prometheus: base units (seconds,
bytes), ``_total`` behind counters, ``_info`` behind a metric whose value is always 1.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class MetricType(StrEnum):
    """The type of a metric, as Prometheus knows it; an info is always 1 and carries labels."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    INFO = "info"


class Histogram:
    """A count of observed values by size; other threads than its own may miss the newest one."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds  # the upper limits of all buckets but the last, which has none
        # A value equal to a limit is below it.
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


@dataclass(frozen=True)
class Sample:
    """The value of one metric for one combination of its labels, at one moment."""

    metric: Metric
    value: float | Histogram
    labels: tuple[str, ...] = ()  # the values, in the order of the metric's labels


@dataclass(frozen=True)
class Metric:
    """The declaration of a metric; a call of it returns a sample."""

    name: str  # with the suffix of its type
    type: MetricType
    help: str  # a sentence without a full stop
    labels: tuple[str, ...] = ()  # each has a bounded number of values

    def __call__(self, value: float | Histogram, *labels: str) -> Sample:
        assert len(labels) == len(self.labels)
        return Sample(self, value, labels)


def counter(name: str, help: str, *labels: str) -> Metric:
    return Metric(name, MetricType.COUNTER, help, labels)


def gauge(name: str, help: str, *labels: str) -> Metric:
    return Metric(name, MetricType.GAUGE, help, labels)


def histogram(name: str, help: str, *labels: str) -> Metric:
    return Metric(name, MetricType.HISTOGRAM, help, labels)


def info(name: str, help: str, *labels: str) -> Metric:
    return Metric(name, MetricType.INFO, help, labels)


def one_of(metric: Metric, values: Sequence[str], present: str) -> list[Sample]:
    """Return a sample for each of `values`: 1 for the one that is `present`, else 0."""
    return [metric(int(value == present), value) for value in values]


BUILD_INFO = info("edl_build_info", "The version of edl in this process; always 1", "version")
ZOOKEEPER_CONNECTED = gauge(
    "edl_zookeeper_connected", "1 while this process is connected to ZooKeeper, else 0"
)
