"""Put the routes together to the application that serves the page of a cluster.

Beside its own page it serves that of each job, below ``/jobs/JOB/``. Only the routes of actions
change something (:mod:`edl.dashboard.actions`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from edl.cluster.status import RequestForecast
from edl.dashboard.actions import ActionRunner, action_handler
from edl.dashboard.answers import (
    MOST_TEXT,
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
from edl.dashboard.app import JobPages, job_routes
from edl.dashboard.cluster_watcher import ClusterWatcher
from edl.dashboard.view.page import MOST_JOBS, PAGE, JobChoice
from edl.errors import EdlError

PERIODS_S = (900.0, 3600.0, 21600.0, 86400.0, 604800.0)  # of the chart
FORECASTS = 1  # that are computed at the same time: each plans the whole cluster twice
MOST_WAITING = 8  # for that

Forecast = Callable[[Mapping[str, str]], RequestForecast]
"""Returns which slots a job would get; the values of its manifest are given as texts, by key."""


def cluster_app(
    watcher: ClusterWatcher,
    jobs: JobPages,
    forecast: Forecast,
    token: str,
    runner: ActionRunner | None = None,
) -> SecureApplication:
    """Return the application that serves the page of a cluster and those of its jobs."""
    routes = [
        Route("/", static("cluster.html")),
        Route("/api/page", with_token(_page)),
        Route("/api/stream", with_token(_stream)),
        Route("/api/jobs", with_token(_jobs)),
        Route("/api/jobs/{job}", with_token(_job)),
        Route("/api/chart", with_token(_chart)),
        Route("/api/events", with_token(_events)),
        Route("/api/what-if", with_token(_what_if)),
        Route("/api/actions/{verb}", action_handler(), methods=["POST"]),
        *job_routes("/jobs/{job}"),
    ]
    app = SecureApplication(routes, token)
    app.state.watcher, app.state.jobs, app.state.forecast = watcher, jobs, forecast
    app.state.action_runner = runner or ActionRunner()
    app.state.forecasts, app.state.asked = asyncio.Semaphore(FORECASTS), 0
    return app


async def _page(request: Request) -> Response:
    return patch(request, request.app.state.watcher.page)


async def _stream(request: Request) -> Response:
    watcher: ClusterWatcher = request.app.state.watcher
    return stream_page(request, lambda: watcher.page)


async def _jobs(request: Request) -> Response:
    """Answer with the jobs that the query chooses, and how many there are."""
    query = request.query_params
    choice = JobChoice(
        states=words(request, "states"),
        queue=query.get("queue", "")[:MOST_TEXT],
        text=query.get("text", "")[:MOST_TEXT],
        limit=min(max(1, whole_number(query.get("limit"), PAGE)), MOST_JOBS),
    )
    return json_answer(request.app.state.watcher.jobs(choice))


async def _job(request: Request) -> Response:
    """Answer with what is shown of a job beside its status."""
    try:
        return json_answer(request.app.state.watcher.facts(request.path_params["job"]))
    except EdlError as error:
        return json_answer({"message": str(error)}, 404)


async def _events(request: Request) -> Response:
    return json_answer({"events": request.app.state.watcher.events(event_choice(request))})


async def _chart(request: Request) -> Response:
    """Answer with who had which slots in the last seconds, one of `PERIODS_S`."""
    query = request.query_params
    asked_s = whole_number(query.get("period"), 3600)
    period_s = min(PERIODS_S, key=lambda one: abs(one - asked_s))
    texts = query.get("job", "")[:MOST_TEXT], query.get("host", "")[:MOST_TEXT]
    try:
        watcher: ClusterWatcher = request.app.state.watcher
        return json_answer(await asyncio.to_thread(watcher.chart, period_s, *texts))
    except EdlError as error:
        return json_answer({"message": str(error)}, 400)


async def _what_if(request: Request) -> Response:
    """Answer with the slots that a job would get now, whose manifest the query has."""
    state = request.app.state
    if state.asked >= MOST_WAITING:
        return json_answer({"message": "others ask the same just now; try again"}, 503)
    values = {key: value[:MOST_TEXT] for key, value in request.query_params.items()}
    state.asked += 1
    try:
        async with state.forecasts:
            return json_answer(await asyncio.to_thread(state.forecast, values))
    except EdlError as error:
        return json_answer({"message": str(error)}, 400)
    finally:
        state.asked -= 1
