"""Real rings that meet in bulk, and those that do not: the variable names another store or none."""

from __future__ import annotations

import struct
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from test_horovod_build import ADDRESS_BYTES, Store, at, outcome, serve, start_worker, workers

from edl.http.server import HttpRequest, Response
from edl.ring.rendezvous import BULK, RendezvousServer, new_scope, rendezvous_environment

__all__ = ["serve", "workers"]  # fixtures
HERE, SIZE = "127.0.0.1", 3
LONG_S = 60  # for Gloo on a busy machine: nobody dies here
pytestmark = pytest.mark.integration


class Counting(RendezvousServer):
    def __init__(self) -> None:
        super().__init__(HERE)
        self.asked: Counter[str] = Counter()

    async def answer_other(self, request: HttpRequest) -> Response:
        key = request.path.partition("/global/")[2]
        self.asked[f"{request.method} {key.rstrip('0123456789/')}"] += 1
        return await super().answer_other(request)


@pytest.fixture
def counting() -> Iterator[Counting]:
    with Counting() as server:
        yield server


def ring(
    server: RendezvousServer, workers: list[subprocess.Popen[str]], **other: str
) -> list[dict[str, object]]:
    """Build a ring of SIZE that meets at ``server`` and is shut down; each then goes on alone."""
    scope = new_scope(1)
    server.announce(scope)
    where = rendezvous_environment(HERE, server.port, scope) | other
    for rank in range(SIZE):
        workers.append(start_worker(rank, SIZE, where, gloo_timeout_s=LONG_S))
    return [outcome(worker) for worker in workers]


def test_a_ring_takes_five_requests_of_each_member(
    counting: Counting, workers: list[subprocess.Popen[str]]
) -> None:
    for result in ring(counting, workers):
        assert result["raised"] == ""
        assert (result["size"], result["sum"]) == (1, [2.0, 2.0, 2.0])
    assert counting.asked == {
        "PUT rank_": SIZE,
        "GET edl-hosts": SIZE - 1,  # rank 0 is the first of its host
        "PUT ": SIZE,
        "GET edl-addresses": SIZE,
        "DELETE ": SIZE,
    }


def test_a_store_that_is_not_named_is_asked_key_by_key(
    counting: Counting, workers: list[subprocess.Popen[str]]
) -> None:
    """As by a Horovod without the patch; here the variable is that of another job."""
    named = {BULK: f"{HERE}:1/g1-ab"}
    assert [result["raised"] for result in ring(counting, workers, **named)] == [""] * SIZE
    pairs = SIZE * (SIZE - 1)
    assert counting.asked == {
        "PUT rank_": SIZE,
        "GET rank_": pairs // 2,
        "PUT ": SIZE,
        "GET ": 2 * pairs,
        "DELETE ": SIZE,
    }


@pytest.mark.parametrize(
    "answer",
    [
        struct.pack("!2I", 0, ADDRESS_BYTES) + bytes(ADDRESS_BYTES + 1),
        pytest.param(b"\0\0\0", marks=pytest.mark.long),
        pytest.param(
            struct.pack("!2I", 0xFFFFFFFF, 0xFFFFFFFF) + bytes(ADDRESS_BYTES),
            marks=pytest.mark.long,
        ),
        pytest.param(struct.pack("!2I", 0, 3) + bytes(3), marks=pytest.mark.long),
    ],
    ids=["a byte more", "half a length", "huge", "no address"],
)
def test_an_answer_of_a_wrong_length_is_an_error(
    workers: list[subprocess.Popen[str]], serve: Callable[[Store], Store], answer: bytes
) -> None:
    store = serve(Store())
    store.values["/global/edl-addresses/2/0"] = answer
    named = {BULK: at(store)["HOROVOD_GLOO_RENDEZVOUS_ADDR"]}
    workers.append(start_worker(0, 2, at(store) | named, gloo_timeout_s=LONG_S))

    result = outcome(workers[0])

    assert result["raised"] == "ValueError"
    assert float(str(result["elapsed_s"])) < LONG_S / 2
    assert result["sum"] == [2.0, 2.0, 2.0]


def test_a_mesh_that_does_not_come_ends_with_gloos_time_out(
    workers: list[subprocess.Popen[str]], serve: Callable[[Store], Store]
) -> None:
    """The store answers 404 for ever, as edl's does each 20 s."""
    store = serve(Store())
    named = {BULK: at(store)["HOROVOD_GLOO_RENDEZVOUS_ADDR"]}
    for rank in (0, 1):  # one is held for the addresses, one for the hosts
        workers.append(start_worker(rank, 2, at(store) | named, gloo_timeout_s=1))
    for worker in workers:
        result = outcome(worker)
        assert result["raised"] == "ValueError"
        assert float(str(result["elapsed_s"])) < LONG_S / 2
