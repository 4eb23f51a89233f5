"""What the leader of a cluster does in each of its turns."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from edl.cluster.controller.controller import BUSY_S, ControllerTerm


class Term(ControllerTerm):
    def __init__(self) -> None:
        self.tidied = 0
        self._reasons: Any = SimpleNamespace(tell=lambda *_: 1.0)
        self._tenants: Any = SimpleNamespace(serve=lambda *_: 1.0)
        self._plans: Any = SimpleNamespace(write=lambda read, found: (found, []))
        self._runs: Any = SimpleNamespace(count=0)
        self._now_s = lambda: 0.0
        self._leases = None

    def _read(self) -> Any:
        return SimpleNamespace(snapshot=SimpleNamespace(jobs=(), hosts=()), unread=())

    def _plan(self, read: Any, now_s: float) -> Any:
        return SimpleNamespace(acts=True, lives={}, reasons={}, surplus={}, next_s=1.0)

    def _tell(self, events: Any) -> None:
        pass

    def _carry_out(self, read: Any, found: Any) -> None:
        pass

    def _tidy(self, read: Any) -> None:
        self.tidied += 1


def test_old_records_are_removed_though_there_is_always_something_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 1000.0
    monkeypatch.setattr("edl.cluster.controller.controller.time.monotonic", lambda: now_s)
    term = Term()
    term._removed_s = now_s
    term.turn()
    assert term.tidied == 0
    now_s += BUSY_S
    term.turn()
    assert term.tidied == 1
