"""Write lines to standard output or error from a thread, so that nobody waits for their reader.

A terminal or pipe may not be read for hours (Ctrl-S, a stopped ``tee``). The one class is
:class:`LineOutput`. The agent of a job, which also shows the output of workers, has
:class:`edl.launch.output.Output` for that.
"""

from __future__ import annotations

import atexit
import threading
from typing import IO

from edl.launch.backlog import Backlog
from edl.launch.output_stream import OutputStream

_LINE_S = 0.5  # for a line to be written, while none waits before it
_END_S = 2.0  # at the end of the process, for a reader that reads nothing


class LineOutput:
    """The output of a process that must live, to a file that perhaps nobody reads; any thread."""

    def __init__(self, file: IO[str] | None) -> None:
        self._stream = OutputStream(file)
        self._backlog: Backlog[str] = Backlog()
        self._writes = False  # lines that were taken from the backlog
        self._changed = threading.Condition()  # its lock may be taken again by a signal's handler

    def start(self) -> None:
        """Start the thread that writes."""
        threading.Thread(target=self._work, name="edl-lines", daemon=True).start()
        atexit.register(self.end)

    def write(self, text: str) -> None:
        """Write whole lines; wait 0.5 s at most, and not while earlier ones wait."""
        with self._changed:
            first = self._is_done()
            self._backlog.put(text)
            self._changed.notify_all()
            if first:
                self._changed.wait_for(self._is_done, _LINE_S)

    def flush(self) -> None:
        """Do nothing, for lines are not held back; a logging handler calls it."""

    def end(self) -> None:
        """Wait until all lines are written, but at most 2 s."""
        with self._changed:
            self._changed.wait_for(self._is_done, _END_S)

    def _is_done(self) -> bool:
        return not self._writes and not self._backlog

    def _work(self) -> None:
        while True:
            with self._changed:
                self._writes = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._backlog)
                left_out, lines = self._backlog.take()
                self._writes = True
            for text in [f"{left_out}\n", *lines] if left_out else lines:
                self._stream.write(text)
            self._stream.flush()
