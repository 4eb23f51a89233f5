"""Put the routes together to the application that uvicorn serves: :func:`api_app`."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from edl.api import routes
from edl.api.cluster_pool import ClusterPool
from edl.api.records import ApiHealth, answer_schemas, component_schemas
from edl.api.requests import HttpError, RequestAuthenticator, answer, error_answer
from edl.api.routes import HistoryReader
from edl.errors import EdlError

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
