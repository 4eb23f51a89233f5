"""Put the routes together to the application that uvicorn serves: :func:`api_app`."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from edl.api import cluster_routes, history_routes, jobs
from edl.api.answers import HttpRefusal, answer, refusal
from edl.api.authentication import Gatekeeper
from edl.api.cluster_pool import ClusterPool
from edl.api.history_routes import FreshHistory
from edl.api.records import Health
from edl.api.schemas import answers, component_schemas
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
    gatekeeper: Gatekeeper | None = None,
    pool: ClusterPool | None = None,
    history: FreshHistory | None = None,
) -> FastAPI:
    """Return the application of the API; without arguments it can only be described.

    Args:
        gatekeeper: Accepts the signatures and tokens of callers.
        pool: Asks the cluster.
        history: The history of the cluster.
    """
    app = FastAPI(
        title=TITLE,
        version="1",
        docs_url=None,  # its page would load scripts from elsewhere
        redoc_url=None,
    )
    app.state.gatekeeper, app.state.pool, app.state.history = gatekeeper, pool, history
    app.state.ends = False  # then waits are answered at once
    for kind in (HttpRefusal, EdlError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, refusal)
    for router in (jobs.router, cluster_routes.router, history_routes.router):
        app.include_router(router)
    app.get("/health", responses={200: answers(Health)[200]}, tags=["health"])(health)
    app.openapi = lambda: described(app)  # type: ignore[method-assign]
    return app


async def health(request: Request) -> Response:
    """Say that the API serves requests. It needs no signature, and asks nobody."""
    return answer(request, Health())


def described(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI description of the application."""
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
