"""Keep a page up to date in one thread, whoever looks: :class:`PageWatcher`."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from typing import Any, Self

from edl.dashboard.published_page import PublishedPage

logger = logging.getLogger(__name__)

TURN_S = 1.0  # between two looks at what is shown
END_S = 15.0  # for a turn to end when the server does


class PageWatcher(ABC):
    """A page that a thread brings up to date; use it as a context manager."""

    def __init__(self, what: str) -> None:
        self.page = PublishedPage()  # the newest page; any thread may read it
        self._what = what
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="edl-dashboard", daemon=True)

    def __enter__(self) -> Self:
        self.turn()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join(END_S)

    @property
    def pause_s(self) -> float:
        """The seconds between two turns."""
        return TURN_S

    @abstractmethod
    def turn(self) -> None:
        """Read what the page shows once, and publish it; what cannot be read is said there."""

    def publish(self, sections: dict[str, Any]) -> None:
        """Put `sections` into the page, by name; others stay."""
        self.page = self.page.with_sections(sections)

    def notify(self, tone: str, text: str) -> None:
        """Say in the page, in `tone`, that the rest of it is old, and why (`text`)."""
        self.publish({"notice": {"tone": tone, "text": text, "stale": True}})

    def _run(self) -> None:
        """Take turns until the end."""
        while not self._ends.wait(self.pause_s):
            try:
                self.turn()
            except Exception as error:
                logger.exception("the page of %s is not up to date", self._what)
                text = f"the page cannot be brought up to date, a defect of edl: {error!r}"
                self.notify("bad", text)
