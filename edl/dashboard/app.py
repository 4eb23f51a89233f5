"""Put the routes together to the application that uvicorn serves: :func:`dashboard_app`.

Whoever reaches the port gets the files of the page, which say nothing of the job. All that is of
the job, below ``/api``, needs the token (``Authorization: Bearer ...``). No route changes anything.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edl.core.dashboard.event_page import PAGE, EventChoice
from edl.dashboard.job_watcher import JobWatcher
from edl.dashboard.static_files import static_files
from edl.keys import derived

LOOK_S = 0.25  # between two looks whether the page has changed
ALIVE_S = 10.0  # after which a stream says that it lives
MOST_STREAMS = 64  # browsers; further ones poll
MOST_TEXT = 200  # characters of a filter

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}

Handler = Callable[[Request], Awaitable[Response]]


def view_token(secret: str, job: str) -> str:
    """Return the token that lets a browser read the page of a job; it changes nothing.

    Args:
        secret: the secret of the job.
        job: the name of the job.
    """
    return derived(secret, "dashboard", job)


class SecureHeaders:
    """An application that adds :data:`HEADERS` to each answer of another one, ``app``.

    Args:
        app: the other application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""

        async def send_more(message: Message) -> None:
            if message["type"] == "http.response.start":
                more = [(k.lower().encode(), v.encode()) for k, v in HEADERS.items()]
                message["headers"] = [*message.get("headers", ()), *more]
            await send(message)

        await self._app(scope, receive, send_more)


class SecureApplication(Starlette):
    """An application whose answers all have :data:`HEADERS`, also that to an error of its own."""

    def build_middleware_stack(self) -> ASGIApp:
        """Return the whole application, with the headers around it."""
        return SecureHeaders(super().build_middleware_stack())


def dashboard_app(watcher: JobWatcher, token: str) -> SecureApplication:
    """Return the application that serves the page of one job.

    Args:
        watcher: keeps the page up to date.
        token: what a browser has to send.
    """
    app = SecureApplication(
        routes=[
            Route("/", _static),
            Route("/health", _health),
            Route("/static/{path:path}", _static),
            Route("/api/page", with_token(_page)),
            Route("/api/stream", with_token(_stream)),
            Route("/api/events", with_token(_events)),
            Route("/api/generations/{number}", with_token(_generation)),
        ]
    )
    app.state.watcher, app.state.token, app.state.files = watcher, token, static_files()
    app.state.streams = 0
    app.state.ends = False  # then streams end
    return app


def with_token(handler: Handler) -> Handler:
    """Return ``handler`` for requests with the token; others get 401."""

    async def checked(request: Request) -> Response:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        expected: str = request.app.state.token
        if scheme.lower() != "bearer" or not hmac.compare_digest(
            given.strip().encode(), expected.encode()
        ):
            return _json({"message": "the token is missing or wrong"}, 401)
        return await handler(request)

    return checked


async def _health(request: Request) -> Response:
    """Say that the server answers; nothing is asked."""
    return _json({"status": "ok"})


async def _static(request: Request) -> Response:
    """Answer with a file of the page."""
    found = request.app.state.files.get(request.path_params.get("path", "index.html"))
    if found is None:
        return _json({"message": "there is no such file"}, 404)
    headers = {"ETag": found.tag, "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == found.tag:
        return Response(status_code=304, headers=headers)
    return Response(found.content, media_type=found.media_type, headers=headers)


async def _page(request: Request) -> Response:
    """Answer with the sections that changed since the version that the browser has."""
    watcher: JobWatcher = request.app.state.watcher
    instance = request.query_params.get("instance", "")
    since = _whole(request.query_params.get("since"), 0)
    return _encoded(watcher.page.patch(instance, since))


async def _events(request: Request) -> Response:
    """Answer with events, the newest first, as the query wants them."""
    query = request.query_params
    choice = EventChoice(
        tones=frozenset(filter(None, query.get("tones", "").split(","))),
        text=query.get("text", "")[:MOST_TEXT],
        before=_whole(query.get("before"), None),
        limit=min(max(1, _whole(query.get("limit"), PAGE)), 5 * PAGE),
    )
    watcher: JobWatcher = request.app.state.watcher
    return _json({"events": watcher.events(choice)})


async def _generation(request: Request) -> Response:
    """Answer with the cost of the switch into a generation, by worker; null: it is not known."""
    watcher: JobWatcher = request.app.state.watcher
    number = _whole(request.path_params["number"], None)
    if number is None:
        return _json({"message": "this is not the number of a generation"}, 404)
    return _json({"switch": watcher.switch(number)})


async def _stream(request: Request) -> Response:
    """Answer with a stream of server-sent events: the page, and then what changes of it."""
    state = request.app.state
    if state.streams >= MOST_STREAMS:
        return _json({"message": f"{MOST_STREAMS} browsers have a stream; poll"}, 503)

    async def messages() -> AsyncIterator[bytes]:
        state.streams += 1
        try:
            async for message in _changes(state):
                yield message
        finally:
            state.streams -= 1

    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(messages(), media_type="text/event-stream", headers=headers)


async def _changes(state: Any) -> AsyncIterator[bytes]:
    """Yield the whole page, then the sections that change, each message as a server-sent event.

    A comment is sent every :data:`ALIVE_S` (10) seconds without a change. The messages end when
    ``state.ends`` is true; ``state`` is that of the application (:func:`dashboard_app`).
    """
    instance, version, silent_s = "", 0, 0.0
    while not state.ends:
        now = state.watcher.page
        if (now.instance, now.version) != (instance, version):
            yield b"data: " + now.patch(instance, version) + b"\n\n"
            instance, version, silent_s = now.instance, now.version, 0.0
        elif silent_s >= ALIVE_S:
            silent_s = 0.0
            yield b": alive\n\n"
        await asyncio.sleep(LOOK_S)
        silent_s += LOOK_S


def _whole(text: str | None, default: Any) -> Any:
    """Return the number that ``text`` is, or ``default`` if it is none."""
    return int(text) if text is not None and text.isdecimal() and len(text) < 16 else default


def _json(value: MutableMapping[str, Any], status: int = 200) -> Response:
    """Return an answer with ``value`` as JSON."""
    return _encoded(msgspec.json.encode(value), status)


def _encoded(content: bytes, status: int = 200) -> Response:
    """Return an answer with ``content``, which is JSON."""
    headers = {"Cache-Control": "no-store"}
    return Response(content, status, headers, media_type="application/json")
