"""Keep beside a job's checkpoints up to which step its log was written (:class:`LoggedSteps`).

A job that continues from a checkpoint trains some steps again. By this file it does not log them
again.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Mapping

from edl.checkpoint.bounded_look import LOOK_S, looked
from edl.checkpoint.location import Location, RemotePath

logger = logging.getLogger(__name__)

FILE = "logged.json"


class LoggedSteps:
    """The highest logged step by series, in the file `logged.json` of a checkpoint directory."""

    # In a directory with a URL nothing is kept: a write there would hold up the training.

    def __init__(self, directory: Location) -> None:
        self._path = None if isinstance(directory, RemotePath) else directory / FILE
        self._told = False
        self._lock = threading.Lock()
        self._unwritten: dict[str, int] = {}
        self._is_writing = False

    def read(self) -> dict[str, int]:
        """Return the highest logged step by the name of the series."""
        if self._path is None:
            return {}
        if (found := looked(self._read, LOOK_S, otherwise=None)) is None:
            self._tell(f"{self._path} was not read in {LOOK_S:g} s")
        return found or {}

    def put(self, series: str, step: int) -> None:
        """Write that `series` was logged up to `step`; the others stay as they are."""
        if self._path is None:
            return
        # While one write waits for a file server, later ones wait for nothing.
        with self._lock:
            self._unwritten[series] = step
            waits = self._is_writing
            self._is_writing = True
        if not waits and not looked(self._write_all, LOOK_S, otherwise=False):
            self._tell(f"{self._path} was not written in {LOOK_S:g} s")

    def forget(self) -> None:
        """Remove the file, as a job that starts afresh logs from its first step."""
        if self._path is None:
            return
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            logger.warning("steps of this job may not be logged: %s", error)

    def _read(self) -> dict[str, int]:
        """Return the steps in the file by series; an empty dict if it cannot be read."""
        assert self._path is not None
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
            return {str(name): int(step) for name, step in found.items()}
        except (OSError, ValueError, AttributeError, TypeError):
            return {}

    def _write_all(self) -> bool:
        """Write the file until nothing is left to be written; return True."""
        while True:
            with self._lock:
                steps, self._unwritten = self._unwritten, {}
                if not steps:
                    self._is_writing = False
                    return True
            self._write(steps)

    def _write(self, steps: Mapping[str, int]) -> None:
        """Write `steps`, by series, into the file, with the series that are there already."""
        assert self._path is not None
        partial = self._path.with_name(f".{FILE}.{os.getpid()}")
        try:
            partial.write_text(json.dumps({**self._read(), **steps}), encoding="utf-8")
            partial.rename(self._path)
        except OSError as error:
            self._tell(str(error))

    def _tell(self, why: str) -> None:
        """Log once that steps may be logged twice, because of `why`."""
        if not self._told:
            logger.warning("steps may be logged twice after a restart of the job: %s", why)
        self._told = True
