"""Let pages change something: only with the second token, and only for the page of this server.

A request that changes something is a POST with JSON. It needs the token of the page, and in the
header ``Edl-Actions`` the token that `edl dashboard --actions` has printed, which each start of the
server makes anew. Another web page cannot set these headers without a question to this server,
which it does not answer; there are no cookies.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from edl.dashboard.answers import Handler, json_answer, with_token
from edl.errors import EdlError, UsageError
from edl.http.sent_json import decoded_json

logger = logging.getLogger(__name__)

HEADER = "edl-actions"
MOST_BYTES = 65536  # of a request: the text of a policy is the largest
MOST_ACTIONS = 8  # at the same time; each has a thread and a session

NO_ACTIONS = (
    "this dashboard only reads; `edl dashboard --actions` prints an address with which it also "
    "changes something"
)
NO_TOKEN = (
    "this page only reads: its address has not the token for actions of this start of the server; "
    "open the address that `edl dashboard --actions` has printed last"
)
ANOTHER_PAGE = "another web page has asked for this; use the page of the dashboard itself"

Act = Callable[[str, str, Mapping[str, Any]], str]
"""Carries out a verb on a job, or on the cluster if the job is empty, with values by name; returns
what was done, as a sentence. It runs in a thread of its own."""


class ActionRunner:
    """The actions of a server, and the token that they need."""

    def __init__(self, act: Act | None = None) -> None:
        self._act = act
        self._running = 0
        # the token; empty: the server only reads
        self.token = secrets.token_hex(32) if act is not None else ""

    def refusal(self, request: Request) -> str:
        """Return why `request` may not change anything, as a sentence; empty: it may."""
        if not self.token:
            return NO_ACTIONS
        given = request.headers.get(HEADER, "")
        if not hmac.compare_digest(given.encode(), self.token.encode()):
            return NO_TOKEN
        origin = request.headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != request.headers.get("host", ""):
            return ANOTHER_PAGE
        return ""

    async def act(self, job: str, verb: str, values: Mapping[str, Any]) -> str:
        """Carry out `verb` on `job` with `values`; return what was done, as a sentence."""
        if self._act is None:
            raise UsageError(NO_ACTIONS)
        if self._running >= MOST_ACTIONS:
            raise UsageError(f"{self._running} actions are under way; try again when they are done")
        self._running += 1
        try:
            return await in_daemon_thread(partial(self._act, job, verb, values))
        finally:
            self._running -= 1


async def in_daemon_thread(call: Callable[[], str]) -> str:
    """Return what `call` returns, or raise what it raises, in a thread of its own."""
    done: Future[str] = Future()

    def run() -> None:
        if not done.set_running_or_notify_cancel():
            return
        try:
            done.set_result(call())
        except EdlError as error:
            done.set_exception(error)
        except Exception as error:
            logger.exception("an action of the dashboard has failed")
            done.set_exception(EdlError(f"the action has failed, a defect of edl: {error!r}"))

    # The end of the server does not wait for it, as it would for an executor's: an action may take
    # a minute, and goes on in the job.
    threading.Thread(target=run, name="edl-action", daemon=True).start()
    return await asyncio.wrap_future(done)


def action_handler() -> Handler:
    """Return a handler of requests for an action, whose path names the verb, and maybe the job."""

    async def act(request: Request) -> Response:
        runner: ActionRunner = request.app.state.action_runner
        if refusal := runner.refusal(request):
            return json_answer({"message": refusal}, 403)
        try:
            values = await _values(request)
            job, verb = request.path_params.get("job", ""), request.path_params["verb"]
            return json_answer({"message": await runner.act(job, verb, values)})
        except EdlError as error:
            return json_answer({"message": str(error)}, 400)

    handler: Callable[[Request], Awaitable[Response]] = act
    return with_token(handler)


async def _values(request: Request) -> Mapping[str, Any]:
    """Return the JSON object in the body of `request`."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MOST_BYTES:
            raise UsageError(f"the request has more than {MOST_BYTES} bytes; shorten the text")
    try:
        return decoded_json(body, dict[str, Any])
    except UsageError as error:
        raise UsageError(f"the request is no JSON object: {error}") from None
