"""Serve the page of a job with uvicorn: :func:`run_dashboard`."""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType

from edl.api.embedded_server import EmbeddedServer, server_config
from edl.api.listening import ListenAddress, listener
from edl.coordination.job_store import JobStore
from edl.dashboard.app import dashboard_app, view_token
from edl.dashboard.job_watcher import JobWatcher
from edl.errors import UsageError
from edl.launch.signals import TO_END, handled

CONNECTIONS = 256  # at most; further requests get 503
END_S = 3.0  # for the requests that are being answered
WHAT = "the dashboard"


def run_dashboard(store: JobStore, listen: ListenAddress, say: Callable[[str], None]) -> None:
    """Serve the page of a job until SIGTERM or Ctrl-C, also after the job's end.

    Args:
        store: The records of the job, in a session that has proved the job's secret.
        listen: Where to listen.
        say: Shows a sentence to whoever has started this process.

    Raises:
        UsageError: nobody can listen there, or the secret of the job is not known.
        UnknownJob: there is no such job.
        CoordinationError: ZooKeeper does not answer.
    """
    access = store.session.access
    if access is None:
        raise UsageError(f"the secret of job {store.name} is not known here")
    token = view_token(access.secret, access.job)
    store.snapshot()  # what is wrong is said here, and not on the page
    with listener(listen, WHAT) as opened, JobWatcher(store) as watcher:
        app = dashboard_app(watcher, token)
        server = EmbeddedServer(server_config(app, CONNECTIONS, END_S))

        def end(number: int, frame: FrameType | None) -> None:
            server.should_exit = app.state.ends = True

        address = ListenAddress(listen.address, opened.getsockname()[1])
        say(f"shows job {store.name} at http://{address}/#token={token}")
        say("who has this address reads the job; it changes nothing. Ctrl-C ends the server")
        if not listen.is_loopback:
            say("it is not encrypted: a listener on the network reads the page and its token")
        with handled(TO_END, end):
            server.run(sockets=[opened])
