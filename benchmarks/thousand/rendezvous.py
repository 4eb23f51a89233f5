"""A rendezvous of W members: a real server in a process of its own, and W stand-ins in another.

A stand-in makes the requests of a rank of Horovod, one connection each and one after the other, as
Horovod's client does: with our patch all addresses in one request, without it one request for each
other rank (`ring/mesh.py` in edl). Its addresses are made before the measurement, and the answers
are checked after it.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import resource
import socket
import statistics
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection

from benchmarks.jobs import BenchmarkError
from benchmarks.page import Section
from edl.http.client import rendezvous_path
from edl.ring.rendezvous import ADDRESS_BYTES, RendezvousServer, new_scope

HERE = "127.0.0.1"
IN_BULK, ONE_BY_ONE = "in bulk", "one by one"
SIZES = {IN_BULK: (16, 64, 256, 1024), ONE_BY_ONE: (16, 64)}
ROUNDS = 3
ASKED_S = {256: 3.0, 1024: 15.0}
LIMIT_S = 300.0  # for one rendezvous, on a busy machine
AGAIN_S, BEAT_S = 0.01, 0.01
HOST = b"node-%04d.cluster.example"


@dataclass(frozen=True)
class Cost:
    """One rendezvous. ``stop_s``: the most the server's loop computed at a stretch."""

    wall_s: float
    server_cpu_s: float
    stop_s: float
    server_peak_bytes: int
    requests: int  # of all members
    moved_bytes: int  # to and from all members, with HTTP's heads

    def per_member(self, size: int) -> tuple[float, float]:
        """Return the requests and the bytes for each of ``size`` members."""
        return self.requests / size, self.moved_bytes / size


Found = dict[str, dict[int, list[Cost]]]  # by protocol and size


def measure(say: Callable[[str], None]) -> Found:
    """Each protocol at its sizes, ROUNDS times.

    Raises:
        BenchmarkError: an answer was wrong, or did not come in time.
    """
    found: Found = {}
    for protocol, sizes in SIZES.items():
        for size in sizes:
            costs = [rendezvous(protocol, size) for _ in range(ROUNDS)]
            found.setdefault(protocol, {})[size] = costs
            typical = _typical(costs)
            say(
                f"rendezvous of {size} {protocol}: {typical.wall_s:.2f} s, "
                f"{typical.server_cpu_s:.2f} s of the server's processor"
            )
    return found


def section(found: Found) -> Section:
    """Return the section on the rendezvous, with a row for each size and protocol."""
    rows = []
    for protocol, by_size in found.items():
        for size, costs in by_size.items():
            one = _typical(costs)
            requests, moved = one.per_member(size)
            asked = ASKED_S.get(size) if protocol == IN_BULK else None
            rows.append(
                [
                    f"{size} members, {protocol}",
                    f"{one.wall_s:.2f}",
                    f"{one.server_cpu_s:.2f}",
                    "" if asked is None else f"{asked:g}",
                    f"{requests:.1f}",
                    f"{moved / 1e3:.1f}",
                    f"{1e3 * one.stop_s:.0f}",
                    f"{one.server_peak_bytes / 2**20:.0f}",
                ]
            )
    head = [
        "",
        "wall, s",
        "processor time of the server, s",
        "goal, s of one core",
        "requests a member",
        "kB a member",
        "longest time that the server answered nobody, ms",
        "memory of the server, MiB",
    ]
    notes = [
        (
            f"The run with the median of {ROUNDS} processor times. The wall time is that of server "
            "and stand-ins together, beside whatever else the machine did: its load average was "
            f"{os.getloadavg()[0]:.0f} at the end."
        ),
        (
            "*One by one* is Horovod without the patch `bulk-rendezvous`: for each member the "
            "requests grow with the number of members, and the bytes with its square."
        ),
    ]
    return Section("Rendezvous", " ".join((__doc__ or "").split()), head, rows, notes)


def rendezvous(protocol: str, size: int) -> Cost:
    """One rendezvous of ``size`` stand-ins."""
    with _process(_serve) as server, _process(_stand_in) as members:
        port, scope = _receive(server), new_scope(1)
        members.send((protocol, size, port, scope))
        _receive(members)  # they are ready
        server.send(scope)
        _receive(server)
        members.send("go")
        wall_s, requests, moved_bytes = _receive(members)
        server.send("end")
        cpu_s, stop_s, peak_bytes = _receive(server)
    return Cost(wall_s, cpu_s, stop_s, peak_bytes, requests, moved_bytes)


def _typical(costs: list[Cost]) -> Cost:
    middle = statistics.median_low(cost.server_cpu_s for cost in costs)
    return next(cost for cost in costs if cost.server_cpu_s == middle)


@contextmanager
def _process(target: Callable[[Connection], None]) -> Iterator[Connection]:
    """Start a process that talks through a pipe; kill it when it has not ended by itself."""
    context = multiprocessing.get_context("spawn")
    ours, its = context.Pipe()
    process = context.Process(target=target, args=(its,), daemon=True)
    process.start()
    its.close()
    try:
        yield ours
        process.join(LIMIT_S)
    finally:
        process.kill()
        process.join()
        ours.close()


def _receive(pipe: Connection) -> object:
    if not pipe.poll(LIMIT_S):
        raise BenchmarkError(f"a rendezvous took more than {LIMIT_S:g} s")
    try:
        return pipe.recv()
    except EOFError as error:
        raise BenchmarkError("a process of the rendezvous failed; see above") from error


