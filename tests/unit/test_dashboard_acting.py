"""Who may change something through the dashboard: only a request with both tokens, of its page."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from http_calls import get, post
from shown_job import NAME, SECRET, ShownStore

from edl.dashboard.actions import MAX_ACTIONS, MAX_BYTES, ActionRunner, in_daemon_thread
from edl.dashboard.answers import HEADERS, SecureApplication, view_token
from edl.dashboard.app import dashboard_app
from edl.dashboard.job_watcher import JobWatcher
from edl.errors import UsageError

pytestmark = pytest.mark.long  # Starlette takes 0.3 s to import

TOKEN = view_token(SECRET, NAME)
SCALE = "/api/actions/scale"


class Acted:
    """Remembers what was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, Mapping[str, Any]]] = []
        self.error: Exception | None = None

    def __call__(self, job: str, verb: str, values: Mapping[str, Any]) -> str:
        assert threading.current_thread() is not threading.main_thread(), "it would block the page"
        self.asked.append((job, verb, values))
        if self.error is not None:
            raise self.error
        return "it is done"


@pytest.fixture
def acted() -> Acted:
    return Acted()


@pytest.fixture
def runner(acted: Acted) -> ActionRunner:
    return ActionRunner(acted)


@pytest.fixture
def app(runner: ActionRunner) -> SecureApplication:
    store: Any = ShownStore()
    watcher = JobWatcher(store)
    watcher.turn()
    return dashboard_app(watcher, TOKEN, runner)


def said(answer: tuple[int, dict[str, str], bytes]) -> tuple[int, str]:
    status, headers, body = answer
    assert headers["content-security-policy"] == HEADERS["Content-Security-Policy"]
    assert not any(name.startswith("access-control") for name in headers)
    return status, json.loads(body)["message"]


def test_with_both_tokens_it_is_done(
    app: SecureApplication, runner: ActionRunner, acted: Acted
) -> None:
    for origin in ({}, {"origin": "http://127.0.0.1:8470"}):
        headers = {"edl_actions": runner.token, "host": "127.0.0.1:8470", **origin}
        assert said(post(app, SCALE, {"np": 3}, TOKEN, **headers)) == (200, "it is done")
    assert acted.asked == [("", "scale", {"np": 3})] * 2


def test_the_token_of_the_page_only_reads(
    app: SecureApplication, runner: ActionRunner, acted: Acted
) -> None:
    for wrong in ("", TOKEN, runner.token[:-1], ActionRunner(acted).token, "\xff"):
        status, why = said(post(app, SCALE, {"np": 3}, TOKEN, edl_actions=wrong))
        assert (status, why.startswith("this page only reads: its address")) == (403, True)
    assert said(post(app, SCALE, {"np": 3}, TOKEN))[0] == 403
    assert said(post(app, SCALE, {"np": 3}, None, edl_actions=runner.token))[0] == 401
    assert said(post(app, SCALE, {"np": 3}, runner.token, edl_actions=runner.token))[0] == 401
    assert acted.asked == []


def test_a_dashboard_without_actions_says_so() -> None:
    store: Any = ShownStore()
    app = dashboard_app(JobWatcher(store), TOKEN)
    why = "`edl dashboard --actions` prints an address with which it also changes something"
    for token in ("", TOKEN, "x" * 64):
        found = said(post(app, SCALE, {"np": 3}, TOKEN, edl_actions=token))
        assert found == (403, f"this dashboard only reads; {why}")


def test_another_web_page_can_do_nothing(
    app: SecureApplication, runner: ActionRunner, acted: Acted
) -> None:
    for origin in ("http://evil.example", "http://127.0.0.1:9999", "null"):
        headers = {"edl_actions": runner.token, "host": "127.0.0.1:8470", "origin": origin}
        assert said(post(app, SCALE, {"np": 3}, TOKEN, **headers)) == (
            403,
            "another web page has asked for this; use the page of the dashboard itself",
        )
    assert get(app, SCALE, TOKEN, edl_actions=runner.token)[0] == 405, "a link changes nothing"
    assert acted.asked == []


def test_what_is_impossible_is_a_sentence(
    app: SecureApplication, runner: ActionRunner, acted: Acted
) -> None:
    tokens = {"edl_actions": runner.token}
    acted.error = UsageError("cannot scale job digits to 0 workers: min_np is 1")
    assert said(post(app, SCALE, {"np": 0}, TOKEN, **tokens)) == (400, str(acted.error))
    acted.asked.clear()
    latin, deep = b'{"host": "caf\xe9"}', b'{"np": ' + b"[" * 5000
    for body in (b"", b"[1]", b"{", b"\xff", latin, deep, b'{"np": ' + b"1" * MAX_BYTES + b"}"):
        assert said(post(app, SCALE, body, TOKEN, **tokens))[0] == 400
    assert acted.asked == []
    runner._running = MAX_ACTIONS
    status, why = said(post(app, SCALE, {"np": 3}, TOKEN, **tokens))
    assert (status, "8 actions are under way" in why) == (400, True)


def test_the_end_of_the_server_does_not_wait_for_an_action() -> None:
    begun, may_end = threading.Event(), threading.Event()

    def slow() -> str:
        begun.set()
        assert may_end.wait(60.0)
        return "late"

    async def serve() -> None:
        asked = asyncio.ensure_future(in_daemon_thread(slow))
        assert await asyncio.to_thread(begun.wait, 60.0)
        asked.cancel()

    asyncio.run(serve())  # returns though the action goes on
    assert not may_end.is_set()
    may_end.set()


def test_a_defect_is_logged_and_a_sentence(
    app: SecureApplication,
    runner: ActionRunner,
    acted: Acted,
    caplog: pytest.LogCaptureFixture,
) -> None:
    acted.error = KeyError("np")
    found = said(post(app, SCALE, {"np": 3}, TOKEN, edl_actions=runner.token))
    assert found == (400, "the action has failed, a defect of edl: KeyError('np')")
    assert [one.message for one in caplog.records] == ["an action of the dashboard has failed"]


def test_each_start_of_the_server_has_another_token(acted: Acted) -> None:
    tokens = {ActionRunner(acted).token for _ in range(10)}
    assert len(tokens) == 10
    assert all(len(token) == 64 for token in tokens)
    assert ActionRunner().token == ""


def test_what_is_no_http_is_answered_with_the_headers_of_all_answers() -> None:
    import uvicorn

    from edl.dashboard.server import SecureProtocol

    written: list[bytes] = []

    class Transport(asyncio.Transport):
        def write(self, data: Any) -> None:
            written.append(bytes(data))

        def close(self) -> None:
            written.append(b"closed")

        def get_extra_info(self, name: str, default: Any = None) -> Any:
            return default

    async def talk() -> None:
        config = uvicorn.Config(lambda: None, log_config=None, lifespan="off")
        config.load()
        state = uvicorn.server.ServerState()
        protocol = SecureProtocol(config, state, {}, asyncio.get_running_loop())
        protocol.connection_made(Transport())
        protocol.data_received(b"\x16\x03 this is TLS")
        protocol.connection_lost(None)
        assert state.default_headers == [], "other answers have them from the application"

    asyncio.run(talk())
    answer, *ends = written
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert set(ends) == {b"closed"}
    for name, value in HEADERS.items():
        assert f"\r\n{name.lower()}: {value}\r\n".encode() in answer
