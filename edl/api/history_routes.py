"""The routes about the past: jobs, who had which slots when, and what users have asked for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Annotated, TypeVar

from fastapi import APIRouter, Query, Request, Response

from edl.api.jobs import After, By, pool_of
from edl.api.records import AuditList, JobHistoryList, SlotIntervalList, answer_schemas
from edl.api.requests import answer
from edl.client import Cluster
from edl.cluster.client.history_file import MOST_ROWS, HistoryFile
from edl.errors import DataError

FRESH_S = 1.0  # how old an answer may be
FILLING_S = 2.0  # how long a request waits for another one to add what is new

T = TypeVar("T")

router = APIRouter(prefix="/v1/history", tags=["history"])
JobName = Annotated[str | None, Query(description="Only what is about the job of this name.")]
Limit = Annotated[int, Query(description="No more than so many.", ge=1, le=MOST_ROWS)]
Seconds = Annotated[float, Query(ge=0.0, le=1e12)]


class HistoryReader:
    """The history of a cluster, with the events until `FRESH_S` seconds ago; threads share it."""

    def __init__(self, file: HistoryFile) -> None:
        self._file = file
        self._filling = threading.Lock()
        self._filled_s = float("-inf")

    def of(self, cluster: Cluster) -> HistoryFile:
        """Return the file, after new events of `cluster` were added to it."""
        if self._filling.acquire(timeout=FILLING_S):
            try:
                if time.monotonic() - self._filled_s >= FRESH_S:
                    self._file.fill(lambda after: cluster.events(after=after), cluster.uid)
                    self._filled_s = time.monotonic()
            finally:
                self._filling.release()
        elif not self._file.is_chosen:
            raise DataError("the history of the cluster is read for the first time; ask again")
        return self._file


async def _ask(request: Request, by: str, question: Callable[[HistoryFile], T]) -> T:
    history: HistoryReader = request.app.state.history
    return await pool_of(request).ask(by, lambda cluster: question(history.of(cluster)))


@router.get("/jobs", responses=answer_schemas(JobHistoryList))
async def history_of_jobs(
    request: Request,
    caller: By,
    job: JobName = None,
    since_s: Seconds = 0.0,
    limit: Limit = 100,
) -> Response:
    """List jobs, also removed ones, with their slot-seconds; those submitted last come first."""
    found = await _ask(request, caller.by, lambda one: one.jobs(time.time(), job, since_s, limit))
    return answer(request, JobHistoryList(found))


@router.get("/slots", responses=answer_schemas(SlotIntervalList))
async def history_of_slots(
    request: Request,
    caller: By,
    begin_s: Seconds = 0.0,
    end_s: Seconds = 1e12,
    job: JobName = None,
    limit: Limit = MOST_ROWS,
) -> Response:
    """List who had which slots between two times, as a Gantt chart shows it, the earliest first."""
    found = await _ask(request, caller.by, lambda one: one.slots(begin_s, end_s, job, limit))
    return answer(request, SlotIntervalList(found))


@router.get("/audit", responses=answer_schemas(AuditList))
async def audit(
    request: Request, caller: By, after: After = -1, job: JobName = None, limit: Limit = MOST_ROWS
) -> Response:
    """List what users have asked for, the oldest first."""
    found = await _ask(request, caller.by, lambda one: one.audit(after, job, limit))
    return answer(request, AuditList(found))