def _allow_many_files() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


# --- the server's process


def _serve(pipe: Connection) -> None:
    _allow_many_files()
    with RendezvousServer(HERE) as server:
        pipe.send(server.port)
        server.announce(pipe.recv())
        heart = _Heart()
        server.in_loop(heart.start)
        before = _cpu_s()
        pipe.send("announced")
        pipe.recv()
        peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        pipe.send((_cpu_s() - before, heart.stop_s, peak_bytes))


class _Heart:
    """Beats in a loop, and keeps the most that its thread computed between two beats."""

    def __init__(self) -> None:
        self.stop_s = 0.0
        self._last_s = 0.0

    def start(self) -> None:
        self._last_s = time.thread_time()
        self._beat()

    def _beat(self) -> None:
        now_s = time.thread_time()
        self.stop_s = max(self.stop_s, now_s - self._last_s)
        self._last_s = now_s
        asyncio.get_running_loop().call_later(BEAT_S, self._beat)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


# --- the members' process


def _stand_in(pipe: Connection) -> None:
    _allow_many_files()
    protocol, size, port, scope = pipe.recv()
    mesh = _Mesh(size, port, scope)
    pipe.send("ready")
    pipe.recv()
    began = time.monotonic()
    asyncio.run(mesh.meet(in_bulk=protocol == IN_BULK))
    wall_s = time.monotonic() - began
    mesh.check()
    pipe.send((wall_s, mesh.requests, mesh.moved_bytes))


class _Mesh:
    """W members of one mesh, as Gloo's connectFullMesh has them meet."""

    def __init__(self, size: int, port: int, scope: str) -> None:
        self.size = size
        self.requests = self.moved_bytes = 0
        self._port, self._scope = port, scope
        self._addresses = [
            b"".join(_address(owner, peer) for peer in range(size) if peer != owner)
            for owner in range(size)
        ]
        self._answers: dict[int, bytes] = {}  # in bulk, by rank
        self._connected = asyncio.Barrier(size)

    async def meet(self, in_bulk: bool) -> None:
        act = self._in_bulk if in_bulk else self._one_by_one
        async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
            for rank in range(self.size):
                group.create_task(act(rank))

    def check(self) -> None:
        """Take the answers apart as the patch does, and compare."""
        for rank, answer in self._answers.items():
            lengths = struct.unpack_from(f"!{self.size}I", answer)
            place = 4 * self.size
            for owner, length in enumerate(lengths):
                expected = _address(owner, rank) if owner != rank else b""
                if answer[place : place + length] != expected:
                    raise BenchmarkError(f"rank {rank} got a wrong address of rank {owner}")
                place += length

    async def _in_bulk(self, rank: int) -> None:
        await self._ask("PUT", f"rank_{rank}", HOST % rank)
        if rank > 0:  # rank 0 has no lower one on its host
            await self._ask("GET", f"edl-hosts/{self.size}")
        await self._ask("PUT", f"{rank}", self._addresses[rank])
        self._answers[rank] = await self._ask("GET", f"edl-addresses/{self.size}/{rank}")
        await self._connected.wait()
        await self._ask("DELETE", f"{rank}")

    async def _one_by_one(self, rank: int) -> None:
        await self._ask("PUT", f"rank_{rank}", HOST % rank)
        for other in range(rank):
            await self._ask("GET", f"rank_{other}")
        await self._ask("PUT", f"{rank}", self._addresses[rank])
        for other in range(self.size):
            if other != rank:
                await self._ask("GET", f"{other}")  # Gloo waits for it ...
                if await self._ask("GET", f"{other}") != self._addresses[other]:  # ... then gets it
                    raise BenchmarkError(f"rank {rank} got a wrong value of rank {other}")
        await self._connected.wait()
        await self._ask("DELETE", f"{rank}")

    async def _ask(self, method: str, key: str, body: bytes = b"") -> bytes:
        """Return the body of the answer to a request.

        A GET is repeated, as Horovod repeats it, when the server held it too long.
        """
        while True:
            status, answer = await self._send(method, key, body)
            if status == 200:
                return answer
            if status != 404 or method != "GET":
                raise BenchmarkError(f"{method} {key}: {status}")
            await asyncio.sleep(AGAIN_S)

    async def _send(self, method: str, key: str, body: bytes) -> tuple[int, bytes]:
        path = rendezvous_path(self._port, self._scope, f"global/{key}")
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        loop = asyncio.get_running_loop()
        with socket.socket() as connection:
            connection.setblocking(False)
            await loop.sock_connect(connection, (HERE, self._port))
            await loop.sock_sendall(connection, head.encode() + body)
            parts = []
            while part := await loop.sock_recv(connection, 1 << 18):
                parts.append(part)
        answer = b"".join(parts)
        self.requests += 1
        self.moved_bytes += len(head) + len(body) + len(answer)
        status = int(answer[len("HTTP/1.1 ") :][:3] or 0)
        return status, answer.partition(b"\r\n\r\n")[2]


def _address(owner: int, peer: int) -> bytes:
    """Where ``owner`` awaits ``peer``: as long as Gloo's, and no two are equal."""
    return struct.pack("!II", owner, peer).ljust(ADDRESS_BYTES, b"\0")
