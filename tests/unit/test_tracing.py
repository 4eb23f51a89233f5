"""Spans of switches and checkpoints, for OpenTelemetry."""

from __future__ import annotations

import subprocess
import sys

import pytest

from edl import config
from edl.binding import process
from edl.step.record import SwitchTimes, TimedSpan, checkpoint_spans, switch_spans

END_S = 1000.0


def shown(spans: tuple[TimedSpan, ...]) -> list[tuple[str, str, float, float]]:
    """Return the spans with their times in milliseconds before the end."""
    end_ns = round(END_S * 1e9)
    return [
        (s.name.removeprefix("edl."), s.parent.removeprefix("edl."),
         (s.start_ns - end_ns) / 1e6, (s.end_ns - end_ns) / 1e6)
        for s in spans
    ]  # fmt: skip


def test_a_planned_switch() -> None:
    times = SwitchTimes(
        wait_us=5000, shutdown_us=2000, init_us=20_000, broadcast_us=3000, stall_us=30_000
    )
    assert shown(switch_spans(times, END_S)) == [
        ("switch", "", -30, 0),
        ("switch.wait", "switch", -30, -25),
        ("switch.shutdown", "switch", -25, -23),
        ("switch.init", "switch", -23, -3),
        ("switch.broadcast", "switch", -3, 0),
    ]


def test_a_repair() -> None:
    times = SwitchTimes(
        detect_us=10_000, election_us=4000, survivor_report_us=2000, wait_us=8000, init_us=20_000,
        broadcast_us=2000, stall_us=30_000,
    )  # fmt: skip
    assert shown(switch_spans(times, END_S)) == [
        ("switch", "", -40, 0),
        ("switch.detect", "switch", -40, -30),
        ("switch.wait", "switch", -30, -22),
        ("switch.election", "switch.wait", -30, -26),
        ("switch.survivor_report", "switch.wait", -26, -24),
        ("switch.init", "switch", -22, -2),
        ("switch.broadcast", "switch", -2, 0),
    ]


def test_a_checkpoint() -> None:
    assert shown(checkpoint_spans(0.002, 0.05, END_S)) == [
        ("checkpoint", "", -52, 0),
        ("checkpoint.capture", "checkpoint", -52, -50),
        ("checkpoint.write", "checkpoint", -50, 0),
    ]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, ()),
        ({"TRACES_EXPORTER": "none", "EXPORTER_OTLP_ENDPOINT": "http://here:4318"}, ()),
        ({"TRACES_EXPORTER": "console", "SDK_DISABLED": "true"}, ()),
        (
            {"TRACES_EXPORTER": "console, otlp"},
            (("console",), ("otlp_proto_http", "otlp_proto_grpc")),
        ),
        ({"EXPORTER_OTLP_ENDPOINT": "http://here:4318"}, (("otlp_proto_http", "otlp_proto_grpc"),)),
        (
            {"EXPORTER_OTLP_TRACES_ENDPOINT": "here:4317", "EXPORTER_OTLP_PROTOCOL": "grpc"},
            (("otlp_proto_grpc",),),
        ),
        (
            {"TRACES_EXPORTER": "otlp", "EXPORTER_OTLP_PROTOCOL": "http/protobuf"},
            (("otlp_proto_http",),),
        ),
    ],
)
def test_the_variables_of_opentelemetry_decide(
    variables: dict[str, str], expected: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"OTEL_{name}", value)
    assert config.trace_exporters() == expected


def test_nothing_is_imported_without_them() -> None:
    code = (
        "import sys; import edl.binding.process as p; import edl.binding.process as t\n"
        "t.trace_worker(None, None, '')\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == ["[]"], done.stderr


def test_a_missing_package_is_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The training goes on without spans."""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace.export", None)
    process.trace_worker(None, "digits", "")  # type: ignore[arg-type]  # it is not looked at
    (warning,) = caplog.messages
    assert warning.startswith("no spans are sent to OpenTelemetry: ")
