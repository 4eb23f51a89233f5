"""Serve the API with uvicorn: :func:`run_server`."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from types import FrameType

from edl.api.app import api_app
from edl.api.cluster_pool import ClusterPool
from edl.api.embedded_server import EmbeddedServer, TlsFiles, server_config
from edl.api.listening import ListenAddress, listener
from edl.api.requests import RequestAuthenticator
from edl.api.routes import HistoryReader
from edl.cluster.client.client import Cluster
from edl.cluster.client.history_file import HistoryFile, history_path
from edl.errors import UsageError
from edl.host.signals import TO_END, handled
from edl.zookeeper.access import Access

CONNECTIONS = 1000  # at most; further requests get 503
END_S = 5.0  # for the requests that are being answered


def run_server(
    hosts: str,
    access: Access,
    listen: ListenAddress,
    tls: TlsFiles | None,
    say: Callable[[str], None],
) -> None:
    authenticator = RequestAuthenticator(access.secret, access.job, tls is not None)
    pool = ClusterPool(lambda: Cluster(access.job, hosts, secret=access.secret))
    app = api_app(authenticator, pool, HistoryReader(HistoryFile(history_path(access.job))))
    config = server_config(app, CONNECTIONS, END_S, tls)
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"the certificate or its key cannot be used: {error}") from None
    with listener(listen) as opened:
        server = EmbeddedServer(config)

        def end(number: int, frame: FrameType | None) -> None:
            server.should_exit = app.state.ends = True

        scheme = "https" if tls else "http"
        port = opened.getsockname()[1]
        say(f"serves the HTTP API at {scheme}://{ListenAddress(listen.address, port)}")
        if tls is None and not listen.is_loopback:
            say(
                "it is not encrypted: a listener on the network reads it; see --tls-cert, --tls-key"
            )
        try:
            with handled(TO_END, end):
                server.run(sockets=[opened])
        finally:
            pool.close()
