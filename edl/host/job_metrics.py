"""Serve the metrics of a job at a port of an agent, and where its other metrics are.

``GET /metrics``, ``GET /targets`` (Prometheus' HTTP service discovery) and ``GET /health`` are
open.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

from edl import __version__
from edl.errors import RingError
from edl.events import Event
from edl.http.client import METRICS_PATH, TARGETS_PATH
from edl.http.exposition import MetricsHandler
from edl.http.server import DaemonServer, HttpRequest
from edl.job.snapshot import Snapshot
from edl.metric import BUILD_INFO, ZOOKEEPER_CONNECTED, Sample
from edl.metrics import EventCounts, job_samples, scrape_targets
from edl.status import job_status


class JobMetrics(AbstractContextManager[int]):
    def __init__(
        self,
        address: str,
        port: int | None,
        zookeeper: str,
        connected: Callable[[], bool],
        say: Callable[[str], None],
    ) -> None:
        self._address = address
        self._port = port
        self._zookeeper = zookeeper
        self._connected = connected
        self._say = say
        self._server: DaemonServer | None = None
        self._snapshot: Snapshot | None = None
        self._counts = EventCounts()

    def __enter__(self) -> int:
        if self._port is None:
            return 0
        server = DaemonServer(self._address, self._port, health=dict)
        server.add_route(METRICS_PATH, MetricsHandler(self._samples))
        server.add_route(TARGETS_PATH, self._targets)
        try:
            server.start()
        except RingError as error:
            self._say(f"no metrics of the job are served here: {error}")
            return 0
        self._server = server
        self._say(f"metrics are at http://{self._address}:{server.port}{METRICS_PATH}")
        return server.port

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()

    def on_snapshot(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def on_event(self, event: Event) -> None:
        self._counts.add(event)

    def _samples(self) -> Iterable[Sample]:
        """Return the values of all metrics; until the job's records are known, only of a few."""
        yield BUILD_INFO(1, __version__)
        if self._snapshot is None:
            yield ZOOKEEPER_CONNECTED(int(self._connected()))
        else:
            status = job_status(self._snapshot, self._zookeeper)
            yield from job_samples(status, self._counts, self._connected())

    def _targets(self, _request: HttpRequest) -> tuple[int, bytes]:
        """Answer where the metrics are; 503, so that Prometheus keeps its list, until known."""
        if self._snapshot is None:
            return 503, b"[]"
        return 200, json.dumps(scrape_targets(self._snapshot)).encode()
