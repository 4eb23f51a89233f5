"""Serve the page of a job, or of a cluster, with uvicorn."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any

from edl.api.embedded_server import EmbeddedServer, LimitProtocol, server_config
from edl.api.listening import ListenAddress, listener
from edl.client.job import Job
from edl.cluster.client.access import user_here
from edl.cluster.client.client import Cluster
from edl.cluster.client.history_file import HistoryFile, history_path
from edl.cluster.store import ClusterStore
from edl.dashboard.actions import ActionRunner, act_on_cluster, act_on_job, check_of_cluster
from edl.dashboard.answers import HEADERS, SecureApplication, view_token
from edl.dashboard.app import cluster_app, dashboard_app
from edl.dashboard.cluster_watcher import ClusterJobPages, ClusterWatcher
from edl.dashboard.job_watcher import JobWatcher
from edl.errors import UsageError
from edl.host.signals import TO_END, handled
from edl.zookeeper.access import Access
from edl.zookeeper.store import JobStore

# --- Send the headers of all answers also with those that uvicorn gives by itself.


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
            app = cluster_app(watcher, pages.watcher, token, runner)
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
