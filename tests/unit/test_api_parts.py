"""What of the HTTP API needs neither FastAPI nor uvicorn: addresses, tokens, the client."""

from __future__ import annotations

import hmac
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from edl.api import listening
from edl.api.listening import ListenAddress, check_packages, listen_address, listener
from edl.cli import cluster as cluster_api
from edl.cli.cluster import api_command
from edl.client import http_api
from edl.client.http_api import ApiClient
from edl.cluster.client.connection import access_to_start
from edl.cluster.nodes import ClusterPaths
from edl.cluster.records import ClusterRecord
from edl.cluster.submission import TenantNodes, TenantStore
from edl.errors import CoordinationError, UsageError
from edl.http.signing import AUDIENCE, api_key, authorization, new_token, token_end_s
from edl.zookeeper.access import Access

SECRET = "fedcba9876543210" * 4


@pytest.mark.parametrize(
    ("text", "address", "port", "is_loopback"),
    [
        ("8080", "127.0.0.1", 8080, True),
        ("0", "127.0.0.1", 0, True),
        ("10.0.0.7:8443", "10.0.0.7", 8443, False),
        ("node1:8443", "node1", 8443, False),
        ("[::1]:8443", "::1", 8443, True),
        ("[fe80::1]:8443", "fe80::1", 8443, False),
    ],
)
def test_where_to_listen(text: str, address: str, port: int, is_loopback: bool) -> None:
    found = listen_address(text)
    assert found == ListenAddress(address, port)
    assert found.is_loopback is is_loopback
    assert listen_address(str(found)) == found


@pytest.mark.parametrize("text", ["", "a", "1:2:3", "::1:8443", "65536", "-1", ":8080", "8080 "])
def test_nowhere_to_listen(text: str) -> None:
    with pytest.raises(UsageError, match=r"is no \[ADDRESS:\]PORT; write 8080"):
        listen_address(text)


def test_a_port_that_is_taken() -> None:
    with listener(ListenAddress("127.0.0.1", 0)) as taken:
        there = ListenAddress("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(UsageError, match=f"at {there}: Address already in use; give another"):
            listener(there)


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "PACKAGES", ("json", "no_such_package"))
    with pytest.raises(UsageError, match=r"needs no_such_package; install it: pip install"):
        check_packages()


def test_options_of_the_api(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "PACKAGES", ())
    assert api_command(None, None, None) == []
    assert api_command("80", None, None) == ["cluster", "api", "127.0.0.1:80"]
    files = ["--tls-cert", "c.pem", "--tls-key", "k.pem"]
    assert api_command("80", "c.pem", "k.pem") == ["cluster", "api", "127.0.0.1:80", *files]
    with pytest.raises(UsageError, match="need --api"):
        api_command(None, "c.pem", "k.pem")
    with pytest.raises(UsageError, match="--tls-key is missing"):
        api_command("80", "c.pem", None)


def test_a_token_is_one_cluster_s_and_ends() -> None:
    token = new_token(SECRET, "lab", 1_800_000_000.5)
    assert token_end_s(SECRET, "lab", token) == 1_800_000_000
    for secret, cluster, text in (
        (SECRET[::-1], "lab", token),
        (SECRET, "other", token),
        (SECRET, "lab", token[:-1] + ("0" if token[-1] != "0" else "1")),
        (SECRET, "lab", token.replace("edl-6", "edl-7")),
        (SECRET, "lab", ""),
    ):
        assert token_end_s(secret, cluster, text) is None


def test_a_token_is_not_sent_in_clear() -> None:
    with pytest.raises(UsageError, match="over TLS only"):
        ApiClient("http://127.0.0.1:1", "lab", token="edl-1-2")
    with pytest.raises(UsageError, match="is no URL"):
        ApiClient("127.0.0.1:1", "lab")


@pytest.mark.parametrize(
    "url",
    [
        "http://h:99999",
        "http://h:port",
        "http://[::1",
        "https://proxy/edl",
        "http://h?cluster=lab",
        "http://a..b",
    ],
)
def test_a_url_that_is_not_of_an_api_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="is no URL of an HTTP API; write http://HOST:PORT"):
        ApiClient(url, "lab")


def test_a_newline_at_the_end_of_a_secret_or_a_token_does_not_count() -> None:
    """`edl cluster token > file` writes one."""
    token = new_token(SECRET, "lab", 1_800_000_000.0)
    api = ApiClient("https://127.0.0.1:1", "lab", secret=f"{SECRET}\n", token=f" {token}\r\n")
    assert (api._key, api._token) == (api_key(SECRET, "lab"), token)


