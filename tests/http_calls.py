"""Call an ASGI application in this process, without a server."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import Any

import pytest


def get(
    app: Any,
    path: str,
    token: str | None = None,
    error: type[Exception] | None = None,
    **headers: str,
) -> tuple[int, dict, bytes]:
    """Return status, headers and body of the answer to a GET of ``path``.

    ``error`` is what the application raises after its answer; None: nothing.
    """
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    target, _, query = path.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},  # a closed connection raises in `send`
        "method": "GET",
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
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    with pytest.raises(error) if error is not None else nullcontext():
        asyncio.run(app(scope, receive, send))
    body = b"".join(one.get("body", b"") for one in sent[1:])
    return sent[0]["status"], {k.decode(): v.decode() for k, v in sent[0]["headers"]}, body
