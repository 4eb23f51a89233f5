"""Find out who has sent an HTTP request: :func:`who`, which every route but two calls.

A caller proves that it knows the secret of the cluster, in one of two ways:

- It signs the request (:mod:`edl.http.signing`), with a key that is made from the secret. No secret
  is sent, and a recorded request is not accepted again. An answer to a signed request has the nonce
  for the next one, so that a caller that keeps it sends each request once.
- It sends a token, ``Authorization: Bearer ...``. Whoever sees a token can use it, so tokens are
  accepted over TLS only.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from fastapi import Request
from starlette.requests import ClientDisconnect

from edl.api.answers import HttpError
from edl.cluster.manifest import MOST_BYTES
from edl.http.api_credentials import AUDIENCE, BEARER, api_key, token_end_s
from edl.http.signing import SCHEME, Authenticator, AuthenticatorLimits

BODY_S = 10.0  # for the body of a request to come
LIMITS = AuthenticatorLimits(used_nonces=65536)  # 2,000 signed requests a second for 30 s


@dataclass(frozen=True)
class Caller:
    """The sender of an authenticated request."""

    by: str  # the caller as the event log names it


class RequestAuthenticator:
    """The keys of a cluster by which the API accepts signed requests and bearer tokens."""

    def __init__(self, secret: str, cluster: str, tls: bool) -> None:
        self.signatures = Authenticator(api_key(secret, cluster), limits=LIMITS)
        self.signatures.worker = AUDIENCE  # the nonce says for which process a signature is
        self._secret = secret
        self._cluster = cluster
        self._tls = tls

    def check_token(self, token: str) -> None:
        """Return if `token` is a bearer token of the cluster that has not ended."""
        if not self._tls:
            raise self.unsigned("bearer tokens are accepted over TLS only; sign the request")
        end_s = token_end_s(self._secret, self._cluster, token)
        if end_s is None:
            raise self.unsigned("the bearer token is not one of this cluster's")
        if end_s <= time.time():
            raise self.unsigned("the bearer token has expired; `edl cluster token` makes another")

    def unsigned(self, message: str) -> HttpError:
        """Return the refusal of a request whose sender is not known, with a nonce to sign with."""
        challenge = {"WWW-Authenticate": f"{SCHEME} {self.signatures.nonce()}"}
        return HttpError(401, "Unauthenticated", message, challenge)


async def who(request: Request) -> Caller:
    """Return who has sent `request`, whose body is read into `request.state.body`."""
    request.state.body = body = await read_body(request)
    authenticator: RequestAuthenticator = request.app.state.authenticator
    given = request.headers.get("authorization", "")
    scheme, _, token = given.partition(" ")
    if scheme.lower() == BEARER.lower():
        authenticator.check_token(token.strip())
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
    return Caller(f"{host} by HTTP")


def target_of(request: Request) -> str:
    """Return the path of `request` with its query, as it was sent."""
    query: bytes = request.scope["query_string"]
    path: bytes = request.scope["raw_path"]
    return (path + (b"?" + query if query else b"")).decode("latin-1")


async def read_body(request: Request, most: int = MOST_BYTES, within_s: float = BODY_S) -> bytes:
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
