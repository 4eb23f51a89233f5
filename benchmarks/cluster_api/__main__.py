"""``python -m benchmarks.cluster_api``: measure how soon the HTTP API of a cluster takes jobs.

It prints the figures and writes them into benchmarks/results/cluster-api.md. A ZooKeeper, a
controller and the API are started for it. The API has one processor for itself; ZooKeeper, the
controller and the clients have the others. Nothing else should need the processors.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

from benchmarks import page, report
from benchmarks.cluster_api.load import Acknowledgements, at_rate, over_http
from benchmarks.jobs import ROOT
from edl.client.http_api import ApiClient
from edl.zookeeper.access import new_secret
from edl.zookeeper.local_server import start_local, stop_local

CLUSTER = "bench"
START_S = 60.0
END_S = 20.0
WARM_UP = 50  # submissions that do not count: connections and sessions are opened
MOST_JOBS = 9000  # a cluster takes 10,000

parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster_api", description=__doc__)
parser.add_argument("--rate", type=float, nargs="+", default=[50, 100, 200, 300], help="a second")
parser.add_argument("--seconds", type=float, default=10.0, help="for each rate")
parser.add_argument("--clients", type=int, default=32, help="connections that submit")
parser.add_argument("--no-controller", action="store_true", help="only the API and ZooKeeper")
parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results", help="a folder")

COMMAND = "make cluster-api"
TITLE = "How soon the HTTP API acknowledges jobs"
HOW = """
`edl cluster api` has one processor for itself. ZooKeeper (one server), a controller and {clients}
clients share the others. The clients submit different jobs at a fixed rate for {seconds:g} s, each
over a connection of its own, signed with the cluster's secret. A time runs from when a job was due
to be submitted to its acknowledgement, so a client that falls behind adds its delay. No host is
there, so all jobs wait. The goal is 200 jobs a second, 99 of 100 acknowledged within 50 ms.
"""
HEAD = ("asked, jobs/s", "acknowledged/s", "refused", "median, ms", "p99, ms", "most, ms")
HEAD += ("processor time of the API, ms a job",)


def main(arguments: Sequence[str] | None = None) -> int:
    args = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # all ends with us
    if sum(args.rate) * args.seconds + WARM_UP > MOST_JOBS:
        parser.error(f"that is more than {MOST_JOBS} jobs; lower --seconds or --rate")
    with tempfile.TemporaryDirectory(prefix="edl-api-") as scratch:
        figures = measure(args, Path(scratch))
    text = page_text(args, figures)
    print(text)
    (args.out / "cluster-api.md").write_text(text)
    return 0


def page_text(args: argparse.Namespace, figures: Sequence[tuple[Acknowledgements, float]]) -> str:
    """Return the page about the measurement.

    Args:
        args: the options of the command.
        figures: for each rate the acknowledgements, and the API's processor time in
            milliseconds for each job.
    """
    rows = [
        (
            f"{one.asked_per_s:g}",
            f"{one.per_s:.1f}",
            str(one.refused),
            f"{one.p50_ms:.1f}",
            f"{one.p99_ms:.1f}",
            f"{one.most_ms:.1f}",
            f"{processor_ms:.2f}",
        )
        for one, processor_ms in figures
    ]
    how = " ".join(HOW.split()).format(clients=args.clients, seconds=args.seconds)
    section = page.Section("Submissions", how, HEAD, rows)
    return page.markdown(TITLE, COMMAND, f"Machine: {report.machine()}.", [section])


def measure(args: argparse.Namespace, directory: Path) -> list[tuple[Acknowledgements, float]]:
    """Return, for each rate, the acknowledgements and the API's processor ms for each job."""
    secret = new_secret()
    own, *others = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, others or [own])
    found = []
    with ExitStack() as stack:
        zookeeper = start_local(directory / "zookeeper")
        stack.callback(stop_local, directory / "zookeeper")
        environment = {
            **os.environ,
            "EDL_SECRET": secret,
            "EDL_ZOOKEEPER": zookeeper,
            "XDG_STATE_HOME": str(directory / "state"),
        }
        words = ["start", "--name", CLUSTER]
        controller = stack.enter_context(started(words, directory, environment, "leads cluster"))
        if args.no_controller:
            controller.terminate()
            controller.wait(END_S)
        words = ["api", "0", "--cluster", CLUSTER]
        api = stack.enter_context(started(words, directory, environment, "serves the", own))
        match = re.search(r"at (http\S+)", (directory / "api.log").read_text())
        assert match is not None
        clients = [
            stack.enter_context(ApiClient(match[1], CLUSTER, secret=secret))
            for _ in range(args.clients)
        ]
        submits = [over_http(one, str(directory)) for one in clients]
        at_rate(submits, 25.0, WARM_UP)
        process, first = psutil.Process(api.pid), WARM_UP
        for rate in args.rate:
            count = int(rate * args.seconds)
            before = process.cpu_times()
            taken = at_rate(submits, rate, count, first)
            after = process.cpu_times()
            spent_s = after.user + after.system - before.user - before.system
            found.append((taken, 1000 * spent_s / count))
            first += count
    return found


@contextmanager
def started(
    words: Sequence[str],
    directory: Path,
    environment: Mapping[str, str],
    ready: str,
    processor: int | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """While entered, run `edl cluster` with these words, until its output has ``ready``.

    ``processor`` is the only one that it may use; None: as this process.
    """
    log = directory / f"{words[0]}.log"

    def pin() -> None:
        if processor is not None:
            os.sched_setaffinity(0, [processor])

    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "edl.cli.main", "cluster", *words],
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            preexec_fn=pin,
        )
    try:
        deadline_s = time.monotonic() + START_S
        while ready not in log.read_text():
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise SystemExit(f"edl cluster {' '.join(words)}:\n{log.read_text()}")
            time.sleep(0.1)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(END_S)


if __name__ == "__main__":
    sys.exit(main())
