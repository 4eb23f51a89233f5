"""A job of the counting model that something happens to, and the proof that it did no harm.

::

    with scenario(tmp_path, zk_hosts, np=3) as job:
        job.freeze(job.worker("w1"))
        ...
        job.prove(workers=3)

Steps are slow until the proof begins, and slower the longer that takes: nothing is missed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import psutil
from paths import ROOT, SCRIPTS

from edl.testing.job import EDL, WAIT_S, Job, Status
from edl.testing.throttle import Throttle

COUNTING = SCRIPTS / "counting.py"
SESSION_S = 2.0
ROUNDING_S = 5e-6  # each part of a switch is rounded to a microsecond
Kind = TypeVar("Kind", bound="Scenario")


class Scenario(Job):
    """A job of the counting model. Numbers: an epoch has samples / (workers * batch_size) steps."""

    samples = 480
    epochs = 2
    batch_size = 4
    num_workers = 0
    throttled = Throttle(0.3, 40, 3.0)  # until the proof begins
    session_s = SESSION_S
    end_s = 180.0  # for a job to end once nobody disturbs it any more
    script = COUNTING
    options: Sequence[str] = ()  # of `edl run`
    more: Sequence[str] = ()  # options of the script

    def begin(self, np: int, max_np: int, min_np: int = 1) -> None:
        self.throttle(self.throttled)
        self.stuck = self.directory / "stuck"
        self.reports_in = self.directory / "reports"
        self.reports_in.mkdir()
        self.environment = {
            "EDL_SESSION_TIMEOUT_S": str(self.session_s),
            "EDL_BACKOFF_MAX_S": "1",
            "EDL_MAX_RESTARTS": "1000",  # faults may strike the same slot again and again
            "EDL_STATE_CHECK_STEPS": "1",
            "EDL_LOG": "INFO",
            **self.environment,
        }
        self.run(
            self.script, *self.words(), np=np, min_np=min_np, max_np=max_np, options=self.options
        )

    def words(self) -> list[str]:
        options = {
            "--out": self.reports_in,
            "--samples": self.samples,
            "--epochs": self.epochs,
            "--batch-size": self.batch_size,
            "--num-workers": self.num_workers,
            "--stuck": self.stuck,
        }
        return [*(str(word) for option in options.items() for word in option), *self.more]

    def rejoin(self) -> None:
        """`edl join` on the same host, in the place of `edl run`, whose process has ended."""
        assert self._process is not None
        assert self._process.poll() is not None
        self._begin([EDL, "join", "--job", self.name])

    def join_as(self, host: str, np: int) -> subprocess.Popen[bytes]:
        """`edl join` as another host; its output is in ``host``.output."""
        command = [EDL, "join", "--job", self.name, "--host", host, "-np", str(np)]
        return self._spawn(command, self.directory / f"{host}.output")

    # --- faults ---

    def agent(self) -> psutil.Process:
        """Return the process of `edl run`."""
        assert self._process is not None
        return psutil.Process(self._process.pid)

    @property
    def agent_pid(self) -> int:
        assert self._process is not None
        self._process.poll()  # or it would stay a zombie
        return self._process.pid

    def join_leave_and_die(self) -> None:
        """One joins a job of two, one leaves, and one dies and is replaced."""
        self.wait_for_step(2)
        for size in (3, 2):
            self.scale(size)
            self.wait_for_size(size)
        os.kill(self.members(self.plain())[self.plain()]["pid"], signal.SIGKILL)
        self.wait_for_eviction()
        self.wait_for_size(2)
        repair = next(event for event in self.events("generation") if event.get("failures"))
        for parts in self.switch_to(repair["generation"])["workers"].values():
            check_repair(parts)

    def switch_to(self, generation: int) -> dict[str, Any]:
        """Return the event with the measurements of the switch to ``generation``."""
        found: list[dict[str, Any]] = []

        def logged() -> bool:
            found.extend(e for e in self.events("switch") if e["generation"] == generation)
            return bool(found)

        self.until(logged, f"switch to generation {generation} in the event log")
        return found[0]

    # --- the proof ---

    def until(self, condition: Callable[[], object], what: str, timeout_s: float = WAIT_S) -> None:
        """Wait for something that is no status of the job."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, self.describe(f"no {what} in {timeout_s:g} s")
            time.sleep(0.05)

    def wait_for_progress(self, steps: int = 5, timeout_s: float = WAIT_S) -> Status:
        """Wait until ``steps`` more steps are trained."""
        now = self.status()["step"]
        return self.wait_for_step(now + steps, timeout_s)

    def prove(
        self, workers: int | None = None, code: int = 0, errors: bool = False
    ) -> list[dict[str, Any]]:
        """Let it end: each sample was counted once an epoch, on all workers alike.

        What the workers have exchanged between steps was the same on all, too, and none of them has
        ended by an error that the test has not made: the others would go on without it, and the
        counts would be right.

        Args:
            workers: how many trained to the end; None: any number.
            code: that `edl run` ends with.
            errors: whether the test lets workers end by errors.

        Returns:
            The reports of those that trained to the end.
        """
        self.hurry()
        ends = self.end(self.end_s)
        assert ends == code, self.describe(f"edl run ended with {ends}")
        reports = [json.loads(path.read_text()) for path in self.reports_in.glob("*.json")]
        story = self.describe(f"the counts are wrong: {reports}")
        assert reports, story
        ended = re.findall(r"edl: step \d+: w\d+ .*exited with code [1-9].*", self.output())
        assert errors or not ended, story
        assert workers in (None, len(reports)), story
        for report in reports:
            assert report["wrong"] == [], story
            assert report["counts"] == {str(self.epochs): self.samples}, story
            for epoch in report["epochs"]:
                assert epoch["counts"] == {str(epoch["epoch"] + 1): self.samples}, story
            for steps, rows in report["exchanges"].items():
                assert all(r["exchanges"].get(steps, rows) == rows for r in reports), story
                assert {row[1] for row in rows} == {float(steps)}, story
        assert len({report["w_sha256"] for report in reports}) == 1, story
        assert len({report["steps"] for report in reports}) == 1, story
        assert len({str(report.get("averages")) for report in reports}) == 1, story
        assert len({report["rings"][-1]["generation"] for report in reports}) == 1, story
        return reports

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.hurry()
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            self.thaw()
        super().close()


