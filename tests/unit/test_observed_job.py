"""A job that is read again and again: what is due after a read that failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from shown_job import ShownStore, snapshot

from edl.client.job import ObservedJob
from edl.errors import CoordinationError
from edl.job.snapshot import Snapshot
from edl.records import JobState


class WatchedStore(ShownStore):
    def snapshot(self, wake: Callable[[], None] | None = None) -> Snapshot:
        assert wake is not None
        found = super().snapshot(wake)
        self.wake = wake
        return found


def test_a_read_that_failed_is_due_again_also_of_a_job_that_has_ended() -> None:
    store = WatchedStore(snapshot(state=JobState.FINISHED))
    given: Any = store
    job = ObservedJob(given)
    assert job.read() is store.now
    assert (job.due_reads, store.reads) == (0, 1)
    store.wake()
    store.error = CoordinationError("no connection to ZooKeeper")
    for _ in range(2):
        with pytest.raises(CoordinationError):
            job.read()
        assert job.due_reads == 4
    store.error, store.now = None, snapshot()  # the name was started again
    assert job.read() is store.now
    assert job.due_reads == 3
