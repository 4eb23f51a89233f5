"""Start the worker process of one slot of horovodrun.

The worker dies with its `edl-worker`, because the driver counts the slot as failed when
`edl-worker` dies. The worker has the standard output of `edl-worker`, so that horovodrun shows it
as usual. Its standard error is copied through `edl-worker`, which keeps the last lines: they say
why the worker has ended. The one class is :class:`SlotWorkers`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from edl.launch.parent import die_with_parent
from edl.launch.tee import Tee
from edl.launch.workers import Workers


class SlotWorkers(Workers):
    """The worker process of one slot of horovodrun, one at a time; the kernel kills it with us."""

    def __init__(
        self, command: Sequence[str], cwd: Path, environment: Mapping[str, str], logs: Path
    ) -> None:
        super().__init__(command, cwd, environment, logs)
        self._tees: dict[str, Tee] = {}  # standard error, by the id of the start attempt

    def _spawn(self, attempt_id: str, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            self._command,
            cwd=self._cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=die_with_parent,  # the driver may kill edl-worker at any time
        )
        assert process.stderr is not None
        self._tees[attempt_id] = Tee(process.stderr, sys.stderr.buffer)
        self._tees[attempt_id].start()
        return process

    def termination_message(self, attempt_id: str) -> str:
        """Return the line of a worker's standard error that best explains why the worker exited."""
        return self._tees.pop(attempt_id).finish()
