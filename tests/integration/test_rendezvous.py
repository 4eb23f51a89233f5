"""The daemon's HTTP port: keys that are waited for, scopes that end, and input that is garbage."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from edl.errors import RendezvousFailed, RingError
from edl.http.client import ask, fetch, http_put, rendezvous_path, send_change
from edl.http.server import BODY_BYTES, HttpRequest
from edl.http.signing import Authenticator, authorization, http_key
from edl.records import Liveness
from edl.ring.rendezvous import (
    BULK,
    EARLY,
    RendezvousServer,
    RendezvousStore,
    new_scope,
    rendezvous_environment,
)

pytestmark = pytest.mark.integration
HERE = "127.0.0.1"
SCOPE, NEXT = new_scope(1), new_scope(2)
KEY = http_key("0123456789abcdef" * 4, "digits")


@pytest.fixture
def server() -> Iterator[RendezvousServer]:
    guard = Authenticator(KEY)
    guard.worker = 3
    with RendezvousServer(HERE, health=lambda: {"worker": 3}, guard=guard) as one:
        one.announce(SCOPE)
        yield one
    assert not [t for t in threading.enumerate() if t.name == "edl-http"]


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(220) as one:
        yield one


def test_a_server_whose_start_was_interrupted_can_be_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By SIGTERM, whose handler ends the process; nothing of it is left to be complained of."""

    def interrupted(thread: threading.Thread) -> None:
        raise SystemExit(0)

    server = RendezvousServer(HERE)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(SystemExit):
            server.start()
    server.close()
    server.start()
    assert fetch(HERE, server.port, "/nothing", 5.0)[0] == 404
    server.close()
    del server
    gc.collect()  # an event loop or a socket that is left open is an error here


class Client:
    def __init__(self, server: RendezvousServer, scope: str = SCOPE) -> None:
        self.port, self.scope = server.port, scope

    def path(self, key: str) -> str:
        return rendezvous_path(self.port, self.scope, key)

    def put(self, key: str, value: bytes) -> int:
        return http_put(HERE, self.port, self.path(key), value, 10.0)[0]

    def get(self, key: str, timeout_s: float = 10.0) -> tuple[int, bytes]:
        return fetch(HERE, self.port, self.path(key), timeout_s)

    def send(self, text: bytes) -> bytes:
        with socket.create_connection((HERE, self.port), 10) as connection:
            connection.sendall(text)
            answer = b""
            try:
                while part := connection.recv(65536):
                    answer += part
            except ConnectionResetError:
                pass
            return answer


@pytest.fixture
def client(server: RendezvousServer) -> Client:
    return Client(server)


def held(server: RendezvousServer) -> int:
    return server.store.held


