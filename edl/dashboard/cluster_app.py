"""Put the routes together to the application that serves the page of a cluster.

Beside its own page it serves that of each job, below ``/jobs/JOB/``. Only the routes of actions
change something (:mod:`edl.dashboard.actions`).
"""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

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


def cluster_app(
    watcher: ClusterWatcher,
    jobs: JobPages,
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
        Route("/api/actions/{verb}", action_handler(), methods=["POST"]),
        *job_routes("/jobs/{job}"),
    ]
    app = SecureApplication(routes, token)
    app.state.watcher, app.state.jobs = watcher, jobs
    app.state.action_runner = runner or ActionRunner()
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
