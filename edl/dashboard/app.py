"""Put the routes together to the application that serves the page of one job.

:func:`job_routes` are also those of a job in the page of a cluster
(:mod:`edl.dashboard.cluster_app`). Only the route of actions changes something
(:mod:`edl.dashboard.actions`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from edl.dashboard.actions import ActionRunner, action_handler
from edl.dashboard.answers import (
    Handler,
    SecureApplication,
    event_choice,
    json_answer,
    patch,
    static,
    stream_page,
    whole_number,
    with_token,
)
from edl.dashboard.job_watcher import JobWatcher, PublishedPage
from edl.errors import EdlError

JobHandler = Callable[[Request, JobWatcher], Awaitable[Response]]


class JobPages(Protocol):
    """The pages of jobs that a server shows, each kept up to date by a watcher."""

    async def watcher(self, job: str) -> JobWatcher:
        """Return the watcher of the job named `job`, which goes on for some time."""

    def page(self, job: str, watcher: JobWatcher) -> PublishedPage:
        """Return the newest page of the job, whose `watcher` is still needed."""


class OneJobPage:
    """The page of the only job of a server."""

    def __init__(self, watcher: JobWatcher) -> None:
        self._watcher = watcher

    async def watcher(self, job: str) -> JobWatcher:
        return self._watcher

    def page(self, job: str, watcher: JobWatcher) -> PublishedPage:
        """Return the newest page of the job."""
        return self._watcher.page


def dashboard_app(
    watcher: JobWatcher, token: str, runner: ActionRunner | None = None
) -> SecureApplication:
    """Return the application that serves the page of one job."""
    app = SecureApplication(job_routes(""), token)
    app.state.jobs, app.state.action_runner = OneJobPage(watcher), runner or ActionRunner()
    return app


def job_routes(prefix: str) -> list[Route]:
    """Return the routes of the page of a job."""
    return [
        Route(f"{prefix}/", static("index.html")),
        Route(f"{prefix}/api/page", of_job(_page)),
        Route(f"{prefix}/api/stream", of_job(_stream)),
        Route(f"{prefix}/api/events", of_job(_events)),
        Route(f"{prefix}/api/generations/{{number}}", of_job(_generation)),
        Route(f"{prefix}/api/actions/{{verb}}", action_handler(), methods=["POST"]),
    ]


def of_job(handler: JobHandler) -> Handler:
    """Return a handler of requests with the token that asks `handler` about the job in the path."""

    async def found(request: Request) -> Response:
        try:
            watcher = await request.app.state.jobs.watcher(_job_of(request))
        except EdlError as error:
            return json_answer({"message": str(error)}, 404)
        return await handler(request, watcher)

    return with_token(found)


def _job_of(request: Request) -> str:
    name: str = request.path_params.get("job", "")
    return name


async def _page(request: Request, watcher: JobWatcher) -> Response:
    return patch(request, watcher.page)


async def _events(request: Request, watcher: JobWatcher) -> Response:
    return json_answer({"events": watcher.events(event_choice(request))})


async def _generation(request: Request, watcher: JobWatcher) -> Response:
    """Answer with the cost of the switch into a generation, by worker; null: it is not known."""
    number = whole_number(request.path_params["number"], None)
    if number is None:
        return json_answer({"message": "this is not the number of a generation"}, 404)
    return json_answer({"switch": watcher.switch(number)})


async def _stream(request: Request, watcher: JobWatcher) -> Response:
    """Answer with server-sent events: the whole page, then the sections that change."""
    jobs: JobPages = request.app.state.jobs
    job = _job_of(request)
    return stream_page(request, lambda: jobs.page(job, watcher))
