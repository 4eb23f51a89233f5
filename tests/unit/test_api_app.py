"""Requests to the application of the HTTP API, without a server and without a cluster.

FastAPI is imported by the tests themselves, which `make test` does not run: its import takes half a
second.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import docs_tables
import pytest
from test_api_waiting import RUNS

from edl.cluster.client.history_file import HistoryFile
from edl.cluster.lifecycle import ClusterEvent, ClusterEventKind
from edl.cluster.manifest import JobManifest
from edl.cluster.records import Goal, Wanted
from edl.errors import (
    AccessDenied,
    ConfigError,
    CoordinationError,
    DataError,
    ManifestError,
    UnknownJob,
    UsageError,
)
from edl.http.signing import AUDIENCE, api_key, authorization, new_token

pytestmark = pytest.mark.long

SECRET = "fedcba9876543210" * 4
KEY = api_key(SECRET, "lab")
DIGITS = {"name": "digits", "command": ["true"], "min": 1, "max": 4, "cwd": "/work"}


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    value: Any

    @property
    def nonce(self) -> str:
        challenge = self.headers.get("www-authenticate", "").removeprefix("EDL ")
        following = self.headers.get("authentication-info", "").removeprefix('nextnonce="')
        return challenge or following.removesuffix('"')


@dataclass
class FakePool:
    answer: Any = None
    error: Exception | None = None
    calls: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)

    async def ask(self, by: str, question: Callable[[Any], Any]) -> Any:
        return question(self)

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self.calls.append((verb, arguments))
            if self.error is not None:
                raise self.error
            return self.answer

        return call


class Api:
    def __init__(self, pool: FakePool, tls: bool = False) -> None:
        from edl.api.requests import RequestAuthenticator
        from edl.api.server import api_app

        self.pool = pool
        self._app = api_app(RequestAuthenticator(SECRET, "lab", tls), pool)  # type: ignore[arg-type]

    def send(
        self,
        method: str,
        target: str,
        body: bytes = b"",
        *,
        given: str = "",
        kind: str = "application/json",
        breaks_off: bool = False,
    ) -> Answer:
        path, _, query = target.partition("?")
        headers = [(b"content-type", kind.encode())]
        if given:
            headers.append((b"authorization", given.encode()))
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": headers,
            "client": ("127.0.0.1", 4),
            "server": ("127.0.0.1", 80),
            "scheme": "http",
            "root_path": "",
        }
        sent: list[Any] = []
        parts = [body[at : at + 1000] for at in range(0, len(body), 1000)] or [b""]
        came = iter(parts)
        left = [len(parts)]

        async def receive() -> dict[str, Any]:
            left[0] -= 1
            if left[0] < 0:
                return {"type": "http.disconnect"}
            more = left[0] > 0 or breaks_off
            return {"type": "http.request", "body": next(came), "more_body": more}

        async def send(message: Any) -> None:
            sent.append(message)

        with suppress(ZeroDivisionError):  # Starlette raises it again for the server's log
            asyncio.run(self._app(scope, receive, send))
        head = {key.decode(): value.decode() for key, value in sent[0]["headers"]}
        content = b"".join(one.get("body", b"") for one in sent[1:])
        return Answer(sent[0]["status"], head, json.loads(content))

    def signed(self, method: str, target: str, body: bytes = b"", **options: Any) -> Answer:
        nonce = self.send(method, target, body, **options).nonce
        given = authorization(KEY, nonce, AUDIENCE, method, target, body)
        return self.send(method, target, body, given=given, **options)


def body_of(**values: Any) -> bytes:
    return json.dumps(DIGITS | values).encode()


def test_the_description_in_the_docs_is_what_the_code_says() -> None:
    assert docs_tables.OPENAPI.read_text("utf-8") == docs_tables.openapi(), "run `make docs`"


def test_only_a_signed_request_is_carried_out_and_only_once() -> None:
    api = Api(FakePool("digits"))
    first = api.send("POST", "/v1/jobs?key=k", body_of())
    assert (first.status, first.value["error"], api.pool.calls) == (401, "Unauthenticated", [])
    given = authorization(KEY, first.nonce, AUDIENCE, "POST", "/v1/jobs?key=k", body_of())
    for other in (
        api.send("POST", "/v1/jobs?key=other", body_of(), given=given),
        api.send("POST", "/v1/jobs?key=k", body_of(max=5), given=given),
        api.send("GET", "/v1/jobs?key=k", given=given),
    ):
        assert (other.status, api.pool.calls) == (401, [])
    done = api.send("POST", "/v1/jobs?key=k", body_of(), given=given)
    assert (done.status, done.value) == (201, {"job": "digits"})
    again = api.send("POST", "/v1/jobs?key=k", body_of(), given=given)
    assert (again.status, len(api.pool.calls)) == (401, 1)
    [(verb, (manifest, key))] = api.pool.calls
    assert (verb, key) == ("submit", "k")
    assert manifest == JobManifest("digits", ("true",), 1, 4, cwd="/work")
    following = authorization(KEY, done.nonce, AUDIENCE, "POST", "/v1/jobs/digits/halt", b"")
    assert api.send("POST", "/v1/jobs/digits/halt", given=following).status == 200


def test_a_token_is_taken_over_tls_only() -> None:
    token = f"Bearer {new_token(SECRET, 'lab', 2**34)}"
    clear = Api(FakePool(())).send("GET", "/v1/jobs", given=token)
    assert (clear.status, clear.value["message"]) == (
        401,
        "bearer tokens are accepted over TLS only; sign the request",
    )
    api = Api(FakePool(()), tls=True)
    assert api.send("GET", "/v1/jobs", given=token).value == {"jobs": []}
    assert "is not one of" in api.send("GET", "/v1/jobs", given=token[:-1]).value["message"]
    old = f"Bearer {new_token(SECRET, 'lab', 1.0)}"
    assert "has expired" in api.send("GET", "/v1/jobs", given=old).value["message"]


@pytest.mark.parametrize(
    ("error", "status", "name"),
    [
        (UnknownJob("digits"), 404, "UnknownJob"),
        (AccessDenied("lab", "it is closed"), 403, "AccessDenied"),
        (ConfigError("job", "it is no name"), 422, "ConfigError"),
        (UsageError("it has ended"), 409, "UsageError"),
        (CoordinationError("ZooKeeper is away"), 503, "CoordinationError"),
    ],
)
def test_an_error_is_the_sentence_of_the_command_line(
    error: Exception, status: int, name: str
) -> None:
    found = Api(FakePool(error=error)).signed("POST", "/v1/jobs/digits/halt")
    assert (found.status, found.value["error"]) == (status, name)
    assert found.value["message"] == str(error)
    assert ("retry-after" in found.headers) is (status == 503)


def test_a_defect_shows_nothing_of_itself() -> None:
    found = Api(FakePool(error=ZeroDivisionError("secret"))).signed("GET", "/v1/cluster")
    assert (found.status, found.value["error"]) == (500, "Defect")
    assert "secret" not in str(found.value)


def test_a_text_that_has_no_encoding_is_answered() -> None:
    """As a path that is not UTF-8, in a reason that the code of a job has written."""
    event = ClusterEvent(1.0, ClusterEventKind.STATE, "no /caf\udce9", "digits")
    pool = FakePool([(7, event)])
    found = Api(pool).signed("GET", "/v1/events")
    assert (found.status, found.value["events"][0]["reason"]) == (200, "no /caf\ufffd")
    pool.error = UsageError("no /caf\udce9")
    refused = Api(pool).signed("POST", "/v1/jobs/digits/halt")
    assert (refused.status, refused.value["message"]) == (409, "no /caf\ufffd")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the body is not what is expected"),
        (b"[" * 5000, "the body is not what is expected"),
        (b'{"name": "\\ud800"}', "the body is not what is expected"),
        (
            body_of(cwd="/caf\xe9").replace(b"\\u00e9", b"\xe9"),
            "the byte 0xe9 is not UTF-8; send JSON",
        ),
        (b"[]", "Expected `object`, got `array`"),
        (body_of(mx=4), "'mx'"),
        (body_of(cwd="work"), "cwd is 'work'; over HTTP it must be an absolute path"),
        (body_of(cwd="~/work"), "over HTTP it must be an absolute path"),
        (body_of(venv="~/venv"), "a path begins with ~; over HTTP write absolute paths"),
    ],
)
def test_a_wrong_manifest_is_refused_in_a_sentence(body: bytes, message: str) -> None:
    api = Api(FakePool("digits"))
    found = api.signed("POST", "/v1/jobs", body)
    assert (found.status, api.pool.calls) == (422, [])
    assert message in found.value["message"]


def test_a_manifest_in_yaml_has_lines() -> None:
    text = b"name: digits\ncommand: [true]\nmin: 1\nmax: 4\ncwd: /work\n"
    api = Api(FakePool("digits"))
    assert api.signed("POST", "/v1/jobs", text, kind="application/yaml").status == 201
    wrong = api.signed("POST", "/v1/jobs", text + b"mx: 4\n", kind="application/yaml").value
    assert (wrong["line"], wrong["key"]) == (6, "mx")
    assert api.signed("POST", "/v1/jobs", text, kind="text/plain").status == 422


def test_a_deletion_may_name_the_time_of_the_submission() -> None:
    api = Api(FakePool(Wanted(Goal.GONE)))
    assert api.signed("DELETE", "/v1/jobs/digits").status == 200
    assert api.signed("DELETE", "/v1/jobs/digits?submitted_s=1764336000.123").status == 200
    assert api.signed("DELETE", "/v1/jobs/digits?submitted_s=nan").status == 422
    assert api.pool.calls == [("delete", ("digits", None)), ("delete", ("digits", 1764336000.123))]


def test_a_query_parameter_that_no_route_has_is_refused() -> None:
    api = Api(FakePool(()))
    wrong = api.signed("GET", "/v1/jobs?quene=lab")
    assert (wrong.status, wrong.value["message"]) == (
        422,
        "GET /v1/jobs has no query parameter 'quene'; it has queue, state, after, limit",
    )
    none = api.signed("POST", "/v1/jobs/digits/halt?now=1").value
    assert none["message"].endswith("has no query parameter 'now'; it has none")
    assert api.pool.calls == []
    assert api.signed("GET", "/v1/jobs?queue=lab&limit=5").status == 200


def test_a_list_is_cut_and_goes_on_after_a_job() -> None:
    jobs = tuple(replace(RUNS, name=name) for name in "abcd")
    api = Api(FakePool(jobs))

    def names(query: str) -> list[str]:
        return [job["name"] for job in api.signed("GET", f"/v1/jobs?{query}").value["jobs"]]

    assert names("limit=2") == ["a", "b"]
    assert names("limit=2&after=b") == ["c", "d"]
    assert names("after=d") == []
    assert api.signed("GET", "/v1/jobs?after=x").status == 404
    assert api.signed("GET", "/v1/jobs?limit=0").status == 422


def test_limits_and_paths() -> None:
    api = Api(FakePool(error=ManifestError("", 0, "wrong")))
    assert api.send("POST", "/v1/jobs", b" " * 70_000).status == 413
    assert api.send("POST", "/v1/jobs", b"{", breaks_off=True).value["error"] == "Incomplete"
    assert api.send("GET", "/nothing").value["error"] == "UnknownPath"
    assert api.send("PATCH", "/v1/jobs").status == 405
    assert api.send("GET", "/health").value == {"serves": True}
    assert api.signed("GET", "/v1/jobs/digits/wait?timeout_s=61").status == 422
    assert api.signed("GET", "/v1/jobs/digits/wait?timeout_s=nan").status == 422
    assert api.signed("GET", "/v1/jobs/.x").status == 422
    assert "over HTTP a policy" in api.signed("GET", "/v1/plan?policy=os:system").value["message"]
    assert api.pool.calls == []


class FakeClient:
    """A client that is connected once, and closed once."""

    by = ""

    def __init__(self) -> None:
        self.story: list[str] = []

    def __enter__(self) -> FakeClient:
        self.story.append("connected")
        return self

    def close(self) -> None:
        self.story.append("closed")


class Unreachable(FakeClient):
    def __enter__(self) -> FakeClient:
        raise CoordinationError("ZooKeeper is away")


def test_a_question_waits_for_a_thread_only_so_long() -> None:
    from edl.api.requests import HttpError
    from edl.api.routes import ClusterPool

    made: list[FakeClient] = []

    def connect() -> Any:
        made.append(FakeClient())
        return made[-1]

    async def story() -> None:
        pool = ClusterPool(connect, threads=1, free_s=0.02)
        goes_on = threading.Event()
        asked: list[str] = []

        def slow(client: Any) -> None:
            assert goes_on.wait(30.0)
            asked.append(client.by)

        first = asyncio.create_task(pool.ask("ann", slow))
        await asyncio.sleep(0)
        with pytest.raises(HttpError, match=r"has had no thread free for 0\.02 s; try again later"):
            await pool.ask("bob", slow)
        first.cancel()  # its sender is gone, and the question goes on
        with pytest.raises(HttpError, match="no thread free"):
            await pool.ask("bob", slow)
        goes_on.set()
        while True:
            with suppress(HttpError):
                assert await pool.ask("eve", lambda client: client.by) == "eve"
                break
        assert asked == ["ann"]
        pool.close()

    asyncio.run(story())
    [client] = made
    assert client.story == ["connected", "closed"]


def test_a_client_that_cannot_connect_is_tried_again() -> None:
    from edl.api.routes import ClusterPool

    clients = [Unreachable(), FakeClient()]

    async def story() -> None:
        left = iter(clients)
        pool = ClusterPool(lambda: next(left), threads=1)  # type: ignore[arg-type, return-value]
        with pytest.raises(CoordinationError):
            await pool.ask("ann", lambda client: client.by)
        assert await pool.ask("ann", lambda client: client.by) == "ann"
        pool.close()

    asyncio.run(story())


def test_a_client_that_was_asked_often_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its session keeps the identities of all jobs that it was asked about."""
    from edl.api import routes
    from edl.api.routes import ClusterPool

    monkeypatch.setattr(routes, "QUESTIONS", 2)
    made: list[FakeClient] = []

    def connect() -> Any:
        made.append(FakeClient())
        return made[-1]

    async def story() -> None:
        pool = ClusterPool(connect, threads=1)
        for _ in range(5):
            assert await pool.ask("ann", lambda client: client.by) == "ann"
        pool.close()

    asyncio.run(story())
    assert [one.story for one in made] == [["connected", "closed"]] * 3


