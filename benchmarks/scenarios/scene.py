"""A scenario inside a training script: fail when it is due, and tell of each epoch.

A script under edl also waits here for the ring that the epoch is to end with: nobody stops for a
newcomer, so a short epoch would be over before that has started. It waits by slow steps.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

PAUSE_S = 0.05  # a worker that was longer between two steps has stood still
SLOW_S = 0.5  # a step while the ring has not the size that it is to have
SETTLED, SETTLING_S = 5, 0.1  # steps in the ring of that size, before they may be fast


class Scene:
    """``path``: what :func:`write` wrote. ``start_rank``: None: that in the first batch."""

    def __init__(self, path: Path, start_rank: int | None = None) -> None:
        self._scene: dict[str, Any] = json.loads(path.read_text())
        self._log = Path(self._scene["log"])
        self._start_rank = start_rank
        self._epoch: int | None = None  # a newcomer learns it at the end of one
        self._batch = 0
        self._settled = 0
        self._went_on: float | None = None  # when the last step began

    def step(self) -> None:
        """As a step begins: log how long this worker has stood still before it."""
        now = time.monotonic()
        if self._went_on is not None and now - self._went_on > PAUSE_S:
            with self._log.with_name(f"pauses-{os.getpid()}").open("a") as pauses:
                pauses.write(f"{now - self._went_on}\n")
        self._went_on = now

    def go_on(self) -> None:
        """As a wait of the scenario's own ends, which is no standstill."""
        self._went_on = time.monotonic()

    def begin_batch(self, rank: int, size: int) -> None:
        """At the beginning of each step in a ring of edl, and nothing besides."""
        self.step()
        if self._start_rank is None:
            self._start_rank = rank
            self._epoch = None if self.epochs_ended() else 0
        if self._batch == 0 and self._epoch is not None:
            self.exit_if_due(self._epoch)
        self._batch += 1
        self._pace(size)

    def exit_if_due(self, epoch: int) -> None:
        """At the first batch of an epoch: fail as it is asked for, once in the job."""
        mark = self._log.with_name(f"exited-{epoch}-{self._start_rank}")
        if [epoch, self._start_rank] not in self._scene["exits"] or mark.exists():
            return
        mark.touch()
        who, how = self._scene["who"], self._scene["how"]
        print(f"rank {self._start_rank} in epoch {epoch}: {how} of {who}", flush=True)
        if how == "exception":
            raise RuntimeError(f"rank {self._start_rank} fails in epoch {epoch}")
        ours = who == "worker" or "EDL_ATTEMPT_ID" not in os.environ
        number = signal.SIGKILL if how == "kill" else signal.SIGTERM
        os.kill(os.getpid() if ours else os.getppid(), number)

    def end_epoch(self, epoch: int, rank: int, size: int, rendezvous: int) -> None:
        """At the end of each epoch; rank 0 logs it."""
        self._epoch, self._batch, self._settled = epoch + 1, 0, 0
        if rank:
            return
        line = {
            "epoch": epoch,
            "start_rank": self._start_rank,
            "size": size,
            "host": os.environ.get("EDL_HOST") or os.environ["HOROVOD_HOSTNAME"],
            "rendezvous": rendezvous,
        }
        with self._log.open("a") as log:
            log.write(json.dumps(line) + "\n")

    def epochs_ended(self) -> int:
        """How many epochs have ended; the discovery script counts the same."""
        return len(self._log.read_text().splitlines()) if self._log.exists() else 0

    def _pace(self, size: int) -> None:
        sizes = self._scene["sizes"]
        epoch = self.epochs_ended() if self._epoch is None else self._epoch
        wanted = sizes[epoch] if epoch < len(sizes) else None  # horovodrun is to fail meanwhile
        self._settled = self._settled + 1 if size == wanted else 0
        if self._settled <= SETTLED:
            time.sleep(SETTLING_S if self._settled else SLOW_S)
        self.go_on()


def struck(log: Path) -> frozenset[int]:
    """Return the epochs in which a worker has failed as the scenario asks."""
    return frozenset(int(mark.name.split("-")[1]) for mark in log.parent.glob("exited-*"))


def write(path: Path, **scene: Any) -> None:
    """Say what is to happen: ``log``, ``exits`` ([epoch, rank]), ``how``, ``who``, ``sizes``."""
    path.write_text(json.dumps(scene))
