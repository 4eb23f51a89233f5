"""Answer what others ask a worker at its HTTP port: its health, its model and its metrics.

:class:`WorkerEndpoints` does it. All of them are open: they need no signature.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from typing import Any

from edl import __version__
from edl.config import Config
from edl.coordination.job_store import JobStore
from edl.core.job.fits import as_json
from edl.core.metric import Sample
from edl.core.worker_metrics import WorkerSnapshot, worker_samples
from edl.daemon.pending_writes import PendingWrites
from edl.http.client import METRICS_PATH, MODEL_PATH
from edl.http.exposition import MetricsHandler
from edl.http.server import DaemonServer, HttpRequest
from edl.ring.ring import Ring
from edl.worker.activity import ThreadWatch
from edl.worker.shared_state import SharedState


class WorkerEndpoints:
    """The open routes of a worker's port; the server's thread calls them, and they never wait."""

    def __init__(
        self,
        config: Config,
        shared: SharedState,
        store: JobStore,
        pending_writes: PendingWrites,
        watch: ThreadWatch,
        ring: Ring,
    ) -> None:
        self.newest_generation = 0  # the daemon sets it
        self._config = config
        self._shared = shared
        self._store = store
        self._pending_writes = pending_writes
        self._watch = watch
        self._ring = ring

    def add_to(self, server: DaemonServer) -> None:
        server.add_route(MODEL_PATH, self._model, "application/json")
        server.add_route(METRICS_PATH, MetricsHandler(self._metrics))

    def health(self) -> Mapping[str, Any]:
        """Return the JSON object for `GET /health`."""
        member = self._pending_writes.member
        return {
            "worker": member.name if member else None,
            "run": self._store.nodes.run if member else None,
            "stage": member.stage if member else None,
            "newest_generation": self.newest_generation,
            **self._shared.progress.for_others(time.monotonic()),
            "ring": {
                "generation": self._ring.membership[0],
                "exchanges": self._ring.exchanges,
                "updates": self._ring.updates,
            },
            "activity": self._watch.look().to_json(),
        }

    def _model(self, _request: HttpRequest) -> tuple[int, bytes]:
        """Answer with the shapes of the model's tensors and the script's fits."""
        fits = self._shared.fits
        said = {"signature": self._shared.signature(), "begun": fits.begun}
        said |= {"epoch": self._shared.epoch, "arithmetic": self._shared.arithmetic().to_json()}
        return 200, json.dumps({**said, "done": as_json(fits.done)}).encode()

    def _metrics(self) -> Iterable[Sample]:
        leader, worker = self._shared.leader, self._shared.worker
        return worker_samples(
            WorkerSnapshot(
                version=__version__,
                job=self._store.name,
                host=self._config.host,
                worker=f"w{worker}" if worker >= 0 else "",
                leads=leader is not None and leader.worker == worker,
                connected=self._store.session.connected,
                progress=self._shared.progress,
                totals=self._shared.step_totals,
                now_s=time.monotonic(),
            )
        )