def last_line_of(example: str, *words: str) -> str:
    """Run an example alone, and return the last line that it prints."""
    ended = subprocess.run(
        [sys.executable, str(ROOT / "examples" / example), *words],
        check=True,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    return ended.stdout.splitlines()[-1]


def check_repair(parts: dict[str, float]) -> None:
    """Assert that the parts of a repair, as one survivor has measured them, make up its stall."""
    assert parts["survivor_report_s"] > 0.0, parts
    assert parts["init_s"] > 0.0, parts
    assert parts["first_step_s"] > 0.0, parts
    assert 0.0 <= parts["detect_s"] < 30.0, parts  # Gloo's time-out, which nobody waits for
    assert parts["election_s"] + parts["survivor_report_s"] <= parts["wait_s"] + ROUNDING_S, parts
    whole = parts["wait_s"] + parts["init_s"] + parts["broadcast_s"]
    assert whole <= parts["stall_s"] + ROUNDING_S, parts


def longest_stall(reports: Sequence[dict[str, Any]]) -> float:
    """Return the longest pause of any worker between two steps after its first, in seconds."""
    return max(
        (
            pause["seconds"]
            for report in reports
            for pause in report["pauses"]
            if pause["step"] > report["rings"][0]["step"]
        ),
        default=0.0,
    )


def freeze(process: psutil.Process) -> None:
    process.send_signal(signal.SIGSTOP)


def alive(process: psutil.Process) -> bool:
    """Return whether a process runs or is frozen; a zombie has ended."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextmanager
def scenario(
    directory: Path,
    zookeeper: str,
    *,
    np: int,
    max_np: int | None = None,
    min_np: int = 1,
    environment: dict[str, str] | None = None,
    kind: type[Kind] = Scenario,
    **settings: Any,
) -> Iterator[Kind]:
    """Run a job that trains; kill it at the end of the block. ``settings``: fields of ``kind``."""
    job = kind(directory, zookeeper)
    for name, value in settings.items():
        setattr(job, name, value)
    job.environment |= environment or {}
    try:
        job.begin(np, max_np or np, min_np)
        yield job
    finally:
        job.close()
