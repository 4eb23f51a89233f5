"""``GET /metrics`` at the HTTP port of a process."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterable

import pytest

from edl.http.exposition import MetricsHandler
from edl.http.server import DaemonServer
from edl.metric import Sample, counter

pytestmark = pytest.mark.integration
HERE = "127.0.0.1"
STEPS = counter("edl_steps_total", "Steps that the job has completed")


def get(port: int, **headers: str) -> tuple[str, str]:
    request = urllib.request.Request(f"http://{HERE}:{port}/metrics", headers=headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def test_the_client_chooses_the_format() -> None:
    with DaemonServer(HERE) as server:
        server.add_route("/metrics", MetricsHandler(lambda: [STEPS(7)]))
        kind, text = get(server.port, Accept="application/openmetrics-text;version=1.0.0")
        assert kind.startswith("application/openmetrics-text")
        assert "edl_steps_total 7.0" in text
        kind, text = get(server.port, Accept="text/plain")
        assert kind.startswith("text/plain")
        assert "edl_steps_total 7.0" in text


def test_an_error_is_an_answer() -> None:
    def fail() -> Iterable[Sample]:
        raise ValueError("no metrics")

    with DaemonServer(HERE) as server:
        server.add_route("/metrics", MetricsHandler(fail))
        with pytest.raises(urllib.error.HTTPError, match="500"):
            get(server.port)
