"""Keep the history of a cluster beside a controller, in a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from edl.client import Cluster
from edl.cluster.client.history_file import HistoryFile
from edl.errors import EdlError

logger = logging.getLogger(__name__)

FILL_S = 10.0  # between two looks at the event log; it keeps 10,000 events
END_S = 2.0  # for a look that is under way to end; without it, the next one does the same


class HistoryKeeper:
    """A thread that adds new events of a cluster to its history; a context manager."""

    def __init__(
        self,
        cluster: Cluster,
        file: HistoryFile,
        say: Callable[[str], None],
        fill_s: float = FILL_S,
    ) -> None:
        self._cluster = cluster
        self._file = file
        self._say = say
        self._fill_s = fill_s
        self._said = ""
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="edl-history", daemon=True)

    def __enter__(self) -> HistoryKeeper:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join(END_S)

    def _keep(self) -> None:
        """Fill the history again and again, until the end."""
        while not self._ends.wait(self._fill_s):
            try:
                with self._cluster as cluster:
                    while not self._ends.is_set():
                        self._file.fill(lambda after: cluster.events(after=after), cluster.uid)
                        self._said = ""
                        self._ends.wait(self._fill_s)
            except EdlError as error:
                if str(error) != self._said:
                    self._said = str(error)
                    self._say(f"cannot write the history: {error}")
            except Exception:  # a defect here must not end the controller's process
                logger.exception("the history cannot be filled")