@pytest.mark.parametrize("wrong", ["", "\n", "se cret", "se\ncret", "se\0cret", "se\x7fcret"])
@pytest.mark.parametrize("name", ["secret", "token"])
def test_a_secret_or_a_token_that_is_none_is_not_quoted(name: str, wrong: str) -> None:
    with pytest.raises(UsageError, match=rf"^the {name} is not one word, as edl has made it$"):
        ApiClient("https://127.0.0.1:1", "lab", **{name: wrong})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"^the token has a character that no token has$"):
        ApiClient("https://127.0.0.1:1", "lab", token="sécret")


@pytest.mark.parametrize("target", ["/v1/jobs?key=nächt", "/v1/a job", "/v1/jobs\r\nX: y", ""])
def test_a_target_that_cannot_be_sent_is_refused(target: str) -> None:
    with (
        ApiClient("http://127.0.0.1:1", "lab", secret=SECRET) as api,
        pytest.raises(UsageError, match=r"cannot be sent as the target of a request"),
    ):
        api.call("POST", target)


def test_a_signature_is_what_the_reference_says() -> None:
    """By docs/reference/http-api.md alone, as a client in another language does it."""

    def hmac_hex(key: bytes, text: bytes) -> str:
        return hmac.new(key, text, "sha256").hexdigest()

    key = hmac_hex(SECRET.encode(), b"edl api lab")
    parts = (b"POST", b"/v1/jobs?key=k", b"0", b"1f-ab-cd", b'{"name": "digits"}')
    text = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    assert key == api_key(SECRET, "lab")
    assert authorization(key, "1f-ab-cd", AUDIENCE, "POST", "/v1/jobs?key=k", parts[-1]) == (
        f"EDL 1f-ab-cd:{hmac_hex(key.encode(), text)}"
    )


WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


class OneAnswerServer(threading.Thread):
    """Answers each of ``connections`` connections once, and then closes it when it is told to."""

    def __init__(self, answer: bytes, connections: int) -> None:
        super().__init__()
        self._answer, self._connections = answer, connections
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.goes_on, self.closed = threading.Event(), threading.Event()

    def run(self) -> None:
        with self._socket:
            for _ in range(self._connections):
                connection, _ = self._socket.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(self._answer)
                    assert self.goes_on.wait(30.0)
                self.closed.set()


def test_an_answer_that_breaks_off_is_an_error_of_edl() -> None:
    server = OneAnswerServer(WHOLE.replace(b"Length: 2", b"Length: 9"), 1)
    server.goes_on.set()
    server.start()
    with (
        ApiClient(server.url, "lab", timeout_s=30.0) as api,
        pytest.raises(CoordinationError, match=r"does not answer: IncompleteRead.*or not"),
    ):
        api.call("GET", "/v1/jobs")
    server.join()


def test_an_idle_connection_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    server = OneAnswerServer(WHOLE, 2)
    server.start()
    with ApiClient(server.url, "lab", timeout_s=30.0) as api:
        assert api.call("GET", "/v1/jobs") == (200, {})
        server.goes_on.set()
        assert server.closed.wait(30.0)  # as the API does after 30 s
        monkeypatch.setattr(http_api, "IDLE_S", -1.0)
        assert api.call("GET", "/v1/jobs") == (200, {})
    server.join()


def test_a_tenant_serves_no_api_makes_no_token_and_starts_no_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @contextmanager
    def as_ann(*_: Any) -> Iterator[TenantStore]:
        nodes = TenantNodes(None, ClusterPaths("lab"), "ann")  # type: ignore[arg-type]
        yield TenantStore(nodes, Access("lab/ann", SECRET))

    monkeypatch.setattr(cluster_api, "connected_cluster", as_ann)
    monkeypatch.setattr(listening, "PACKAGES", ())
    with pytest.raises(UsageError, match=r"tenant ann may not serve the HTTP API; that needs"):
        cluster_api.serve_api("0")
    with pytest.raises(UsageError, match=r"tenant ann may not make tokens for the HTTP API"):
        cluster_api.token("12h")
    monkeypatch.delenv("EDL_SECRET_FILE", raising=False)
    monkeypatch.setenv("EDL_SECRET", f"tenant:ann:{SECRET}")
    with pytest.raises(UsageError, match=r"tenant ann may not start a cluster; that needs the"):
        access_to_start(None, "lab", ClusterRecord())  # type: ignore[arg-type]
