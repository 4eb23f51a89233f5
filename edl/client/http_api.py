"""Call the HTTP API of a cluster: :class:`ApiClient`, which needs neither ZooKeeper nor FastAPI."""

from __future__ import annotations

import http.client
import json
import re
import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple, Self
from urllib.parse import SplitResult, urlsplit

from edl.errors import CoordinationError, UsageError
from edl.http.signing import AUDIENCE, BEARER, SCHEME, api_key, authorization

ANSWER_S = 90.0  # of the API for one request; a wait takes up to 60 s
IDLE_S = 20.0  # of a connection, after which it is replaced; the API closes it after 30 s
JSON = "application/json"
_CHALLENGE = re.compile(rf"{SCHEME} ([0-9a-f-]+)")
_TARGET = re.compile(r"[!-~]+")
_NEXT = re.compile(r'nextnonce="([0-9a-f-]+)"')


class ApiResponse(NamedTuple):
    """The answer of the API to one request.

    Attributes:
        status: the HTTP status.
        value: the JSON value of the body; None: it is no JSON.
    """

    status: int
    value: Any


class ApiClient:
    """A client of the HTTP API of one cluster, with one connection; a context manager.

    It must not be shared between threads.

    Args:
        url: where the API is served, such as "http://127.0.0.1:8080".
        cluster: the name of the cluster.
        secret: the secret of the cluster, with which requests are signed; None: they are not.
        token: a bearer token, of `edl cluster token`, over TLS; None: none is sent. Of both, white
            space at the ends, such as the newline of a file, does not count.
        tls: how the certificate of the API is checked; None: as Python does by default.
        timeout_s: how long to wait for an answer, in seconds.

    Raises:
        UsageError: the URL is not one of an API, which has no path of its own, the secret or the
            token is not one word, or a token is not to be sent over TLS.
    """

    def __init__(
        self,
        url: str,
        cluster: str,
        *,
        secret: str | None = None,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
        timeout_s: float = ANSWER_S,
    ) -> None:
        parts = _parts(url)
        host = parts.hostname or ""
        if token is not None and parts.scheme != "https":
            raise UsageError("a token is sent over TLS only; use https, or sign with the secret")
        self._key = None if secret is None else api_key(_word(secret, "the secret"), cluster)
        self._token = None if token is None else _word(token, "the token")
        if not (self._token or "").isascii():
            raise UsageError("the token has a character that no token has")
        self._nonce = ""
        self._used_s = time.monotonic()  # when the last answer came
        self._url = url
        self._connection: http.client.HTTPConnection
        if parts.scheme == "https":
            context = tls or ssl.create_default_context()
            self._connection = http.client.HTTPSConnection(
                host, parts.port, timeout=timeout_s, context=context
            )
        else:
            self._connection = http.client.HTTPConnection(host, parts.port, timeout=timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; a later call opens another one."""
        self._connection.close()

    def call(
        self, method: str, target: str, body: bytes | Mapping[str, Any] = b"", kind: str = JSON
    ) -> ApiResponse:
        """Send a request, signed if this client has the secret, and return the answer.

        An answer with an error status is returned like any other. A request is sent again once if
        its nonce was not accepted any more.

        Args:
            method: the HTTP method.
            target: the path, with the query if there is one, as it is sent: what is not ASCII is
                percent-encoded, as :func:`urllib.parse.quote` does it.
            body: the body, or the JSON object in it.
            kind: the media type of the body.

        Raises:
            UsageError: the target has a space, or another character that cannot be sent.
            CoordinationError: no answer came; the request may have been carried out or not.
        """
        if not _TARGET.fullmatch(target):
            raise UsageError(
                f"{target!r} cannot be sent as the target of a request; percent-encode spaces and "
                "what is not ASCII, by urllib.parse.quote"
            )
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        for _ in range(2):
            response, content = self._send(method, target, data, kind)
            challenge = _CHALLENGE.fullmatch(response.headers.get("WWW-Authenticate", ""))
            match = challenge or _NEXT.search(response.headers.get("Authentication-Info", ""))
            self._nonce = match[1] if match else ""
            if response.status != 401 or self._key is None or not self._nonce:
                break
        value = None
        with suppress(ValueError):
            value = json.loads(content)
        return ApiResponse(response.status, value)

    def _send(
        self, method: str, target: str, body: bytes, kind: str
    ) -> tuple[http.client.HTTPResponse, bytes]:
        # The API closes a connection that was idle for too long.
        if time.monotonic() - self._used_s > IDLE_S:
            self.close()
        headers = {"Content-Type": kind} if body else {}
        if self._token is not None:
            headers["Authorization"] = f"{BEARER} {self._token}"
        elif self._key is not None and self._nonce:
            headers["Authorization"] = authorization(
                self._key, self._nonce, AUDIENCE, method, target, body
            )
        try:
            self._connection.request(method, target, body or None, headers)
            response = self._connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise CoordinationError(
                f"the HTTP API at {self._url} does not answer: {error or type(error).__name__}; "
                "the request may have been carried out or not"
            ) from None
        self._used_s = time.monotonic()
        return response, content


def _word(text: str, what: str) -> str:
    words = text.split()
    if len(words) != 1 or not words[0].isprintable():
        # The error does not quote it: it may be a secret.
        raise UsageError(f"{what} is not one word, as edl has made it")
    return words[0]


def _parts(url: str) -> SplitResult:
    with suppress(ValueError):  # of a port that is no number or is too large, or of no name
        parts = urlsplit(url)
        (parts.hostname or "").encode("idna")
        is_served = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        if is_served and parts.path in ("", "/") and not (parts.query or parts.fragment):
            return parts
    raise UsageError(f"{url!r} is no URL of an HTTP API; write http://HOST:PORT")
