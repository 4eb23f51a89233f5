"""What an open page costs its job: the job's median step while the page follows it, and without.

One job trains in blocks of steps. The server of its page, `edl dashboard`, and a reader of its
stream, in the place of a browser, run beside it; in each second block both are stopped (SIGSTOP). A
pair of neighbouring blocks gives one ratio; the blocks change places from pair to pair (ABBA ...).
All is on one machine: from another one, the page would cost the job less.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from benchmarks.jobs import BIN, BenchmarkError, EdlJob
from benchmarks.page import Section, markdown
from benchmarks.step_time import (
    WARM,
    WORKERS,
    block_median,
    confidence,
    cpu_s,
    prepare_block,
    train_block,
    wait_for_block,
)

NAME = "job"  # in the names of the files by which it takes turns
START_S = 60.0  # for the server of the page to print its address
READER = """
import sys, urllib.request
request = urllib.request.Request(sys.argv[1], headers={"Authorization": "Bearer " + sys.argv[2]})
with urllib.request.urlopen(request, timeout=60) as answer:
    while answer.readline():
        pass
"""


@dataclass(frozen=True)
class PageCost:
    """The steps of a job without and with an open page.

    Attributes:
        without_s: the median of the blocks' median steps without the page, in seconds.
        with_s: the same with the page.
        pairs: the number of pairs of blocks.
        ratio: the median, over the pairs, of the step with the page by that without.
        low: the lower end of the ratio's 95 % interval.
        high: the upper end of it.
        without_cpu_s: the processor time of a worker in a step without the page, in seconds.
        with_cpu_s: the same with the page.
        server_part: the part of a core that the server of the page uses.
    """

    without_s: float
    with_s: float
    pairs: int
    ratio: float
    low: float
    high: float
    without_cpu_s: float
    with_cpu_s: float
    server_part: float


class OpenPage:
    """The server of a job's page, and a reader of its stream.

    Args:
        server: `edl dashboard`.
        reader: the reader.
    """

    def __init__(self, server: subprocess.Popen[bytes], reader: subprocess.Popen[bytes]) -> None:
        self._processes = (server, reader)

    def stop(self) -> None:
        """Stop both, so that they cost nothing."""
        for one in self._processes:
            one.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let both go on.

        Raises:
            BenchmarkError: one of them has ended.
        """
        for one in self._processes:
            if one.poll() is not None:
                raise BenchmarkError(f"a process of the page has ended with {one.returncode}")
            one.send_signal(signal.SIGCONT)

    @property
    def cpu_s(self) -> float:
        """The processor time of the server so far, in seconds."""
        times = psutil.Process(self._processes[0].pid).cpu_times()
        return float(times.user + times.system)


@contextmanager
def open_page(job: EdlJob) -> Iterator[OpenPage]:
    """Open the page of ``job``, and close it at the end.

    Raises:
        BenchmarkError: the server of the page does not print its address in 60 s.
    """
    output = job.directory / "dashboard"
    with output.open("wb") as file:
        server = subprocess.Popen(
            [str(BIN / "edl"), "dashboard", job.name, "--port", "0"],
            stdout=file,
            stderr=subprocess.STDOUT,
            env=job.environment(),
        )
    reader = None
    try:
        url, token = _address(output)
        words = [sys.executable, "-c", READER, f"{url}api/stream", token]
        reader = subprocess.Popen(words)
        yield OpenPage(server, reader)
    finally:
        for one in filter(None, (reader, server)):
            one.kill()
            one.wait()


def _address(output: Path) -> tuple[str, str]:
    """Wait until ``output`` has the address of the page; return it, and the token."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        found = re.search(r"(http://\S+/)#token=(\w+)", output.read_text(errors="replace"))
        if found is not None:
            return found[1], found[2]
        time.sleep(0.1)
    raise BenchmarkError(f"edl dashboard prints no address: {output.read_text(errors='replace')}")


def measure(job: EdlJob, module: str, turns: Path, rounds: int, block: int) -> PageCost:
    """Compare the steps of a job without (a) and with (b) an open page.

    Args:
        job: the job, which is not started yet.
        module: the module of its script.
        turns: a directory for the files by which the job takes turns, which must not exist.
        rounds: pairs of blocks.
        block: steps in a block.
    """
    turns.mkdir(parents=True)
    medians: dict[str, list[float]] = {"a": [], "b": []}
    busy: dict[str, list[float]] = {"a": [], "b": []}
    served: list[float] = []
    try:
        prepare_block(turns, NAME, 0)
        taking = ["--turns", str(turns), "--name", NAME, "--warm", str(WARM), "--block", str(block)]
        job.start(module, WORKERS, *taking)
        wait_for_block(job, turns, NAME, 0)
        with open_page(job) as page:
            for turn in range(2 * rounds):
                way = "abba"[turn % 4]
                page.go_on() if way == "b" else page.stop()
                before, served_s, began_s = cpu_s(job), page.cpu_s, time.monotonic()
                train_block(job, turns, NAME, turn)
                busy[way].append((cpu_s(job) - before) / block / WORKERS)
                medians[way].append(block_median(job, turn, block))
                if way == "b":
                    served.append((page.cpu_s - served_s) / (time.monotonic() - began_s))
            page.go_on()
    finally:
        job.stop()
    ratios = np.array(medians["b"]) / np.array(medians["a"])
    low, high = confidence(ratios)
    return PageCost(
        without_s=float(np.median(medians["a"])),
        with_s=float(np.median(medians["b"])),
        pairs=len(ratios),
        ratio=float(np.median(ratios)),
        low=low,
        high=high,
        without_cpu_s=float(np.median(busy["a"])),
        with_cpu_s=float(np.median(busy["b"])),
        server_part=float(np.median(served)),
    )


def page(found: PageCost, machine: str) -> str:
    """Return the text of benchmarks/results/dashboard.md."""
    row = [
        f"{1e3 * found.without_s:.2f}",
        f"{1e3 * found.with_s:.2f}",
        f"{found.ratio - 1:+.2%} ({found.low - 1:+.2%} to {found.high - 1:+.2%})",
        f"{1e3 * found.without_cpu_s:.2f}, {1e3 * found.with_cpu_s:.2f}",
        f"{found.server_part:.1%}",
    ]
    head = [
        "step without, ms",
        "with, ms",
        "longer by (95 %)",
        "processor time of a worker in a step, ms",
        "the server's part of a core",
    ]
    how = (
        f"A job of {WORKERS} workers trains in blocks of steps. `edl dashboard` and a reader of "
        "its stream run beside it on the same machine, and are stopped in each second block: the "
        f"median step of {found.pairs} pairs of blocks."
    )
    section = Section("A step with an open page", how, head, [row])
    command = "python -m benchmarks --only dashboard"
    return markdown("What an open page costs", command, f"Machine: {machine}.", [section])
