"""Call an ASGI application in this process, without a server."""

from __future__ import annotations

import asyncio
import json
from contextlib import nullcontext
from typing import Any

import pytest

Answer = tuple[int, dict[str, str], bytes]


def get(
    app: Any,
    path: str,
    token: str | None = None,
    error: type[Exception] | None = None,
    **headers: str,
) -> Answer:
    """Return status, headers and body of a GET; ``error`` is raised by the application after it."""
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    sent: list[dict[str, Any]] = []
    with pytest.raises(error) if error is not None else nullcontext():
        asyncio.run(_called(app, "GET", path, headers, b"", sent))
    return _answer(sent)


def post(app: Any, path: str, value: Any, token: str | None = None, **headers: str) -> Answer:
    """Return status, headers and body of a POST of ``value``, as JSON or as its bytes."""
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    sent: list[dict[str, Any]] = []
    asyncio.run(_called(app, "POST", path, headers, body, sent))
    return _answer(sent)


async def _called(
    app: Any,
    method: str,
    path: str,
    headers: dict[str, str],
    body: bytes,
    sent: list[dict[str, Any]],
) -> None:
    """Call ``app`` with one request; its messages are added to ``sent``."""
    target, _, query = path.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},  # a closed connection raises in `send`
        "method": method,
        "path": target,
        "raw_path": target.encode(),
        "query_string": query.encode(),
        "headers": [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
        "scheme": "http",
        "http_version": "1.1",
        "root_path": "",
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)


def _answer(sent: list[dict[str, Any]]) -> Answer:
    body = b"".join(one.get("body", b"") for one in sent[1:])
    return sent[0]["status"], {k.decode(): v.decode() for k, v in sent[0]["headers"]}, body
