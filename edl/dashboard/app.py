"""Put the routes together to the applications that serve the page of a job, and of a cluster.

The page of a cluster has those of its jobs below ``/jobs/JOB/``. Only the routes of actions change
something (:mod:`edl.dashboard.actions`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from edl.dashboard.actions import ActionRunner, act
from edl.dashboard.answers import (
    MAX_TEXT,
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
from edl.dashboard.answers import words_of as words
from edl.dashboard.cluster_watcher import ClusterWatcher
from edl.dashboard.job_watcher import JobWatcher
from edl.dashboard.view.page import MAX_JOBS, PAGE, JobChoice
from edl.errors import EdlError

JobHandler = Callable[[Request, JobWatcher], Awaitable[Response]]
# Returns the watcher of the job of a name, which goes on for some time.
WatcherOf = Callable[[str], Awaitable[JobWatcher]]


def dashboard_app(
    watcher: JobWatcher, token: str, runner: ActionRunner | None = None
) -> SecureApplication:
    async def watcher_of(_job: str) -> JobWatcher:
        return watcher

    app = SecureApplication(job_routes(""), token)
    app.state.watcher_of, app.state.action_runner = watcher_of, runner or ActionRunner()
    return app


def job_routes(prefix: str) -> list[Route]:
    return [
        Route(f"{prefix}/", static("index.html")),
        Route(f"{prefix}/api/page", of_job(_page)),
        Route(f"{prefix}/api/stream", of_job(_stream)),
        Route(f"{prefix}/api/events", of_job(_events)),
        Route(f"{prefix}/api/generations/{{number}}", of_job(_generation)),
        Route(f"{prefix}/api/actions/{{verb}}", with_token(act), methods=["POST"]),
    ]


def of_job(handler: JobHandler) -> Handler:
    """Return a handler of requests with the token that asks `handler` about the job in the path."""

    async def found(request: Request) -> Response:
        try:
            watcher = await request.app.state.watcher_of(request.path_params.get("job", ""))
        except EdlError as error:
            return json_answer({"message": str(error)}, 404)
        return await handler(request, watcher)

    return with_token(found)


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
    return stream_page(request, watcher.page_in_use)


# --- The page of a cluster.


PERIODS_S = (900.0, 3600.0, 21600.0, 86400.0, 604800.0)  # of the chart


def cluster_app(
    watcher: ClusterWatcher,
    watcher_of: WatcherOf,
    token: str,
    runner: ActionRunner | None = None,
) -> SecureApplication:
    routes = [
        Route("/", static("cluster.html")),
        Route("/api/page", with_token(_cluster_page)),
        Route("/api/stream", with_token(_cluster_stream)),
        Route("/api/jobs", with_token(_jobs)),
        Route("/api/jobs/{job}", with_token(_job)),
        Route("/api/chart", with_token(_chart)),
        Route("/api/events", with_token(_cluster_events)),
        Route("/api/actions/{verb}", with_token(act), methods=["POST"]),
        *job_routes("/jobs/{job}"),
    ]
    app = SecureApplication(routes, token)
    app.state.watcher, app.state.watcher_of = watcher, watcher_of
    app.state.action_runner = runner or ActionRunner()
    return app


async def _cluster_page(request: Request) -> Response:
    return patch(request, request.app.state.watcher.page)


async def _cluster_stream(request: Request) -> Response:
    watcher: ClusterWatcher = request.app.state.watcher
    return stream_page(request, lambda: watcher.page)


async def _jobs(request: Request) -> Response:
    query = request.query_params
    choice = JobChoice(
        states=words(request, "states"),
        queue=query.get("queue", "")[:MAX_TEXT],
        text=query.get("text", "")[:MAX_TEXT],
        limit=min(max(1, whole_number(query.get("limit"), PAGE)), MAX_JOBS),
    )
    return json_answer(request.app.state.watcher.jobs(choice))


async def _job(request: Request) -> Response:
    try:
        return json_answer(request.app.state.watcher.facts(request.path_params["job"]))
    except EdlError as error:
        return json_answer({"message": str(error)}, 404)


async def _cluster_events(request: Request) -> Response:
    return json_answer({"events": request.app.state.watcher.events(event_choice(request))})


async def _chart(request: Request) -> Response:
    query = request.query_params
    asked_s = whole_number(query.get("period"), 3600)
    period_s = min(PERIODS_S, key=lambda one: abs(one - asked_s))
    texts = query.get("job", "")[:MAX_TEXT], query.get("host", "")[:MAX_TEXT]
    try:
        watcher: ClusterWatcher = request.app.state.watcher
        return json_answer(await asyncio.to_thread(watcher.chart, period_s, *texts))
    except EdlError as error:
        return json_answer({"message": str(error)}, 400)