def test_a_client_that_zookeeper_did_not_answer_is_replaced() -> None:
    """Its session may have kept the identity of a job, with which nothing can be written."""
    from edl.api.routes import ClusterPool

    made: list[FakeClient] = []

    def connect() -> Any:
        made.append(FakeClient())
        return made[-1]

    def fails(_: Any) -> None:
        raise CoordinationError("ZooKeeper is away")

    def refuses(_: Any) -> None:
        raise UsageError("there is none")

    async def story() -> None:
        pool = ClusterPool(connect, threads=1)
        with pytest.raises(CoordinationError):
            await pool.ask("ann", fails)
        assert made[0].story == ["connected", "closed"]
        for _ in range(2):
            with pytest.raises(UsageError):
                await pool.ask("ann", refuses)
        pool.close()

    asyncio.run(story())
    assert [one.story for one in made] == [["connected", "closed"]] * 2


def test_a_history_is_waited_for_only_until_it_was_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edl.api import routes

    monkeypatch.setattr(routes, "FILLING_S", 0.0)
    file = HistoryFile(tmp_path / "history.sqlite")
    reader = routes.HistoryReader(file)
    reader._filling.acquire()  # as another thread, which reads the events
    cluster: Any = FakePool()
    with pytest.raises(DataError, match="is read for the first time; ask again"):
        reader.of(cluster)
    file.fill(lambda _: (), "5-0")
    assert reader.of(cluster) is file
