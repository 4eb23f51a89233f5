"""Send spans of switches and checkpoints to OpenTelemetry, if the environment asks for traces.

:func:`trace_worker` begins it. Nothing of OpenTelemetry is imported unless a variable of its own
(``OTEL_TRACES_EXPORTER``, ``OTEL_EXPORTER_OTLP_ENDPOINT``) says where spans go. The spans of all
workers in one switch are in one trace, whose id follows from the run of the job and the generation.
Spans never disturb the training: what cannot be sent is left out, with one warning in the log.
"""

from __future__ import annotations

import hashlib
import importlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import entry_points
from typing import Any

from edl import __version__, config
from edl.events import CheckpointDetails, Event
from edl.step.timing import SWITCH, TimedSpan, checkpoint_spans, switch_spans
from edl.worker.worker import Worker

logger = logging.getLogger(__name__)

_GROUP = "opentelemetry_traces_exporter"  # of entry points: that of OpenTelemetry's exporters


def trace_worker(worker: Worker, job: str | None, run: str) -> None:
    """Send a span of each switch of `worker`, and of each checkpoint that it writes."""
    if not (exporters := config.trace_exporters()):
        return
    try:  # now, and not in the first switch, in which all would wait for it
        importlib.import_module("opentelemetry.sdk.trace.export")
        kinds = [_exporter(names) for names in exporters]
    except ImportError as error:
        logger.warning("no spans are sent to OpenTelemetry: %s", error)
        return
    tracing = Tracing(worker, job or "", run, kinds)
    worker.on_resize(lambda _old, _new: tracing.switched())
    worker.on_event(tracing.logged)


class Tracing:
    """The spans of one worker, for its training thread and that of a checkpoint."""

    def __init__(
        self, worker: Worker, job: str, run: str, exporters: Sequence[Callable[[], Any]]
    ) -> None:
        self._worker, self._exporters = worker, exporters
        self._run = run
        self._attributes = {"edl.job": job, "edl.run": run}
        self._lock = threading.Lock()
        self._tracer: Any = None
        self._has_failed = False

    def switched(self) -> None:
        """Send the spans of the switch or repair that this worker has just completed."""
        worker = self._worker
        numbers = {"edl.generation": worker.generation, "edl.world_size": worker.size}
        key = f"{self._run}/{worker.generation}"
        self._send(switch_spans(worker.switch_times, time.time()), numbers, key)

    def logged(self, event: Event) -> None:
        """Send the spans of a checkpoint that this worker has written; ignore other events."""
        details = event.details
        if isinstance(details, CheckpointDetails):
            spans = checkpoint_spans(details.capture_s, details.write_s, event.time)
            facts = {"edl.checkpoint.path": details.path, "edl.checkpoint.bytes": details.bytes}
            self._send(spans, {"edl.generation": event.generation, **facts}, "")

    def _send(self, spans: Iterable[TimedSpan], facts: dict[str, Any], trace: str) -> None:
        """Send spans with attributes; those of the same `trace` (not empty) are in one trace."""
        common = {**self._attributes, "edl.worker": f"w{self._worker.id}", **facts}
        common["edl.step"] = self._worker.step
        with self._lock:
            if self._has_failed:
                return
            try:
                self._tracer = self._tracer or self._new_tracer()
                self._put(spans, common, trace)
            except Exception:  # of whatever exporter a user has installed
                self._has_failed = True
                logger.exception("no more spans are sent to OpenTelemetry")

    def _new_tracer(self) -> Any:
        """Return a tracer: that of the script's own provider, or else one for the environment."""
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        provider = trace.get_tracer_provider()
        if not isinstance(provider, TracerProvider):
            provider = TracerProvider()  # at the end of the process it sends what is left
            for exporter in self._exporters:
                provider.add_span_processor(BatchSpanProcessor(exporter()))
        return provider.get_tracer("edl", __version__)

    def _put(self, spans: Iterable[TimedSpan], attributes: dict[str, Any], trace_key: str) -> None:
        from opentelemetry import trace

        contexts = {"": _parent_of(trace_key)}
        for one in spans:
            span = self._tracer.start_span(
                one.name,
                context=contexts[one.parent],
                start_time=one.start_ns,
                attributes=attributes if not one.parent else None,
            )
            span.end(one.end_ns)
            contexts[one.name] = trace.set_span_in_context(span)


def _parent_of(key: str) -> Any:
    """Return the context of the trace that all workers derive from `key`; empty: a new trace."""
    from opentelemetry import trace
    from opentelemetry.context import Context

    if not key:
        return Context()
    digest = hashlib.sha256(f"{SWITCH}/{key}".encode()).digest()
    context = trace.SpanContext(
        trace_id=int.from_bytes(digest[:16]),
        span_id=int.from_bytes(digest[16:24]),
        is_remote=True,
        trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED),
    )
    return trace.set_span_in_context(trace.NonRecordingSpan(context), Context())


def _exporter(names: tuple[str, ...]) -> Any:
    """Return the class of the first of the exporters `names` that a package has registered."""
    for name in names:
        for found in entry_points(group=_GROUP, name=name):
            return found.load()
    raise ImportError(
        f"the exporter {' or '.join(names)} is not installed; install opentelemetry-exporter-otlp, "
        "or set OTEL_TRACES_EXPORTER=none"
    )
