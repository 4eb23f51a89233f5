"""Tell when the logs of a job were last in use, and mark them as used while the job runs.

Launchers and hosts remove logs that were not used for long (:func:`last_use_s`). A job may train
for days without a line of output, so the time of the last line is not enough: logs are also in use
while a process on this host runs that a file beside them names. The processes of other hosts, which
may share the directory, are not seen from here: their launchers mark it (:func:`mark_as_used`).
"""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path

from edl.launch.adoption import recorded_pid

MARK_EACH_S = 3600.0  # much less than the day for which unused logs are kept


def last_use_s(logs: Path) -> float:
    """Return when logs were last used, in seconds since 1970; infinity: by a live process."""
    with contextlib.suppress(OSError):
        if any(recorded_pid(record) is not None for record in logs.glob("*.process")):
            return math.inf
    times = [0.0]
    with contextlib.suppress(OSError):
        for path in (logs.parent, logs, *logs.glob("*.log")):
            with contextlib.suppress(OSError):  # another process removes what is old, too
                times.append(path.lstat().st_mtime)
    return max(times)


def mark_as_used(logs: Path) -> None:
    """Let `last_use_s` return the present time on each host that shares a directory of logs."""
    with contextlib.suppress(OSError):
        os.utime(logs)
