"""The patched Horovod: a failure is an error in time, the process can go on, and sums are right."""

import http.server
import io
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import forked
import pytest
from rich.console import Console

from edl import config, horovod_build
from edl.install import horovod_wheel, toolchain
from edl.install import horovod_wheel as horovod_patches

WORKER = Path(__file__).with_name("horovod_init_worker.py")
REDUCING_WORKER = Path(__file__).with_name("horovod_reducing_worker.py")
MOST_WAKES = 300  # of an idle ring in half a second; Gloo's own thread has 50
MOST_CPU_S = 0.3  # of a wait of one second
GLOO_TIMEOUT_S = 3
LONG_GLOO_TIMEOUT_S = 60  # none of a ring's errors may take this long
DEADLINE_S = 90
HALF_WAY_S = 0.3  # somewhere in an allreduce that takes longer
FULL_S = 0.5
LARGE = 1 << 26  # floats: what the sockets take at once is a small part of it
# A message as Gloo writes it (transport/tcp/pair.h): bytes in all, opcode SEND_UNBOUND_BUFFER,
# slot, offset, length, offset at the receiver, and the 8 bytes themselves.
MESSAGE = struct.pack("=6Q", 6 * 8 + 8, 1, 4711, 0, 8, 0) + bytes(8)
ADDRESS_BYTES = 136  # of Gloo's Address: a sockaddr_storage and a sequence number

pytestmark = pytest.mark.integration


class Store(http.server.ThreadingHTTPServer):
    """Horovod's rendezvous, as small as can be; ``on_put`` sees a key before anyone gets it."""

    daemon_threads = True

    def __init__(
        self, on_put: Callable[[str, bytes], None] = lambda key, value: None, gone: bool = False
    ) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.values: dict[str, bytes] = {}
        self.on_put = on_put
        self.gone = gone


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Store

    def do_GET(self) -> None:
        value = self.server.values.get(urlsplit(self.path).path)
        self._answer(404 if value is None else 200, value or b"")

    def do_PUT(self) -> None:
        key = urlsplit(self.path).path
        value = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.on_put(key, value)
        self.server.values[key] = value
        self._answer(200, b"")

    def do_DELETE(self) -> None:
        self._answer(200, b"")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(410 if self.server.gone else status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def workers() -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
def serve() -> Iterator[Callable[[Store], Store]]:
    stores: list[Store] = []

    def start(store: Store) -> Store:
        stores.append(store)
        threading.Thread(target=store.serve_forever, daemon=True).start()
        return store

    yield start
    for store in stores:
        store.shutdown()
        store.server_close()


def at(store: Store) -> dict[str, str]:
    port = str(store.server_port)
    return {
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": port,
    }


def start_worker(
    rank: int,
    size: int,
    store: Store | Mapping[str, str],
    *argv: str,
    gloo_timeout_s: int = GLOO_TIMEOUT_S,
    script: Path = WORKER,
) -> subprocess.Popen[str]:
    settings = {
        "RANK": rank,
        "SIZE": size,
        "LOCAL_RANK": rank,
        "LOCAL_SIZE": size,
        "CROSS_RANK": 0,
        "CROSS_SIZE": 1,
        "GLOO_TIMEOUT_SECONDS": gloo_timeout_s,
        "GLOO_IFACE": "lo",
        "HOSTNAME": "localhost",
    }
    env = {k: v for k, v in os.environ.items() if not k.startswith("HOROVOD_")}
    env |= {f"HOROVOD_{name}": str(value) for name, value in settings.items()}
    env |= at(store) if isinstance(store, Store) else store
    return forked.Python("torch", [script, *argv], env=env, stdout=subprocess.PIPE)


def outcome(process: subprocess.Popen[str]) -> dict[str, object]:
    output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, f"the worker ended with {process.returncode}"
    return dict(json.loads(output.splitlines()[-1]))


def test_a_command_that_prints_nothing_is_seen_to_go_on_without_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolchain, "PLAIN_PERIOD_S", 0.1)
    shown = io.StringIO()
    toolchain.run_logged(
        ["sleep", "1"], what="compiling", log=tmp_path / "log", env={}, console=Console(file=shown)
    )
    first, *between, last = shown.getvalue().splitlines()
    assert (first, last) == ("compiling ...", "compiling: done in 1 s")
    assert len(between) >= 2
    assert {line.partition(":")[0] for line in between} == {"compiling"}


