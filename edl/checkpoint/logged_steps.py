"""Keep beside a job's checkpoints up to which step its log was written (:class:`LoggedSteps`).

A job that continues from a checkpoint trains some steps again. By this file it does not log them
again.
"""

from __future__ import annotations

import json
import logging
import os

from edl.checkpoint.location import Location, RemotePath

logger = logging.getLogger(__name__)

FILE = "logged.json"


class LoggedSteps:
    """The highest logged step by series, in the file ``logged.json`` of a checkpoint directory.

    A file that cannot be read counts as empty; a failure to write is logged once.

    Args:
        directory: the directory of the checkpoints, which exists. In one with a URL nothing is
            kept, because a write there would hold up the training.
    """

    def __init__(self, directory: Location) -> None:
        self._path = None if isinstance(directory, RemotePath) else directory / FILE
        self._told = False

    def read(self) -> dict[str, int]:
        """Return the highest logged step by the name of the series."""
        if self._path is None:
            return {}
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
            return {str(name): int(step) for name, step in found.items()}
        except (OSError, ValueError, AttributeError, TypeError):
            return {}

    def put(self, series: str, step: int) -> None:
        """Write that ``series`` was logged up to ``step``; the others stay as they are."""
        if self._path is None:
            return
        partial = self._path.with_name(f".{FILE}.{os.getpid()}")
        try:
            partial.write_text(json.dumps(self.read() | {series: step}), encoding="utf-8")
            partial.rename(self._path)
        except OSError as error:
            if not self._told:
                logger.warning("steps may be logged twice after a restart of the job: %s", error)
            self._told = True

    def forget(self) -> None:
        """Remove the file, as a job that starts afresh logs from its first step."""
        if self._path is None:
            return
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            logger.warning("steps of this job may not be logged: %s", error)
