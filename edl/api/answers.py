"""Answer an HTTP request with JSON: a record, or an error with the sentence of the command line."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from edl.core.json_text import json_text
from edl.core.record import Record
from edl.errors import (
    AccessDenied,
    ConfigError,
    CoordinationError,
    DataError,
    EdlError,
    ManifestError,
    RequestError,
    TimedOut,
    UnknownCluster,
    UnknownJob,
    UsageError,
)

logger = logging.getLogger(__name__)

JSON = "application/json"
STATUSES: tuple[tuple[type[EdlError], int], ...] = (  # the first that fits counts
    (AccessDenied, 403),
    (UnknownJob, 404),
    (UnknownCluster, 404),
    (ManifestError, 422),
    (ConfigError, 422),
    (UsageError, 409),
    (CoordinationError, 503),
    (TimedOut, 504),
    (RequestError, 409),
    (DataError, 503),  # of the history's file
    (EdlError, 409),
)
TRY_AGAIN_S = 1  # what the header Retry-After says with 503


@dataclass(frozen=True)
class ApiError(Record):
    """The answer to a request that was not done."""

    error: Annotated[str, "name of the error, as in `edl.errors`"]
    message: Annotated[str, "what happened, and what to do next, in a sentence"]
    key: Annotated[
        str, "the key of the manifest that is wrong, such as `batch.min`; else empty"
    ] = ""
    line: Annotated[int, "the line of the manifest that is wrong, from 1; 0: none"] = 0


class HttpError(Exception):
    """A request that the API refuses by itself, before it asks the cluster."""

    def __init__(
        self, status: int, error: str, message: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.error = error
        self.headers = dict(headers or {})


def answer(request: Request, value: Any, status: int = 200) -> Response:
    """Return the HTTP answer to `request` that has `value`, a record, as JSON."""
    return _response(request, status, value, {})


def error_answer(request: Request, error: Exception) -> Response:
    """Return the HTTP answer to `request` that says why it was not done."""
    if isinstance(error, HttpError):
        headers = error.headers
        status, body = error.status, ApiError(error.error, str(error))
    elif isinstance(error, EdlError):
        status, headers = _status(error), {}
        place = (error.key, error.line) if isinstance(error, ManifestError) else ("", 0)
        body = ApiError(type(error).__name__, str(error), *place)
    elif isinstance(error, RequestValidationError):
        status, headers, body = 422, {}, ApiError("UsageError", _described(error))
    elif isinstance(error, HTTPException):
        status, headers = error.status_code, dict(error.headers or {})
        what = f"{request.method} {request.url.path}"
        body = ApiError("UnknownPath", f"{what}: {error.detail}; see /openapi.json")
    else:
        logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
        status, headers = 500, {}
        body = ApiError("Defect", "this is a defect of edl; the log of the API has more")
    if status == 503:
        headers = {**headers, "Retry-After": str(TRY_AGAIN_S)}
    return _response(request, status, body, headers)


def _response(request: Request, status: int, value: Any, headers: Mapping[str, str]) -> Response:
    """Return the HTTP answer with `value` as JSON, and with the nonce for the next request."""
    found = dict(headers)
    nonce = getattr(request.state, "next_nonce", "")
    if nonce:
        found["Authentication-Info"] = f'nextnonce="{nonce}"'
    return Response(json_text(value) + b"\n", status, found, JSON)


def _status(error: EdlError) -> int:
    return next(status for kind, status in STATUSES if isinstance(error, kind))


def _described(error: RequestValidationError) -> str:
    """Return a sentence that says which parameter of a request is wrong, and why."""
    parts = []
    for one in error.errors():
        place, *name = (str(part) for part in one["loc"])
        parts.append(f"{'.'.join(name) or place}: {one['msg']}")
    return f"{'; '.join(parts)}; see /openapi.json"