def test_the_installed_horovod_has_every_patch_that_matters() -> None:
    assert not horovod_patches.missing(horovod_build.installed_marker())


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpack Horovod's source and apply every patch, also those of GPUs."""
    archive = config.cache_dir() / "wheels" / f"horovod-{horovod_wheel.VERSION}.tar.gz"
    assert archive.is_file(), "a build of Horovod leaves it there: edl build-horovod --force"
    folder = tmp_path_factory.mktemp("source")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    unpacked = folder / f"horovod-{horovod_wheel.VERSION}"
    horovod_patches.apply(unpacked, horovod_patches.patches())
    return unpacked


def test_every_patch_fits(source: Path) -> None:
    assert not list(source.rglob("*.rej"))


TORCH_FOR_CUDA = """
from types import SimpleNamespace
__version__, version = "2.14.1+cu130", SimpleNamespace(cuda="13.0", hip=None)
compiled_with_cxx11_abi = lambda: True
"""
ITS_CPP_EXTENSION = """
from types import SimpleNamespace
CUDA_HOME, ROCM_HOME = "/", None
CppExtension = lambda *_: SimpleNamespace(include_dirs=[], library_dirs=[], libraries=[])
CUDAExtension = None
"""


def test_a_build_follows_what_was_asked_for_and_not_how_pytorch_was_built(
    source: Path, tmp_path: Path
) -> None:
    """Beside a PyTorch for CUDA and a part of a toolkit it is configured for CPUs."""
    utils, nvcc, build = tmp_path / "torch" / "utils", tmp_path / "bin" / "nvcc", tmp_path / "build"
    for folder in (utils, nvcc.parent, build):
        folder.mkdir(parents=True)
    utils.with_name("__init__.py").write_text(TORCH_FOR_CUDA)
    (utils / "cpp_extension.py").write_text(ITS_CPP_EXTENSION)
    nvcc.write_text("#!/bin/sh\necho called >>$0.log\necho no headers >&2\nexit 1\n")
    nvcc.chmod(0o755)
    recipe = horovod_wheel.Recipe("cpython-311", "x86_64", "2.14.1", None, ())
    env = os.environ | recipe.environment | {"PYTHONPATH": str(tmp_path)}
    env["PATH"] = f"{nvcc.parent}:{env['PATH']}"
    subprocess.run(
        ["cmake", str(source), f"-DPYTHON_EXECUTABLE={sys.executable}"],
        cwd=build,
        env=env,
        timeout=DEADLINE_S,
        check=True,
    )
    flags = [path.read_text() for path in build.rglob("flags.make")]
    assert flags
    assert not any("-DHAVE_CUDA" in text or "-DHAVE_GPU" in text for text in flags)
    assert not nvcc.with_name("nvcc.log").exists()


def test_a_peer_that_dies_while_the_ring_is_built_raises_and_the_process_goes_on(
    workers: list[subprocess.Popen[str]], serve: Callable[[Store], Store]
) -> None:
    def kill_once_its_address_is_known(key: str, value: bytes) -> None:
        if key == "/global/1":  # from now on rank 0 would connect to rank 1 or wait for it
            workers[1].kill()

    store = serve(Store(kill_once_its_address_is_known))
    for rank in (0, 1):
        workers.append(start_worker(rank, 2, store))

    result = outcome(workers[0])

    assert result["raised"] in ("ValueError", "HorovodInternalError")
    assert float(str(result["elapsed_s"])) < GLOO_TIMEOUT_S + 2
    assert (result["size"], result["sum"]) == (1, [2.0, 2.0, 2.0])
    assert workers[1].wait(DEADLINE_S) == -9


