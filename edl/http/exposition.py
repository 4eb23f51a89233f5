"""Write metrics in the formats that Prometheus reads, for the route ``GET /metrics``.

The library ``prometheus_client`` is imported when metrics are first asked for, in a thread of its
own: it takes 30 ms of processor time, for which the event loop must go on to answer others. So a
process that nobody scrapes pays nothing.
"""

from __future__ import annotations

import asyncio
import importlib
import threading
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from edl.http.server import HttpRequest, Response
from edl.metric import Histogram, Metric, MetricType, Sample

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

_LIBRARY = ("prometheus_client.core", "prometheus_client.exposition")
_loading = threading.Lock()


class MetricsHandler:
    """The handler of `GET /metrics`; give it to `add_route`."""

    # `samples` runs on the event loop's thread, so it must not block.

    def __init__(self, samples: Callable[[], Iterable[Sample]]) -> None:
        self._samples = samples

    def __call__(self, request: HttpRequest) -> Awaitable[Response]:
        return self._answer(request.accept)

    async def _answer(self, accept: str) -> Response:
        await asyncio.to_thread(_load)
        body, content_type = exposition([*self._samples()], accept)
        return Response(200, body, content_type)


def _load() -> None:
    with _loading:
        for name in _LIBRARY:
            importlib.import_module(name)


def exposition(samples: Iterable[Sample], accept: str = "") -> tuple[bytes, str]:
    from prometheus_client import CollectorRegistry, ProcessCollector
    from prometheus_client.exposition import choose_encoder

    by_metric: dict[Metric, list[Sample]] = {}
    for sample in samples:
        by_metric.setdefault(sample.metric, []).append(sample)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(by_metric))
    ProcessCollector(registry=registry)
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _Collector:
    def __init__(self, samples: dict[Metric, list[Sample]]) -> None:
        self._samples = samples

    def collect(self) -> Iterable[Family]:
        for metric, samples in self._samples.items():
            yield _family(metric, samples)


def _family(metric: Metric, samples: list[Sample]) -> Family:
    from prometheus_client import core

    name, labels, help = metric.name, metric.labels, metric.help
    if metric.type is MetricType.HISTOGRAM:
        buckets = core.HistogramMetricFamily(name, help, labels=labels)
        for one in samples:
            assert isinstance(one.value, Histogram)
            buckets.add_metric(one.labels, *_cumulated(one.value))
        return buckets
    numbers = [(one.labels, one.value) for one in samples if not isinstance(one.value, Histogram)]
    if metric.type is MetricType.INFO:
        told = core.InfoMetricFamily(name.removesuffix("_info"), help)
        for values, _ in numbers:
            told.add_metric((), dict(zip(labels, values, strict=True)))
        return told
    counts = metric.type is MetricType.COUNTER
    kind = core.CounterMetricFamily if counts else core.GaugeMetricFamily
    family = kind(name, help, labels=labels)
    for values, value in numbers:
        family.add_metric(values, value)
    return family


def _cumulated(values: Histogram) -> tuple[list[tuple[str, float]], float]:
    """Return the buckets of a histogram as Prometheus has them, and the sum of its values."""
    total, buckets = 0, []
    for bound, count in zip((*map(str, values.bounds), "+Inf"), values.counts, strict=True):
        total += count
        buckets.append((bound, float(total)))
    return buckets, values.sum
