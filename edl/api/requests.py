"""Read what the body of a request has: a manifest, or a small record."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, TypeVar

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from edl.cluster.manifest import (
    MAX_BYTES,
    JobManifest,
    decoded_manifest,
    manifest_of_values,
    parse_manifest,
)
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
from edl.http.signing import (
    AUDIENCE,
    BEARER,
    SCHEME,
    Authenticator,
    AuthenticatorLimits,
    api_key,
    decoded_json,
    token_end_s,
)
from edl.record import Record
from edl.text import json_text

logger = logging.getLogger(__name__)


# ------------------------------------------------------------
# Answer an HTTP request with JSON: a record, or an error with the sentence of the command line.


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


def error_answer(request: Request, error: Exception) -> Response:
    if isinstance(error, HttpError):
        headers = error.headers
        status, body = error.status, ApiError(error.error, str(error))
    elif isinstance(error, EdlError):
        status = next(status for kind, status in STATUSES if isinstance(error, kind))
        headers = {}
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
    return answer(request, body, status, headers)


def answer(
    request: Request,
    value: Any,
    status: int = 200,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> Response:
    found = dict(headers)
    nonce = getattr(request.state, "next_nonce", "")
    if nonce:
        found["Authentication-Info"] = f'nextnonce="{nonce}"'
    return Response(json_text(value) + b"\n", status, found, JSON)


def _described(error: RequestValidationError) -> str:
    parts = []
    for one in error.errors():
        place, *name = (str(part) for part in one["loc"])
        parts.append(f"{'.'.join(name) or place}: {one['msg']}")
    return f"{'; '.join(parts)}; see /openapi.json"


YAML = "application/yaml"
SOURCE = "the manifest"  # in messages
T = TypeVar("T")


def sent_manifest(request: Request) -> JobManifest:
    body: bytes = request.state.body
    kind = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
    if kind == YAML:
        manifest = parse_manifest(decoded_manifest(body, SOURCE), SOURCE)
    else:
        manifest = manifest_of_values(sent_record(request, dict[str, Any]))
    if not manifest.cwd.startswith("/"):
        what = f"cwd is {manifest.cwd!r}" if manifest.cwd else "there is no cwd"
        # The API's own working directory and home mean nothing to the sender.
        raise ManifestError("", 0, f"{what}; over HTTP it must be an absolute path", "cwd")
    return manifest.with_absolute_paths("/", _no_home)


def sent_record(request: Request, kind: type[T]) -> T:
    media = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
    if media != JSON:
        raise HttpError(422, "UsageError", f"the body is of type {media!r}; send {JSON}")
    try:
        return decoded_json(request.state.body, kind)
    except UsageError as error:
        raise HttpError(422, "UsageError", f"the body is not what is expected: {error}") from None


def _no_home() -> str:
    raise ManifestError("", 0, "a path begins with ~; over HTTP write absolute paths")


# ------------------------------------------------------------
# Find out who has sent an HTTP request: `who`, which every route but two calls.
#
# A caller proves that it knows the secret of the cluster, in one of two ways:
#
# - It signs the request (`signing`), with a key that is made from the secret. No secret is sent,
#   and a recorded request is not accepted again. An answer to a signed request has the nonce for
#   the next one, so that a caller that keeps it sends each request once.
# - It sends a token, `Authorization: Bearer ...`. Whoever sees a token can use it, so tokens are
#   accepted over TLS only.


BODY_S = 10.0  # for the body of a request to come
LIMITS = AuthenticatorLimits(used_nonces=65536)  # 2,000 signed requests a second for 30 s


class RequestAuthenticator:
    """The keys of a cluster by which the API accepts signed requests and bearer tokens."""

    def __init__(self, secret: str, cluster: str, tls: bool) -> None:
        self.signatures = Authenticator(api_key(secret, cluster), limits=LIMITS)
        self.signatures.worker = AUDIENCE  # the nonce says for which process a signature is
        self.secret = secret
        self.cluster = cluster
        self.tls = tls

    def unsigned(self, message: str) -> HttpError:
        """Return the refusal of a request whose sender is not known, with a nonce to sign with."""
        challenge = {"WWW-Authenticate": f"{SCHEME} {self.signatures.nonce()}"}
        return HttpError(401, "Unauthenticated", message, challenge)


async def who(request: Request) -> str:
    """Return who has sent `request`, for the event log; the body is in `request.state.body`."""
    request.state.body = body = await read_body(request)
    authenticator: RequestAuthenticator = request.app.state.authenticator
    given = request.headers.get("authorization", "")
    scheme, _, token = given.partition(" ")
    if scheme.lower() == BEARER.lower():
        if not authenticator.tls:
            why = "bearer tokens are accepted over TLS only; sign the request"
            raise authenticator.unsigned(why)
        end_s = token_end_s(authenticator.secret, authenticator.cluster, token.strip())
        if end_s is None:
            raise authenticator.unsigned("the bearer token is not one of this cluster's")
        if end_s <= time.time():
            why = "the bearer token has expired; `edl cluster token` makes another"
            raise authenticator.unsigned(why)
    elif not given:
        raise authenticator.unsigned("the request is not signed; sign it with the nonce given here")
    elif authenticator.signatures.accepts(given, request.method, target_of(request), body):
        request.state.next_nonce = authenticator.signatures.nonce()
    else:
        raise authenticator.unsigned(
            "the signature is wrong, or its nonce is too old or was used; sign with the new one"
        )
    known = [one.alias for one in request.scope["route"].dependant.query_params]
    for name in request.query_params:
        if name not in known:
            ask = f"it has {', '.join(known)}" if known else "it has none"
            what = f"{request.method} {request.url.path} has no query parameter {name!r}"
            raise HttpError(422, "UsageError", f"{what}; {ask}")
    host = request.client.host if request.client else "somewhere"
    return f"{host} by HTTP"


def target_of(request: Request) -> str:
    query: bytes = request.scope["query_string"]
    path: bytes = request.scope["raw_path"]
    return (path + (b"?" + query if query else b"")).decode("latin-1")


async def read_body(request: Request, most: int = MAX_BYTES, within_s: float = BODY_S) -> bytes:
    parts, size = [], 0
    try:
        async with asyncio.timeout(within_s):
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise HttpError(
                        413, "TooLarge", f"the body has more than {most} bytes; nothing was done"
                    )
                parts.append(part)
    except ClientDisconnect:
        raise HttpError(400, "Incomplete", "the body ended too soon; nothing was done") from None
    except TimeoutError:
        raise HttpError(
            408, "TooSlow", f"the body did not come within {within_s:g} s; nothing was done"
        ) from None
    return b"".join(parts)
