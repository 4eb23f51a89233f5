"""Serve the page of an invented job that changes fifty times a second, by a clock that is as fast.

``python tests/browser/busy_job.py`` prints the address. Each read of the job is a second later, and
has another step, speed and loss; after each tenth the log has a worker that was killed and the ring
without it. The log begins with as many rings as a page shows, so the page has its full size soon.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from shown_job import CREATED, ShownStore, event, generation, snapshot, switch, training

from edl.api.listening import ListenAddress
from edl.dashboard import answers, job_watcher, server
from edl.dashboard.job_watcher import JobWatcher
from edl.dashboard.view.timeline import MAX_BANDS
from edl.events import Event, WorkerFailedDetails
from edl.job.snapshot import Snapshot
from edl.learning import LearningSample

TURN_S = 0.02


def lost(at_s: float, number: int) -> list[Event]:
    worker = f"w{number}"
    details = WorkerFailedDetails(worker, f"node{number % 7}", 0, -9, "")
    return [
        event(at_s, details, number - 1, number, f"{worker} was killed"),
        generation(at_s, number, ("w0", "w1"), left=(worker,), repair=True),
        switch(at_s, number, 0.1, 0.2, detect_s=0.1),
    ]


class BusyStore(ShownStore):
    """A store in which each read is a second later than the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.rings = 0
        for _ in range(MAX_BANDS):
            self.lose()

    @property
    def late_s(self) -> float:
        """The time since the job was created, in seconds."""
        return 10.0 * MAX_BANDS + self.reads

    def lose(self) -> None:
        """Add a lost worker to the log; older events than ZooKeeper keeps are gone."""
        self.rings += 1
        self.log += lost(10.0 * self.rings, self.rings + 2)
        more = len(self.log) - 2000
        if more > 0:
            self.first, self.log = self.first + more, self.log[more:]

    def clock(self) -> float:
        return CREATED + self.late_s

    def snapshot(self, wake: Callable[[], None] | None = None) -> Snapshot:
        super().snapshot(wake)
        n = self.reads
        learning, _ = self.measured.learning.with_samples(
            [LearningSample(n, 1.0 + (n % 7), 0.1, 3)], self.clock()
        )
        self.measured = replace(self.measured, learning=learning)
        if n % 10 == 0:
            self.lose()
        rate = 400.0 + n % 50
        return snapshot(status=training(self.clock(), n, samples_per_s=rate), number=self.rings)


def main() -> None:
    store: Any = BusyStore()
    page: Any = server
    page.JobWatcher = partial(JobWatcher, clock=store.clock, steady_clock=store.clock)
    watcher: Any = job_watcher
    streams: Any = answers
    watcher.TURN_S, watcher.LEARNED_S, streams.POLL_S = TURN_S, 0.0, TURN_S / 2
    address = ListenAddress("127.0.0.1", 0)
    server.run_dashboard(store, address, lambda text: print(text, flush=True))


if __name__ == "__main__":
    main()
