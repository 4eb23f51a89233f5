"""Answer the requests of a browser: files, JSON, streams of changes; the token, and headers.

Whoever reaches the port gets the files of the page, which say nothing of a job or cluster. All
else needs the token (``Authorization: Bearer ...``).
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edl.dashboard.job_watcher import PublishedPage
from edl.dashboard.report import static_files
from edl.dashboard.view.events import PAGE, EventChoice
from edl.secret_file import derived
from edl.text import json_text

POLL_S = 0.25  # between two looks whether the page has changed
ALIVE_S = 10.0  # after which a stream says that it lives
MAX_STREAMS = 64  # browsers; further ones poll
MAX_TEXT = 200  # characters of a filter
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
NewestPage = Callable[[], PublishedPage]  # returns the newest page, at once


def view_token(secret: str, name: str) -> str:
    """Return the token that lets a browser read a page; it changes nothing."""
    return derived(secret, "dashboard", name)


class SecureApplication(Starlette):
    """An application whose answers all have `HEADERS`, also that to an error of its own."""

    def __init__(self, routes: Sequence[Route], token: str) -> None:
        files = Route("/health", health), Route("/static/{path:path}", static())
        super().__init__(routes=[*files, *routes])
        self.state.token, self.state.files = token, static_files()
        self.state.streams = 0
        self.state.ends = False  # then streams end

    def build_middleware_stack(self) -> ASGIApp:
        app = super().build_middleware_stack()

        async def secure(scope: Scope, receive: Receive, send: Send) -> None:
            async def send_more(message: Message) -> None:
                if message["type"] == "http.response.start":
                    more = [(k.lower().encode(), v.encode()) for k, v in HEADERS.items()]
                    message["headers"] = [*message.get("headers", ()), *more]
                await send(message)

            await app(scope, receive, send_more)

        return secure


def with_token(handler: Handler) -> Handler:
    """Return `handler` for requests with the token; others get 401."""

    async def checked(request: Request) -> Response:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        expected: str = request.app.state.token
        is_equal = hmac.compare_digest(given.strip().encode(), expected.encode())
        if scheme.lower() != "bearer" or not is_equal:
            return json_answer({"message": "the token is missing or wrong"}, 401)
        return await handler(request)

    return checked


async def health(request: Request) -> Response:
    return json_answer({"status": "ok"})


def static(path: str = "") -> Handler:
    async def answered(request: Request) -> Response:
        found = request.app.state.files.get(path or request.path_params["path"])
        if found is None:
            return json_answer({"message": "there is no such file"}, 404)
        headers = {"ETag": found.tag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == found.tag:
            return Response(status_code=304, headers=headers)
        return Response(found.content, media_type=found.media_type, headers=headers)

    return answered


def patch(request: Request, page: PublishedPage) -> Response:
    """Return an answer with the sections that changed since the version that the browser has."""
    instance = request.query_params.get("instance", "")
    return encoded(page.patch(instance, whole_number(request.query_params.get("since"), 0)))


def event_choice(request: Request) -> EventChoice:
    query = request.query_params
    return EventChoice(
        tones=words_of(request, "tones"),
        text=query.get("text", "")[:MAX_TEXT],
        before=whole_number(query.get("before"), None),
        limit=min(max(1, whole_number(query.get("limit"), PAGE)), 5 * PAGE),
    )


def words_of(request: Request, name: str) -> frozenset[str]:
    return frozenset(filter(None, request.query_params.get(name, "")[:MAX_TEXT].split(",")))


def stream_page(request: Request, newest: NewestPage) -> Response:
    """Return an answer with a stream of server-sent events: the page, then what changes of it."""
    state = request.app.state
    if state.streams >= MAX_STREAMS:
        return json_answer({"message": f"{MAX_STREAMS} browsers have a stream; poll"}, 503)

    async def messages() -> AsyncIterator[bytes]:
        state.streams += 1
        instance, version, silent_s = "", 0, 0.0
        try:
            while not state.ends:
                now = newest()
                if (now.instance, now.version) != (instance, version):
                    yield b"data: " + now.patch(instance, version) + b"\n\n"
                    instance, version, silent_s = now.instance, now.version, 0.0
                elif silent_s >= ALIVE_S:
                    silent_s = 0.0
                    yield b": alive\n\n"
                await asyncio.sleep(POLL_S)
                silent_s += POLL_S
        finally:
            state.streams -= 1

    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(messages(), media_type="text/event-stream", headers=headers)


def whole_number(text: str | None, default: Any) -> Any:
    return int(text) if text is not None and text.isdecimal() and len(text) < 16 else default


def json_answer(value: Any, status: int = 200) -> Response:
    return encoded(json_text(value), status)


def encoded(content: bytes, status: int = 200) -> Response:
    headers = {"Cache-Control": "no-store"}
    return Response(content, status, headers, media_type="application/json")
