"""Serve the page of a job, or of a cluster, with uvicorn: the applications, and the servers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from edl.api.embedded_server import EmbeddedServer, LimitProtocol, server_config
from edl.api.listening import ListenAddress, listener
from edl.client.job import Job
from edl.cluster.client.access import user_here
from edl.cluster.client.client import Cluster
from edl.cluster.client.history_file import HistoryFile, history_path
from edl.cluster.store import ClusterStore
from edl.dashboard.actions import (
    ActionRunner,
    act_on_cluster,
    act_on_job,
    action_handler,
    check_of_cluster,
)
from edl.dashboard.answers import (
    HEADERS,
    MAX_TEXT,
    Handler,
    SecureApplication,
    event_choice,
    json_answer,
    patch,
    static,
    stream_page,
    view_token,
    whole_number,
    with_token,
)
from edl.dashboard.answers import words_of as words
from edl.dashboard.cluster_watcher import ClusterJobPages, ClusterWatcher
from edl.dashboard.job_watcher import JobWatcher, PublishedPage
from edl.dashboard.view.page import MAX_JOBS, PAGE, JobChoice
from edl.errors import EdlError, UsageError
from edl.host.signals import TO_END, handled
from edl.zookeeper.access import Access
from edl.zookeeper.store import JobStore

# ------------------------------------------------------------
# Put the routes together to the applications that serve the page of a job, and of a cluster.
#
# The page of a cluster has those of its jobs below `/jobs/JOB/`. Only the routes of actions change
# something (`edl.dashboard.actions`).


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
        return self._watcher.page


def dashboard_app(
    watcher: JobWatcher, token: str, runner: ActionRunner | None = None
) -> SecureApplication:
    app = SecureApplication(job_routes(""), token)
    app.state.jobs, app.state.action_runner = OneJobPage(watcher), runner or ActionRunner()
    return app


def job_routes(prefix: str) -> list[Route]:
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
    jobs: JobPages = request.app.state.jobs
    job = _job_of(request)
    return stream_page(request, lambda: jobs.page(job, watcher))


# --- The page of a cluster.


PERIODS_S = (900.0, 3600.0, 21600.0, 86400.0, 604800.0)  # of the chart


def cluster_app(
    watcher: ClusterWatcher,
    jobs: JobPages,
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
        Route("/api/actions/{verb}", action_handler(), methods=["POST"]),
        *job_routes("/jobs/{job}"),
    ]
    app = SecureApplication(routes, token)
    app.state.watcher, app.state.jobs = watcher, jobs
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


# ------------------------------------------------------------
# Send the headers of all answers also with those that uvicorn gives by itself.


class SecureProtocol(LimitProtocol):
    """A connection whose answer to what is no HTTP has the `HEADERS` of the page."""

    def send_400_response(self, msg: str) -> None:
        """Answer to bytes that are no request, with the sentence `msg`, and close."""
        state = self.server_state
        before = state.default_headers
        more = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
        state.default_headers = [*before, *more]
        try:
            super().send_400_response(msg)
        finally:
            state.default_headers = before


CONNECTIONS = 256  # at most; further requests get 503
END_S = 3.0  # for the requests that are being answered
IDLE_POLL_S = 15  # between two looks for pages of jobs that nobody looks at
WHAT = "the dashboard"
Say = Callable[[str], None]  # shows a sentence to whoever has started this process

# Opens the records of the cluster in a new session, as the one who looks may read them.
OpenCluster = Callable[[], AbstractContextManager[ClusterStore]]


def run_dashboard(
    store: JobStore, listen: ListenAddress, say: Say, has_actions: bool = False
) -> None:
    access = store.session.access
    if access is None:
        raise UsageError(f"the secret of job {store.name} is not known here")
    token, secret = view_token(access.secret, access.job), access.secret

    def act(job: str, verb: str, values: Mapping[str, Any]) -> str:
        return act_on_job(Job(store.name, store.session.hosts, secret=secret), verb, values)

    store.snapshot()  # what is wrong is said here, and not on the page
    runner = ActionRunner(act if has_actions else None)
    with listener(listen, WHAT) as opened, JobWatcher(store) as watcher:
        app = dashboard_app(watcher, token, runner)
        _serve(app, opened, listen, f"job {store.name}", say)


def run_cluster_dashboard(
    open_cluster: OpenCluster, listen: ListenAddress, say: Say, has_actions: bool = False
) -> None:
    @contextmanager
    def open_job(job: str) -> Iterator[JobStore]:
        with open_cluster() as cluster:
            access, session = access_of_job(cluster, job), cluster.nodes.session
            session.identify(access)
            yield JobStore(session, access.job)

    def act(job: str, verb: str, values: Mapping[str, Any]) -> str:
        with open_cluster() as cluster:
            name, hosts = cluster.paths.name, cluster.nodes.session.hosts
            access = access_of_job(cluster, job) if job else None
        if access is not None:
            check_of_cluster(access.job, verb)
            return act_on_job(Job(access.job, hosts, secret=access.secret), verb, values)
        client = Cluster(name, hosts)
        client.by = f"{user_here()} through the dashboard"
        return act_on_cluster(client, verb, values)

    with open_cluster() as store:
        name, access = store.paths.name, store.nodes.session.access
        if access is None:
            raise UsageError(f"the secret of cluster {name} is not known here")
        token = view_token(access.secret, access.job)
        history = HistoryFile(history_path(name))
        pages = ClusterJobPages(open_job)
        with listener(listen, WHAT) as opened, ClusterWatcher(store, history) as watcher:
            runner = ActionRunner(act if has_actions else None)
            app = cluster_app(watcher, pages, token, runner)
            try:
                _serve(app, opened, listen, f"cluster {name}", say, pages.close_idle)
            finally:
                pages.close()


def access_of_job(cluster: ClusterStore, job: str) -> Access:
    found = cluster.jobs.get(job)
    secret = cluster.jobs.secret(found.name)
    if secret is None:
        raise UsageError(
            f"job {found.name} has not started yet, so it has no page; that of its cluster, "
            "`edl dashboard` without JOB, says why it waits"
        )
    return Access(found.name, secret)


def _serve(
    app: SecureApplication,
    opened: socket.socket,
    listen: ListenAddress,
    what: str,
    say: Say,
    tidy: Callable[[], Awaitable[None]] | None = None,
) -> None:
    config = server_config(app, CONNECTIONS, END_S)
    config.http = SecureProtocol
    config.callback_notify, config.timeout_notify = tidy, IDLE_POLL_S
    server = EmbeddedServer(config)

    def end(number: int, frame: FrameType | None) -> None:
        server.should_exit = app.state.ends = True

    address = ListenAddress(listen.address, opened.getsockname()[1])
    token, actions, noun = app.state.token, app.state.action_runner.token, what.partition(" ")[0]
    say(f"shows {what} at http://{address}/#token={token}")
    if actions:
        say(f"and changes it at http://{address}/#token={token}&actions={actions}")
        say(f"who has the first address reads the {noun}, who has the second one changes it, too")
        say("the second one is good until this server ends. Ctrl-C ends the server")
    else:
        say(f"who has this address reads the {noun}; it changes nothing. Ctrl-C ends the server")
    if not listen.is_loopback:
        say("it is not encrypted: a listener on the network reads the page and its tokens")
    with handled(TO_END, end):
        server.run(sockets=[opened])
