"""A real Prometheus on loopback, for the time of a test; no service of the system."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, Self

import yaml
from paths import ROOT

from edl.testing.zookeeper import free_ports

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