def test_a_rendezvous_that_was_given_up_ends_init_at_once(
    workers: list[subprocess.Popen[str]], serve: Callable[[Store], Store]
) -> None:
    workers.append(start_worker(0, 2, serve(Store(gone=True))))

    result = outcome(workers[0])

    assert result["raised"] == "ValueError"
    assert float(str(result["elapsed_s"])) < 0.5  # three tries would sleep for 1.5 s
    assert result["sum"] == [2.0, 2.0, 2.0]


def test_a_peer_that_resets_its_connection_before_it_is_accepted_raises(
    workers: list[subprocess.Popen[str]], serve: Callable[[Store], Store]
) -> None:
    def connect_and_reset(key: str, address: bytes) -> None:
        """Play rank 1, which is killed after its connect() and before rank 0's accept()."""
        if key != "/global/0":
            return
        (port,) = struct.unpack_from("!H", address, 2)  # of a sockaddr_in
        workers[0].send_signal(signal.SIGSTOP)
        with socket.create_connection(("127.0.0.1", port)) as peer:
            reset_on_close = struct.pack("ii", 1, 0)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset_on_close)
        workers[0].send_signal(signal.SIGCONT)

    store = serve(Store(connect_and_reset))
    store.values["/global/rank_1"] = b"a host"
    store.values["/global/1"] = bytes(ADDRESS_BYTES)  # never used: the pair has failed by then
    workers.append(start_worker(0, 2, store))

    result = outcome(workers[0])

    assert result["raised"] == "ValueError"
    assert result["sum"] == [2.0, 2.0, 2.0]


def test_a_message_that_nobody_waits_for_raises(
    workers: list[subprocess.Popen[str]], serve: Callable[[Store], Store]
) -> None:
    """Gloo's event thread throws for it, and nobody catches there."""
    peers: list[socket.socket] = []

    def connect_and_send(key: str, address: bytes) -> None:
        """Play rank 1, and send what Gloo sends of a transfer, without its announcement."""
        if key == "/global/0":
            (port,) = struct.unpack_from("!H", address, 2)  # of a sockaddr_in
            workers[0].send_signal(signal.SIGSTOP)  # it finds both at once
            peers.append(socket.create_connection(("127.0.0.1", port)))
            peers[0].sendall(MESSAGE)
            workers[0].send_signal(signal.SIGCONT)

    store = serve(Store(connect_and_send))
    store.values["/global/rank_1"] = b"a host"
    store.values["/global/1"] = bytes(ADDRESS_BYTES)  # never used: the pair has failed by then
    workers.append(start_worker(0, 2, store))

    result = outcome(workers[0])
    peers[0].close()

    assert result["raised"] == "ValueError"
    assert result["sum"] == [2.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("collective", "shared"),
    [
        ("allreduce", "1"),
        ("allreduce", "0"),
        ("broadcast from 0", "1"),
        pytest.param("broadcast from 1", "1", marks=pytest.mark.long),
    ],
)
def test_a_peer_that_dies_in_the_midst_of_a_transfer_raises_at_once(
    workers: list[subprocess.Popen[str]],
    serve: Callable[[Store], Store],
    collective: str,
    shared: str,
) -> None:
    store = at(serve(Store())) | {"HOROVOD_SHM_ALLREDUCE": shared}
    for rank in (0, 1):
        argv = (collective, str(LARGE))
        workers.append(start_worker(rank, 2, store, *argv, gloo_timeout_s=LONG_GLOO_TIMEOUT_S))
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "begins\n"
    time.sleep(HALF_WAY_S)
    workers[1].send_signal(signal.SIGSTOP)
    time.sleep(FULL_S)  # the other end has sent and received what it can by then
    workers[1].kill()

    result = outcome(workers[0])

    assert result["raised"] == "HorovodInternalError"
    assert float(str(result["elapsed_s"])) < LONG_GLOO_TIMEOUT_S / 2
    assert result["sum"] == [2.0, 2.0, 2.0]


