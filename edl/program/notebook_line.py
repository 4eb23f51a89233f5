"""Show the status line of a job below a notebook's cell, where one line changes in place."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from edl.core.snapshot import Snapshot
from edl.launch.live import LiveLine

_REDRAW_S = 0.5


class NotebookLine:
    """The status line of a job in a notebook, which is drawn anew as the job trains."""

    def __init__(
        self,
        line: LiveLine,
        display: Callable[..., Any],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._line, self._display, self._now_s = line, display, now_s
        self._handle: Any = None
        self._shown, self._at_s = "", -_REDRAW_S

    def update(self, snapshot: Snapshot) -> None:
        """Show the line for the records in `snapshot`, at most twice a second."""
        self._line.update(snapshot)
        now_s = self._now_s()
        job = snapshot.job
        if not job.state.over and now_s - self._at_s < _REDRAW_S:
            return
        text = self._line.render().plain
        if job.state.over:
            text = f"{job.name} {job.state.phrase}: {job.reason}"
        if text == self._shown:
            return
        self._shown, self._at_s = text, now_s
        shown = {"text/plain": text}
        if self._handle is None:
            self._handle = self._display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)


def notebook_display() -> Callable[..., Any] | None:
    """Return IPython's `display` if this process is the kernel of a notebook; else None."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if ipython is None or getattr(shell, "kernel", None) is None:
        return None
    found: Callable[..., Any] = ipython.display.display
    return found
