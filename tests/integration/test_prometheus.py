"""A real Prometheus watches a real job in which a worker is killed and one joins."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any, Self

import pytest
import yaml
from paths import ROOT
from scenario import Scenario, scenario

from edl.testing.zookeeper import free_ports

pytestmark = [pytest.mark.integration, pytest.mark.slow]

RULES = ROOT / "recipes" / "prometheus" / "rules.yml"
PROGRAM = shutil.which("prometheus") or "/usr/bin/prometheus"
WAIT_S = 240.0  # for a value, on a busy machine


class Prometheus:
    """A Prometheus that scrapes each second what the list at the address ``targets`` names."""

    def __init__(self, directory: Path, targets: str) -> None:
        directory.mkdir()
        self._directory = directory
        [self._port] = free_ports(1)
        scrape = {
            "job_name": "edl",
            "http_sd_configs": [{"url": targets, "refresh_interval": "1s"}],
        }
        self._config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(RULES)],
            "scrape_configs": [scrape],
        }

    def __enter__(self) -> Self:
        file = self._directory / "prometheus.yml"
        file.write_text(yaml.safe_dump(self._config), "utf-8")
        self._log = (self._directory / "log").open("wb")
        self._process = subprocess.Popen(
            [
                PROGRAM,
                f"--config.file={file}",
                f"--storage.tsdb.path={self._directory / 'data'}",
                f"--web.listen-address=127.0.0.1:{self._port}",
                "--log.level=warn",
            ],
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        self._log.close()

    def get(self, path: str, **query: str) -> Any:
        """Return the ``data`` of an answer of Prometheus' HTTP API."""
        url = f"http://127.0.0.1:{self._port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Return the labels and the value of each series that ``expression`` gives now."""
        found = self.get("query", query=expression)["result"]
        return [(one["metric"], float(one["value"][1])) for one in found]

    def wait_for(self, expression: str, value: float) -> None:
        """Wait until ``expression``, of a single series, has ``value``."""
        deadline, found = time.monotonic() + WAIT_S, None
        while time.monotonic() < deadline:
            try:
                found = self.query(expression)
            except OSError as error:  # it has just started
                found = error
            else:
                if [one for _, one in found] == [value]:
                    return
            time.sleep(0.25)
        log = (self._directory / "log").read_text("utf-8")
        raise AssertionError(f"{expression} is not {value:g} but {found}\n{log}")


class Watched(Scenario):
    """A job whose agent serves metrics at any port."""

    options = ("--metrics-port", "0")
    samples = 960


@pytest.mark.long  # `unit/test_metrics.py` and `test_metrics_page.py` have the parts of it
def test_prometheus_sees_what_status_and_events_say(tmp_path: Path, zk_hosts: str) -> None:
    with scenario(tmp_path, zk_hosts, np=2, max_np=3, kind=Watched) as job:
        job.wait_for_step(2)
        with job.store() as store:
            [host] = store.snapshot().hosts
        targets = f"http://{host.address}:{host.metrics_port}/targets"
        with Prometheus(tmp_path / "prometheus", targets) as prometheus:
            prometheus.wait_for("sum(up)", 3)  # the agent and two workers
            prometheus.wait_for(f'max(edl_job_info{{edl_job="{job.name}"}})', 1)
            prometheus.wait_for("sum(edl_leader)", 1)
            assert {labels["worker"] for labels, _ in prometheus.query("edl_steps_total")} == {
                "w0",
                "w1",
            }

            job.kill(job.plain())
            prometheus.wait_for('max(edl_membership_changes_total{kind="crash"})', 1)
            job.wait_for_size(2)
            prometheus.wait_for("max(edl_ring_workers)", 2)
            job.scale(3)
            job.wait_for_size(3)
            prometheus.wait_for("max(edl_ring_workers)", 3)
            prometheus.wait_for('max(edl_workers{stage="active"})', 3)
            # The one that was killed is in the list no more; its replacement and the newcomer are.
            prometheus.wait_for("sum(up)", 4)
            before = job.status()["step"]
            job.wait_for_step(before + 3)
            prometheus.wait_for(f"max(edl_step) > bool {before}", 1)
            newcomers = 'max(edl_steps_total{worker!~"w0|w1"})'
            prometheus.wait_for(f"{newcomers} > bool 0", 1)
            [(_, trained)] = prometheus.query(newcomers)
            assert trained < job.status()["step"]  # not the steps from before they came

            stalls = [
                max(parts["stall_s"] for parts in workers if parts["role"] == "old")
                for switch in job.events("switch")
                if (workers := [*switch["workers"].values()])
                and any(parts["role"] == "old" for parts in workers)
            ]
            prometheus.wait_for("sum(edl_stall_seconds_count)", len(stalls))
            [(_, total)] = prometheus.query("sum(edl_stall_seconds_sum)")
            assert total == pytest.approx(sum(stalls))
            for kind, count in Counter(one["kind"] for one in job.events()).items():
                prometheus.wait_for(f'max(edl_events_total{{kind="{kind}"}})', count)
            healths = {rule["health"] for rule in rules_of(prometheus)}
            assert healths <= {"ok", "unknown"}
        job.prove()


def rules_of(prometheus: Prometheus) -> list[dict[str, str]]:
    """Return all rules that Prometheus evaluates."""
    return [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
