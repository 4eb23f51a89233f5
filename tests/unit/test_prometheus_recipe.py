"""The files for Prometheus and Grafana, as `promtool` and the code judge them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from edl.event_text import CHANGE_KINDS
from edl.events import EventKind
from edl.metric import MetricType
from edl.metrics import JOB_METRICS, PARTS, WORKER_METRICS

RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "prometheus"
PROMTOOL = shutil.which("promtool") or "/usr/bin/promtool"
RULES = [
    rule
    for group in yaml.safe_load((RECIPE / "rules.yml").read_text("utf-8"))["groups"]
    for rule in group["rules"]
]
DASHBOARD: dict[str, Any] = json.loads((RECIPE / "dashboard.json").read_text("utf-8"))
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
NAME = re.compile(r"\b(?:edl|process)_\w+")
SERIES = {"process_resident_memory_bytes"} | {
    f"{metric.name}{suffix}"
    for metric in (*WORKER_METRICS, *JOB_METRICS)
    for suffix in (("_bucket", "_sum", "_count") if metric.type is MetricType.HISTOGRAM else ("",))
}
LABELS = {"edl_job"}


def expressions() -> list[str]:
    found = [target["expr"] for panel in PANELS for target in panel["targets"]]
    found += [one["expr"] for one in DASHBOARD["annotations"]["list"]]
    return found + [rule["expr"] for rule in RULES]


def promtool(*words: str | Path) -> str:
    done = subprocess.run(
        [PROMTOOL, *words], capture_output=True, text=True, timeout=120, cwd=RECIPE
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_rules_do_what_they_say() -> None:
    promtool("test", "rules", "rules_test.yml")


def test_the_configuration_is_one() -> None:
    promtool("check", "config", "prometheus.yml")


def test_every_query_of_the_dashboard_is_one(tmp_path: Path) -> None:
    rules = [
        {"record": f"edl:query{number}", "expr": one.replace("$job", ".+")}
        for number, one in enumerate(expressions())
    ]
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}), "utf-8")
    promtool("check", "rules", file)


def test_every_series_that_is_asked_for_exists() -> None:
    named = {name for one in expressions() for name in NAME.findall(one)}
    assert named - LABELS <= SERIES


def test_every_kind_and_part_that_is_asked_for_exists() -> None:
    text = " ".join(expressions())
    parts = set(re.findall(r'part="(\w+)"', text))
    assert parts <= {*PARTS, "data", "compute", "reduce"}
    assert set(re.findall(r'(?<=changes_total)\{kind="(\w+)"', text)) <= set(CHANGE_KINDS)
    kinds = set(re.findall(r'(?<=events_total)\{kind="(\w+)"', text))
    assert {"worker_failed", "loss_spike"} <= kinds <= set(EventKind)


@pytest.mark.parametrize("panel", PANELS, ids=lambda one: str(one["title"]))
def test_every_panel_says_what_is_good_and_what_to_do(panel: dict[str, Any]) -> None:
    assert "Good: " in panel["description"]
    assert panel["description"].endswith(".")


def test_every_alert_says_what_to_do() -> None:
    alerts = [rule for rule in RULES if "alert" in rule]
    assert len(alerts) >= 8
    for alert in alerts:
        assert alert["labels"]["severity"] in ("critical", "warning")
        assert alert["annotations"]["summary"].endswith((".", "}}."))
        assert len(alert["annotations"]["description"].split()) >= 8, alert["alert"]