def test_a_ring_that_breaks_while_tensors_are_sent_freezes_nobody(
    workers: list[subprocess.Popen[str]], serve: Callable[[Store], Store]
) -> None:
    """Horovod's own thread and the one that sends want Python's lock and Horovod's, crosswise."""
    store = serve(Store())
    for rank in (0, 1):
        argv = ("sending on", "1")
        workers.append(start_worker(rank, 2, store, *argv, gloo_timeout_s=LONG_GLOO_TIMEOUT_S))
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "begins\n"
    time.sleep(HALF_WAY_S)
    workers[1].kill()

    result = outcome(workers[0])

    assert result["raised"] == "HorovodInternalError"
    assert result["sum"] == [2.0, 2.0, 2.0]


def test_without_memory_for_a_collective_all_get_an_error(
    workers: list[subprocess.Popen[str]], serve: Callable[[Store], Store]
) -> None:
    """The tensors had left Horovod's table, and threads waited for them for ever."""
    store = serve(Store())
    argv = ("without memory", "1")
    for rank in (0, 1):
        workers.append(start_worker(rank, 2, store, *argv, gloo_timeout_s=LONG_GLOO_TIMEOUT_S))

    for result in [outcome(one) for one in workers]:
        assert result["raised"] == "HorovodInternalError"
        assert float(str(result["elapsed_s"])) < LONG_GLOO_TIMEOUT_S / 2
        assert result["sum"] == [2.0, 2.0, 2.0]


@pytest.mark.parametrize(
    "ranks",
    [pytest.param(ranks, marks=pytest.mark.long) for ranks in (2, 3, 6)] + [4],
)
def test_in_shared_memory_the_sum_is_made_in_the_order_of_the_ranks(
    workers: list[subprocess.Popen[str]], serve: Callable[[Store], Store], ranks: int
) -> None:
    """With more than three ranks each one reduces a part, and reads those of the others.

    Broadcasts between the sums reach all ranks whole.
    """
    store = serve(Store())
    workers += [start_worker(rank, ranks, store, script=REDUCING_WORKER) for rank in range(ranks)]
    found = [outcome(one) for one in workers]
    for one in found:
        assert (one["shared"], one["gone"], one["wrong"]) == (True, True, [])
        assert int(str(one["wakes"])) < MOST_WAKES, "3,500 with a cycle each millisecond"
    assert len({one["sha256"] for one in found}) == 1
    for wait in (one["wait"] for one in found[1:]):
        assert isinstance(wait, dict)
        assert wait["cpu_s"] < MOST_CPU_S, "a whole second by polls without a pause"
        assert wait["after_signal_s"] > FULL_S, "signals are handled while it waits"


def test_gloo_reduces_if_one_rank_does_not_want_shared_memory(
    workers: list[subprocess.Popen[str]], serve: Callable[[Store], Store]
) -> None:
    store = serve(Store())
    for rank, wanted in enumerate("10"):
        settings = at(store) | {"HOROVOD_SHM_ALLREDUCE": wanted}
        workers.append(start_worker(rank, 2, settings, script=REDUCING_WORKER))
    for one in [outcome(each) for each in workers]:
        assert (one["shared"], one["wrong"]) == (False, [])


def test_a_timeline_on_one_rank_only_breaks_the_ring_at_once(
    workers: list[subprocess.Popen[str]], serve: Callable[[Store], Store], tmp_path: Path
) -> None:
    """In shared memory nothing but the ranks' own check would see that their bits differ."""
    store = at(serve(Store()))
    for rank in (0, 1):
        timeline = {"HOROVOD_TIMELINE": str(tmp_path / "timeline.json")} if rank == 0 else {}
        settings, argv = store | timeline, ("allreduce", "8")
        workers.append(start_worker(rank, 2, settings, *argv, gloo_timeout_s=LONG_GLOO_TIMEOUT_S))

    for result in [outcome(one) for one in workers]:
        assert result["raised"] == "HorovodInternalError"
        assert float(str(result["elapsed_s"])) < LONG_GLOO_TIMEOUT_S / 2