class TestStore:
    def test_what_was_put_is_got_until_it_is_deleted(self, client: Client) -> None:
        assert client.put("global/0", b"\x00address\xff") == 200
        assert client.get("global/0") == (200, b"\x00address\xff")
        assert client.put("global/0", b"") == 200
        assert client.get("global/0") == (200, b"")
        text = f"DELETE {client.path('global/0')} HTTP/1.1\r\n\r\n"
        assert client.send(text.encode()).startswith(b"HTTP/1.1 200 OK\r\n")

    def test_a_key_is_waited_for(
        self,
        client: Client,
        server: RendezvousServer,
        pool: ThreadPoolExecutor,
        wait_until: Callable[..., None],
    ) -> None:
        answers = [pool.submit(client.get, "global/1") for _ in range(3)]
        wait_until(lambda: held(server) == 3)
        assert client.put("global/2", b"another key") == 200
        assert held(server) == 3
        assert client.put("global/1", b"here") == 200
        assert [answer.result(10) for answer in answers] == [(200, b"here")] * 3
        assert held(server) == 0

    def test_a_key_that_does_not_come_is_404_so_that_the_client_asks_again(self) -> None:
        with RendezvousServer(HERE, store=RendezvousStore(hold_s=0.1)) as server:
            server.announce(SCOPE)
            assert Client(server).get("global/9") == (404, b"")
            assert held(server) == 0

    def test_the_next_generation_ends_the_one_before(self, server: RendezvousServer) -> None:
        one, two = Client(server), Client(server, NEXT)
        one.put("global/0", b"1")
        server.announce(NEXT)
        two.put("global/0", b"2")
        server.announce(SCOPE)  # late, so it counts for nothing
        assert one.get("global/0") == one.get("global/1") == (410, b"")
        assert two.get("global/0") == (200, b"2")

    def test_who_comes_before_the_generation_is_known_is_held(
        self, server: RendezvousServer, pool: ThreadPoolExecutor, wait_until: Callable[..., None]
    ) -> None:
        early = Client(server, NEXT)
        answer, stored = pool.submit(early.get, "g/0"), pool.submit(early.put, "g/0", b"here")
        wait_until(lambda: held(server) == 2)
        server.announce(NEXT)
        assert (stored.result(10), answer.result(10)) == (200, (200, b"here"))

    def test_a_scope_of_a_generation_that_does_not_come_is_refused(self) -> None:
        with RendezvousServer(HERE, store=RendezvousStore(hold_s=0.1)) as server:
            client = Client(server)
            assert client.get("global/0") == (404, b"")
            assert client.put("global/0", b"x") == 503  # Horovod takes 404 for success
            assert (
                client.send(f"DELETE {client.path('g/0')} HTTP/1.1\r\n\r\n".encode())[9:12]
                == b"404"
            )

    @pytest.mark.parametrize("scope", ["", "one", "g1", "g1-", "1-ab", "gx-ab", "g1-xyz", "g-1-ab"])
    def test_what_is_no_scope_is_not_found(self, server: RendezvousServer, scope: str) -> None:
        assert Client(server, scope).get("global/0") == (404, b"")

    def test_a_guess_is_gone_and_does_no_harm(
        self, client: Client, server: RendezvousServer
    ) -> None:
        client.put("global/0", b"mine")
        for guess in (new_scope(1), SCOPE[:-1], SCOPE + "0", f"g01{SCOPE[2:]}"):
            assert Client(server, guess).put("global/0", b"another's") == 410
        assert client.get("global/0") == (200, b"mine")

    def test_those_who_come_early_are_bounded(self) -> None:
        """On the loop itself: a thousand connections would tell nothing more."""
        store = RendezvousStore(hold_s=0.2)

        async def flood() -> list[int]:
            puts = [store.put(NEXT, "g/0", b"") for _ in range(EARLY + 3)]
            return sorted(await asyncio.gather(*puts))

        assert asyncio.run(flood()) == [503] * (EARLY + 3)
        assert store.held == 0

    def test_a_closed_scope_frees_those_who_wait_at_once_and_for_ever(
        self,
        client: Client,
        server: RendezvousServer,
        pool: ThreadPoolExecutor,
        wait_until: Callable[..., None],
    ) -> None:
        client.put("global/0", b"x" * 1000)
        answers = [pool.submit(client.get, f"global/{n}") for n in range(1, 5)]
        wait_until(lambda: held(server) == 4)
        began = time.monotonic()
        server.close_scope(client.scope)
        assert [answer.result(10) for answer in answers] == [(410, b"")] * 4
        assert time.monotonic() - began < 2.0
        assert client.get("global/0") == (410, b"")
        assert client.put("global/0", b"x") == 410
        server.announce(client.scope)
        assert client.get("global/0") == (410, b"")

    def test_a_client_that_goes_away_is_not_waited_for(
        self, client: Client, server: RendezvousServer, wait_until: Callable[..., None]
    ) -> None:
        with pytest.raises(RendezvousFailed, match="TimeoutError"):
            client.get("global/0", timeout_s=0.2)
        wait_until(lambda: held(server) == 0)

    def test_two_hundred_ranks_at_once(
        self, client: Client, server: RendezvousServer, pool: ThreadPoolExecutor
    ) -> None:
        """Each waits for its neighbour's address before it publishes its own; rank 0 begins."""
        count = 200

        def rank(number: int) -> bytes:
            if number > 0:
                status, value = client.get(f"global/{number - 1}", 60.0)
                assert status == 200
                assert client.put(f"global/{number}", value + b".") == 200
                return value
            time.sleep(0)
            return b""

        ranks: list[Future[bytes]] = [pool.submit(rank, n) for n in range(count)]
        assert client.put("global/0", b".") == 200
        assert [len(answer.result(60)) for answer in ranks] == list(range(count))

    def test_the_environment_leads_horovods_url_to_the_scope(
        self, server: RendezvousServer
    ) -> None:
        """As horovod/common/gloo/http_store.h builds it and HTTPRequest.hpp takes it apart."""
        variables = rendezvous_environment(HERE, server.port, "s3cret")
        address = variables["HOROVOD_GLOO_RENDEZVOUS_ADDR"]
        url = f"{address}:{variables['HOROVOD_GLOO_RENDEZVOUS_PORT']}/global/0"
        assert variables[BULK] == address  # Horovod compares the two
        domain, _, path = url.partition("/")
        assert domain == f"{HERE}:{server.port}"
        assert f"/{path}" == rendezvous_path(server.port, "s3cret", "global/0")


