"""Serve the API with uvicorn: its application, :func:`api_app`, and :func:`run_server`."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from types import FrameType
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from edl.api import routes
from edl.api.embedded_server import EmbeddedServer, TlsFiles, server_config
from edl.api.listening import ListenAddress, listener
from edl.api.records import ApiHealth, answer_schemas, component_schemas
from edl.api.requests import HttpError, RequestAuthenticator, answer, error_answer
from edl.api.routes import ClusterPool, HistoryReader
from edl.cluster.client.client import Cluster
from edl.cluster.client.history_file import HistoryFile, history_path
from edl.errors import EdlError, UsageError
from edl.host.signals import TO_END, handled
from edl.zookeeper.access import Access

# ------------------------------------------------------------
# Put the routes together to the application that uvicorn serves: `api_app`.


TITLE = "edl: a cluster of elastic jobs"
SIGNATURES = {
    "signature": {
        "type": "apiKey",
        "in": "header",
        "name": "Authorization",
        "description": "A signature of the request; see docs/reference/http-api.md",
    },
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "A token of `edl cluster token`, over TLS only",
    },
}


def api_app(
    authenticator: RequestAuthenticator | None = None,
    pool: ClusterPool | None = None,
    history: HistoryReader | None = None,
) -> FastAPI:
    """Return the application of the API; without arguments it can only be described."""
    app = FastAPI(
        title=TITLE,
        version="1",
        docs_url=None,  # its page would load scripts from elsewhere
        redoc_url=None,
    )
    app.state.authenticator, app.state.pool, app.state.history = authenticator, pool, history
    app.state.ends = False  # then waits are answered at once
    for kind in (HttpError, EdlError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, error_answer)
    for router in (routes.of_jobs, routes.of_cluster, routes.of_history):
        app.include_router(router)
    app.get("/health", responses={200: answer_schemas(ApiHealth)[200]}, tags=["health"])(health)
    app.openapi = lambda: openapi_of(app)  # type: ignore[method-assign]
    return app


async def health(request: Request) -> Response:
    """Say that the API serves requests. It needs no signature, and asks nobody."""
    return answer(request, ApiHealth())


def openapi_of(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        found = FastAPI.openapi(app)
        parts = found.setdefault("components", {})
        parts["schemas"] = dict(sorted(component_schemas().items()))
        parts["securitySchemes"] = SIGNATURES
        for path, operations in found["paths"].items():
            for operation in operations.values():
                if path.startswith("/v1"):
                    operation["security"] = [{name: []} for name in SIGNATURES]
        app.openapi_schema = found
    return app.openapi_schema


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
