"""How long a rendezvous takes and what it costs rank 0: ``python -m benchmarks.rendezvous 8 16``.

Each rank is a process with plain sockets, which asks as Horovod does: in two scopes it puts its
own addresses (136 bytes a rank) and then gets those of all others, one connection a request.
"""

from __future__ import annotations

import multiprocessing
import resource
import socket
import statistics
import sys
import time

from edl.http.client import rendezvous_path
from edl.ring.rendezvous import RendezvousServer, new_scope

HERE, ROUNDS, BYTES = "127.0.0.1", 5, 136


def _ask(port: int, method: str, path: str, body: bytes = b"") -> None:
    with socket.create_connection((HERE, port)) as connection:
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        answer = connection.recv(65536)
        while part := connection.recv(65536):
            answer += part
        assert answer.startswith(b"HTTP/1.1 200 "), answer


def _rank(port: int, rank: int, size: int, scopes: list[str], barrier: object) -> None:
    for scope in scopes:
        barrier.wait()  # type: ignore[attr-defined]
        for context in ("global", "local"):
            paths = [rendezvous_path(port, scope, f"{context}/{r}") for r in range(size)]
            _ask(port, "PUT", paths[rank], bytes(BYTES * size))
            for other in (rank + i for i in range(1, size)):
                _ask(port, "GET", paths[other % size])
        barrier.wait()  # type: ignore[attr-defined]


def measure(server: RendezvousServer, size: int) -> tuple[list[float], float]:
    """Seconds of each rendezvous of ``size`` ranks, and this process's processor seconds in one."""
    scopes = [new_scope(generation) for generation in range(1, ROUNDS + 1)]
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(size + 1)
    arguments = (size, scopes, barrier)
    ranks = [context.Process(target=_rank, args=(server.port, r, *arguments)) for r in range(size)]
    for process in ranks:
        process.start()
    times = []
    used = resource.getrusage(resource.RUSAGE_SELF)
    for scope in scopes:
        server.announce(scope)
        barrier.wait()
        began = time.monotonic()
        barrier.wait()
        times.append(time.monotonic() - began)
    now = resource.getrusage(resource.RUSAGE_SELF)
    for process in ranks:
        process.join()
    cpu = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    return times, cpu / ROUNDS


def main() -> None:
    for size in [int(text) for text in sys.argv[1:]] or [8, 16]:
        with RendezvousServer(HERE) as server:
            times, cpu_s = measure(server, size)
        print(
            f"{size} ranks: {statistics.median(times):.3f} s (best {min(times):.3f}), "
            f"{cpu_s:.3f} s of one core in the server's process"
        )


if __name__ == "__main__":
    main()
