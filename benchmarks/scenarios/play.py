"""Run one scenario with one system under `horovodrun`: what it reported, how and when it ended."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.jobs import BIN, ROOT, Job
from benchmarks.scenarios import scene
from benchmarks.scenarios.table import ALWAYS, Hosts, Scenario

SCRIPTS = ROOT / "tests" / "integration" / "scripts"
WORKER = (sys.executable, "-m", "edl.cli.worker")  # edl-worker, wherever it is installed
MARK = "SCENARIO_MARK"
LIMIT_S = 240.0  # a job that has not ended by then hangs; stock's Gloo waits 30 s
GONE_S = 10.0  # for the processes of a job, after horovodrun has ended
SAMPLES, BATCH_SIZE = 2880, 4  # of edl: 180 steps an epoch with 4 workers, of which few are slow


@dataclass(frozen=True)
class Played:
    """What came of a scenario. ``lines``: what rank 0 reported of each epoch, in order.

    Of an epoch that was trained again from a checkpoint, what was reported first.
    """

    code: int | None  # of horovodrun; None: it did not end
    seconds: float
    lines: tuple[Mapping[str, Any], ...]
    output: str
    left: tuple[str, ...] = ()  # processes that outlived horovodrun
    struck: frozenset[int] = frozenset()  # epochs in which somebody failed
    pause_s: float = 0.0  # the longest that a worker stood still between two steps
    reports: tuple[Mapping[str, Any], ...] = field(default=())  # of edl's workers at their end


def play_stock(scenario: Scenario, directory: Path) -> Played:
    """With stock Horovod Elastic and PyTorch."""
    last = [epoch for epoch, _ in scenario.hosts if epoch != ALWAYS]
    changes = ",".join(map(str, last))
    stage = Stage(scenario, directory, {})
    script = [sys.executable, "-m", "benchmarks.scenarios.stock"]
    return stage.play([*script, str(stage.scene), str(scenario.epochs), changes])


def play_edl(
    scenario: Scenario,
    directory: Path,
    zookeeper: str,
    script: str = "counting.py",
    settings: Mapping[str, str] | None = None,
) -> Played:
    """With the counting model of the tests under edl; ``script``: of PyTorch's or TensorFlow's."""
    reports = directory / "reports"
    reports.mkdir(parents=True)
    environment = {
        "EDL_ZOOKEEPER": zookeeper,
        "EDL_JOB": f"{scenario.name}-{uuid.uuid4().hex[:6]}",
        "EDL_SESSION_TIMEOUT_S": "2",
        "EDL_BACKOFF_MAX_S": "1",
        "EDL_GATHER_TIMEOUT_S": "30",  # those who start together come in together
        "EDL_LOG": "INFO",
        **(settings or {}),
    }
    stage = Stage(scenario, directory, environment, [line.size for line in scenario.edl.lines])
    words = ["--out", reports, "--scene", stage.scene, "--epochs", scenario.epochs]
    words += ["--samples", SAMPLES, "--batch-size", BATCH_SIZE]
    if scenario.checkpoint:
        words += ["--checkpoint", directory / "checkpoints", "--every", "0.5"]
    return stage.play([*WORKER, sys.executable, str(SCRIPTS / script), *map(str, words)])


class Stage(Job):
    """One job of a scenario, in ``directory``; ``sizes``: of the ring at the end of each epoch."""

    def __init__(
        self,
        scenario: Scenario,
        directory: Path,
        settings: Mapping[str, str],
        sizes: Sequence[int] = (),
    ) -> None:
        self.mark = uuid.uuid4().hex
        own = {
            "PYTHONPATH": f"{ROOT}{os.pathsep}{SCRIPTS}",
            "XDG_STATE_HOME": str(directory / "state"),
            MARK: self.mark,
        }
        super().__init__(directory, {**own, **settings})
        self.scenario = scenario
        self.scene = directory / "scene.json"
        self.log = directory / "log.jsonl"
        scene.write(
            self.scene,
            log=str(self.log),
            exits=[[one.epoch, rank] for one in scenario.exits for rank in one.ranks],
            who=scenario.who,
            how=scenario.how,
            sizes=list(sizes),
        )

    def play(self, command: Sequence[str]) -> Played:
        """Run the job to its end, or until the limit; nothing of it lives afterwards."""
        options = [*self.scenario.options(), "--network-interface", "lo", *self._hosts()]
        began = time.monotonic()
        try:
            self.launch([str(BIN / "horovodrun"), *options, *command])
            code = self.end(LIMIT_S)
            seconds = time.monotonic() - began
            left = self._left() if code is not None else ()
        finally:
            self.stop()
            for process in self._processes():
                process.kill()
        return Played(
            code,
            seconds,
            self._lines(),
            self.output(),
            left,
            scene.struck(self.log),
            self._pause_s(),
            self._reports(),
        )

    def _hosts(self) -> list[str]:
        if self.scenario.fixed:
            ((_, hosts),) = self.scenario.hosts
            return ["-H", ",".join(_words(hosts))]
        script = self.directory / "discover"
        script.write_text(self._discovery())
        script.chmod(0o755)
        return ["--host-discovery-script", shlex.quote(str(script))]

    def _discovery(self) -> str:
        """Return a script that prints the hosts of the epoch that is trained now."""
        cases = "".join(
            f"  {'*' if last == ALWAYS else ' | '.join(map(str, range(last + 1)))}) "
            f"printf '%s\\n' {' '.join(_words(hosts))};;\n"
            for last, hosts in self.scenario.hosts
        )
        ended = f"$(cat {shlex.quote(str(self.log))} 2>/dev/null | wc -l)"
        return f"#!/bin/sh\ncase {ended} in\n{cases}esac\n"

    def _left(self) -> tuple[str, ...]:
        deadline = time.monotonic() + GONE_S
        while (left := self._processes()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return tuple(" ".join(process.cmdline()) for process in left)

    def _processes(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                ours = process.environ().get(MARK) == self.mark
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def _lines(self) -> tuple[Mapping[str, Any], ...]:
        text = self.log.read_text() if self.log.exists() else ""
        first: dict[int, Mapping[str, Any]] = {}
        for line in map(json.loads, text.splitlines()):
            first.setdefault(line["epoch"], line)
        return tuple(first[epoch] for epoch in sorted(first))

    def _pause_s(self) -> float:
        files = self.directory.glob("pauses-*")
        pauses = (line for file in files for line in file.read_text().splitlines())
        return max(map(float, pauses), default=0.0)

    def _reports(self) -> tuple[Mapping[str, Any], ...]:
        files = sorted((self.directory / "reports").glob("*.json"))
        return tuple(json.loads(file.read_text()) for file in files)


def _words(hosts: Hosts) -> list[str]:
    return [f"{host}:{slots}" for host, slots in hosts.items()]