class TestServer:
    def test_health_and_unknown_paths(self, server: RendezvousServer) -> None:
        status, body = fetch(HERE, server.port, "/health", 5.0)
        assert (status, json.loads(body)) == (200, {"worker": 3})
        for path in ("/", "/healthy", "/scope/global/0", "/scope:x/global/0", "/scope:1/"):
            assert fetch(HERE, server.port, path, 5.0)[0] == 404

    def test_routes_of_others_and_the_longest_prefix(self, server: RendezvousServer) -> None:
        def echo(request: HttpRequest) -> tuple[int, bytes]:
            return 200, f"{request.method} {request.path} {request.query} ".encode() + request.body

        def fail(request: HttpRequest) -> tuple[int, bytes]:
            raise ValueError("on purpose")

        server.add_route("/echo", echo, "text/plain")
        server.add_route("/echo/fail", fail)
        assert fetch(HERE, server.port, "/echo/a?b=c", 5.0) == (200, b"GET /echo/a b=c ")
        assert fetch(HERE, server.port, "/echo/fail", 5.0) == (500, b"")
        assert fetch(HERE, server.port, "/health", 5.0)[0] == 200
        assert http_put(HERE, server.port, "/echo/a", b"body", 5.0) == (405, b"")

    def test_a_change_must_be_signed_and_counts_once(
        self, server: RendezvousServer, client: Client
    ) -> None:
        done: list[bytes] = []

        def act(request: HttpRequest) -> tuple[int, bytes]:
            done.append(request.body)
            return 200, request.target.encode()

        server.add_route("/act", act, changes=True)
        for method in ("GET", "POST", "PUT", "DELETE"):
            text = f"{method} /act/x?y=1 HTTP/1.1\r\nContent-Length: 1\r\n\r\n1"
            refused = client.send(text.encode())
            assert refused.startswith(b"HTTP/1.1 401 ")
        assert done == []

        ask = (HERE, server.port, "/act/x?y=1", 5.0, b"body")
        assert send_change(KEY, 3, "POST", *ask) == (200, b"/act/x?y=1")
        assert done.pop() == b"body"
        for key, worker in ((http_key("f" * 64, "digits"), 3), (KEY, 4)):
            assert send_change(key, worker, "POST", *ask)[0] == 401

        nonce = refused.split(b"WWW-Authenticate: EDL ")[1].split(b"\r\n")[0].decode()
        signature = authorization(KEY, nonce, 3, "PUT", "/act", b"abc")
        for body, method, path, status in (
            (b"abd", "PUT", "/act", b"401"),
            (b"abc", "POST", "/act", b"401"),
            (b"abc", "PUT", "/act/x", b"401"),
            (b"abc", "PUT", "/act", b"200"),
            (b"abc", "PUT", "/act", b"401"),  # a replay
        ):
            head = f"{method} {path} HTTP/1.1\r\nContent-Length: 3\r\nAuthorization: {signature}"
            assert client.send(head.encode() + b"\r\n\r\n" + body)[9:12] == status
        assert done == [b"abc"]

    def test_a_server_without_a_key_lets_nobody_change_anything(self) -> None:
        with RendezvousServer(HERE) as server:
            server.add_route("/act", lambda request: (200, b""), changes=True)
            assert send_change(KEY, 3, "POST", HERE, server.port, "/act", 5.0) == (401, b"")

    def test_a_port_shows_whether_its_process_lives(self) -> None:
        with RendezvousServer(HERE) as server:
            port = server.port
            assert ask(HERE, port, 5.0).liveness is Liveness.ALIVE
        assert ask(HERE, port, 5.0).liveness is Liveness.REFUSED
        with pytest.raises(ConnectionRefusedError):
            fetch(HERE, port, "/health", 5.0)
        with socket.create_server((HERE, 0)) as frozen:
            assert ask(HERE, frozen.getsockname()[1], 0.2).liveness is Liveness.SILENT

    def test_the_end_of_the_server_frees_those_who_wait(
        self, pool: ThreadPoolExecutor, wait_until: Callable[..., None]
    ) -> None:
        server = RendezvousServer(HERE)
        server.start()
        server.announce(SCOPE)
        client = Client(server)
        answer = pool.submit(client.get, "global/0")
        wait_until(lambda: held(server) == 1)
        server.close()
        server.close()
        assert answer.result(5) == (410, b"")
        assert server.port == 0
        gc.collect()  # a socket left open would warn here

    def test_a_port_that_is_taken_is_an_error(self, server: RendezvousServer) -> None:
        with pytest.raises(RingError, match=r"cannot listen on .*; another process listens"):
            RendezvousServer(HERE, server.port).start()

    @pytest.mark.parametrize("address", ["", "0", "0.0.0.0", "::"])
    def test_it_never_listens_on_every_network(self, address: str) -> None:
        with pytest.raises(RingError, match="every network of this machine"):
            RendezvousServer(address).start()
        gc.collect()

    @pytest.mark.parametrize(
        ("text", "status"),
        [
            (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"400"),
            (b"nonsense\r\n\r\n", b"400"),
            (b"GET /health\r\n\r\n", b"400"),
            (b"PUT /s:1/g/0 HTTP/1.1\r\nContent-Length: many\r\n\r\n", b"400"),
            (b"PUT /s:1/g/0 HTTP/1.1\r\nContent-Length: -1\r\n\r\n", b"400"),
            (b"PUT /s:1/g/0 HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (BODY_BYTES + 1), b"413"),
            (b"GET /%s HTTP/1.1\r\n\r\n" % (b"a" * 9000), b"414"),
            (b"GET / HTTP/1.1\r\nX: %s\r\n\r\n" % (b"a" * 40_000), b"431"),
            (b"PATCH /g1-a:1/g/0 HTTP/1.1\r\n\r\n", b"405"),
            (b"POST /health HTTP/1.1\r\nContent-Length: 0\r\n\r\n", b"405"),
            (b"GET http://10.0.0.1:99/health HTTP/1.1\r\nHost: x\r\n\r\n", b"200"),
            (b"GET http://10.0.0.1:99 HTTP/1.1\r\nHost: x\r\n\r\n", b"404"),
            (b"GET /health HTTP/1.1\r\n\r\nGET /health HTTP/1.1\r\n\r\n", b"200"),
        ],
    )
    def test_any_input_is_answered_and_closed(
        self, client: Client, text: bytes, status: bytes, caplog: pytest.LogCaptureFixture
    ) -> None:
        answer = client.send(text)
        assert answer.startswith(b"HTTP/1.1 " + status)
        assert answer.count(b"HTTP/1.1 ") == 1
        assert fetch(HERE, client.port, "/health", 5.0)[0] == 200
        assert not caplog.records

    @pytest.mark.parametrize(
        "start",
        [
            b"GET / HTTP/1.1\r\nX: ",
            b"GET / HTTP/1.1\r\n",
            b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: ",
        ],
        ids=["the value of a header", "the name of a header", "a trailer"],
    )
    def test_a_header_without_an_end_takes_no_memory(self, client: Client, start: bytes) -> None:
        sent = 0
        with socket.create_connection((HERE, client.port), 10) as connection:
            connection.sendall(start)
            with contextlib.suppress(ConnectionError):
                while sent < 4 * BODY_BYTES:
                    connection.sendall(b"a" * 65536)
                    sent += 65536
        assert sent < 2 * BODY_BYTES
        assert fetch(HERE, client.port, "/health", 5.0)[0] == 200

    def test_a_request_in_small_pieces_is_one_request(self, client: Client) -> None:
        text = f"PUT {client.path('global/0')} HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc".encode()
        with socket.create_connection((HERE, client.port), 10) as connection:
            for byte in text:
                connection.sendall(bytes([byte]))
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
        assert client.get("global/0") == (200, b"abc")
