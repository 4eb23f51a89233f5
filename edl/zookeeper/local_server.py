"""Run a real standalone ZooKeeper for this user on this machine, when there is no other.

There is one server for each directory with a server's files. It listens on one address, 127.0.0.1
unless the user names another, and outlives the process that started it. Other processes recognize
it by its command line, which names the configuration file; edl never signals any other process.
"""

from __future__ import annotations

import ipaddress
import json
import os
import random
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from errno import EADDRINUSE
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from edl import config
from edl.config import LOOPBACK
from edl.errors import CoordinationError, UsageError

# ------------------------------------------------------------
# Find Java and ZooKeeper on this machine; `server_command` gives the command to run.

DEBIAN_JAR = Path("/usr/share/java/zookeeper.jar")
MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_JVM = (
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dzookeeper.preAllocSize=1024",  # KB; the default reserves 64 MB a log file
    "-Dzookeeper.nio.numWorkerThreads=0",  # else two more threads handle each request
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
)


def server_command(environ: Mapping[str, str], directory: Path) -> list[str]:
    """Return the command that starts a ZooKeeper server; the caller appends the configuration."""
    home = environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else environ.get("PATH"))
    if java is None:
        raise CoordinationError(
            "a local ZooKeeper needs Java, and there is no `java` on the PATH: "
            "`apt-get install default-jre-headless`, or name a running one with --zookeeper"
        )
    return [java, *_JVM, "-cp", f"{directory}{os.pathsep}{_class_path(environ)}", MAIN]


def _class_path(environ: Mapping[str, str]) -> str:
    named = environ.get("ZOOKEEPER_HOME")
    homes = [Path(named)] if named else []
    opt = sorted(Path("/opt").glob("zookeeper*")) if not named else []
    for home in homes + opt[::-1]:
        if any((home / "lib").glob("zookeeper-[0-9]*.jar")):
            return f"{home}/lib/*"
    if DEBIAN_JAR.is_file() and not named:
        # Its manifest names its other jars, but none to log with.
        return f"{DEBIAN_JAR}{os.pathsep}{DEBIAN_JAR.with_name('slf4j-simple.jar')}"
    where = f"{named}/lib (ZOOKEEPER_HOME)" if named else f"{DEBIAN_JAR} or /opt/zookeeper*/lib"
    raise CoordinationError(
        f"there is no ZooKeeper in {where}: `apt-get install zookeeper`, unpack Apache's "
        "distribution and set ZOOKEEPER_HOME, or name a running one with --zookeeper"
    )


START_S = 30.0
STOP_S = 10.0
LOCK_S = START_S + STOP_S + 5.0
ASK_S = 2.0
POLL_S = 0.05
FULL_BYTES = 1_000_000  # a disk with less is full: the server cannot write its log of changes
PORT_TRIES = 3  # between choosing a free port and listening on it somebody may take it
# Below the ports that Linux gives to outgoing connections: while the server is stopped, one of them
# could take its port, and jobs would not find it again.
PORTS = range(20_000, 32_000)
EVERY_ADDRESS = "0.0.0.0"

# A session ends up to a tick later than asked for; sessions are granted from 2 ticks on.
_CONFIGURATION = """\
tickTime=250
maxSessionTimeout=60000
dataDir={data}
clientPort={port}
clientPortAddress={address}
maxClientCnxns=0
admin.enableServer=false
autopurge.snapRetainCount=3
autopurge.purgeInterval=1
4lw.commands.whitelist=ruok,srvr
"""
# For the Apache distribution, which logs by logback and without this at DEBUG.
_LOGBACK = """\
<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d %-5level %logger{0} %msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="out"/></root>
</configuration>
"""


@dataclass(frozen=True)
class LocalServer:
    hosts: str  # as this machine reaches it, such as "127.0.0.1:PORT"
    address: str  # that it listens on; "0.0.0.0": all of this machine
    port: int
    pid: int
    version: str  # of ZooKeeper; empty if the server does not answer at the moment
    data_dir: Path
    log_file: Path


def start_local(
    state_dir: Path | None = None,
    environ: Mapping[str, str] | None = None,
    timeout_s: float = START_S,
    address: str | None = None,
    port: int | None = None,
) -> str:
    """Start the local ZooKeeper unless it runs, wait until it answers, and return `host:port`."""
    files = _ServerFiles(state_dir)
    with files.lock():
        kept_address, kept_port = files.endpoint()
        if (process := files.process(search=True)) is not None and kept_port:
            if (kept_address, kept_port) != (address or kept_address, port or kept_port):
                raise UsageError(
                    f"ZooKeeper runs already, at {kept_address}:{kept_port}; `edl zookeeper stop` "
                    "it first: its data stay, and its jobs wait for it"
                )
            files.await_answer(process, timeout_s)
            return files.hosts()
        chosen = address or kept_address
        is_fixed = port is not None or chosen != LOOPBACK
        if is_fixed:
            port = _usable_port(chosen, port or kept_port)
        command = server_command(
            config.environment() if environ is None else environ, files.directory
        )
        for left in reversed(range(1 if is_fixed else PORT_TRIES)):
            files.configure(chosen, port if port is not None else _free_port(kept_port))
            kept_port = 0  # somebody may take it again and again
            process = files.launch(command)
            if files.await_answer(process, timeout_s, may_die=left > 0):
                break
        return files.hosts()


def check_directory(directory: Path) -> None:
    files = _ServerFiles(directory)
    try:
        names = {one.name for one in files.directory.iterdir()}
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(f"cannot keep ZooKeeper in {directory}: {error.strerror}") from None
    # They would be overwritten and closed to other users.
    if names and not files.are_ours(names):
        raise UsageError(
            f"{directory} is not empty, and no ZooKeeper of edl has run there; name a new directory"
        )


def stop_local(state_dir: Path | None = None) -> bool:
    """End the local ZooKeeper whose files are in `state_dir`; keep its data and its port."""
    files = _ServerFiles(state_dir)
    with files.lock():
        process = files.process(search=True)
        if process is None:
            return False
        _end(process)
        return True


def local_status(state_dir: Path | None = None) -> LocalServer | None:
    files = _ServerFiles(state_dir)
    process, (address, port) = files.process(), files.endpoint()
    if process is None or not port:
        return None
    version = _version(server_answer(address, port))
    return LocalServer(files.hosts(), address, port, process.pid, version, files.data, files.log)


def find_local(state_dir: Path | None = None) -> str | None:
    return known_local(state_dir) if _ServerFiles(state_dir).process() is not None else None


def known_local(state_dir: Path | None = None) -> str | None:
    """Return `host:port` of the local ZooKeeper, running or not; None before its first start."""
    files = _ServerFiles(state_dir)
    return files.hosts() if files.endpoint()[1] else None


def local_trouble(hosts: str, state_dir: Path | None = None) -> str:
    files = _ServerFiles(state_dir)
    if known_local(state_dir) != hosts:
        return ""
    try:
        process, free = files.process(), shutil.disk_usage(files.data).free
        stopped = process is not None and process.status() == psutil.STATUS_STOPPED
    except (OSError, psutil.Error):
        return ""
    start = "`edl zookeeper start` starts it again with its data"
    if free < FULL_BYTES:
        after = f"; it has ended, and {start}" if process is None else ""
        return f"The disk that has its data, {files.data}, is full: free space there{after}."
    if process is None:
        return f"Its process has ended: {start}; its log is {files.log}."
    return f"Its process is stopped: `kill -CONT {process.pid}` wakes it." if stopped else ""


class _ServerFiles:
    def __init__(self, state_dir: Path | None) -> None:
        self.directory = (state_dir or config.state_dir() / "zookeeper").absolute()
        self.data = self.directory / "data"
        self.log = self.directory / "zookeeper.log"
        self.configuration = self.directory / "zoo.cfg"
        self._pid_file = self.directory / "server.json"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Create the server's directory, closed to other users, and hold its lock meanwhile."""
        self.data.mkdir(parents=True, exist_ok=True)
        self.directory.chmod(0o700)
        lock = FileLock(self.directory / "lock", LOCK_S, fallback_to_soft=False)
        try:
            held = lock.acquire()
        except Timeout:
            raise CoordinationError(
                f"another process has held {lock.lock_file} for {LOCK_S:g} s; end it first"
            ) from None
        with held:
            yield

    def endpoint(self) -> tuple[str, int]:
        values = self._configured()
        port = values.get("clientPort", "")
        return values.get("clientPortAddress", LOOPBACK), int(port) if port.isdigit() else 0

    def hosts(self) -> str:
        """Return `host:port` of the configuration file, as this machine reaches the server."""
        address, port = self.endpoint()
        return f"{LOOPBACK if address == EVERY_ADDRESS else address}:{port}"

    def are_ours(self, names: set[str]) -> bool:
        own = {self.data, self.log, self.configuration, self._pid_file}
        written = {"lock", "logback.xml", "zoo.new", *(path.name for path in own)}
        return names <= written and self._configured().get("dataDir", str(self.data)) == str(
            self.data
        )

    def _configured(self) -> dict[str, str]:
        try:
            lines = self.configuration.read_text().splitlines()
        except OSError:
            return {}
        pairs = (line.partition("=") for line in lines)
        return {name: value for name, _, value in pairs}

    def process(self, search: bool = False) -> psutil.Process | None:
        try:
            known = json.loads(self._pid_file.read_text())
            process = psutil.Process(int(known["pid"]))
            # The id may have gone to another process meanwhile.
            if self._is_ours(process):
                return process
        except (OSError, ValueError, KeyError, TypeError, psutil.Error):
            pass
        if not search:
            return None
        # A start may have been killed before it wrote the file, and two servers on one directory
        # destroy its data.
        return next((p for p in psutil.process_iter() if self._is_ours(p)), None)

    def configure(self, address: str, port: int) -> None:
        text = _CONFIGURATION.format(data=self.data, port=port, address=address)
        (self.directory / "logback.xml").write_text(_LOGBACK)
        partial = self.configuration.with_suffix(".new")
        partial.write_text(text)
        partial.replace(self.configuration)

    def launch(self, command: list[str]) -> psutil.Process | None:
        shell = '"$@" >>"$0" 2>&1 </dev/null & echo $!'
        done = subprocess.run(
            ["/bin/sh", "-c", shell, str(self.log), *command, str(self.configuration)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            cwd=self.directory,
            start_new_session=True,
            check=True,
            timeout=START_S,
        )
        try:
            process = psutil.Process(int(done.stdout))
        except psutil.NoSuchProcess:
            return None
        self._pid_file.write_text(json.dumps({"pid": process.pid}) + "\n")
        return process

    def await_answer(
        self, process: psutil.Process | None, timeout_s: float, may_die: bool = False
    ) -> bool:
        address, port = self.endpoint()
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if process is None or not _lives(process):
                if may_die:
                    return False
                raise CoordinationError(f"the local ZooKeeper died at its start; see {self.log}")
            # Another ZooKeeper that took the port would answer too.
            if _version(server_answer(address, port)) and _listens(process, port):
                return True
            time.sleep(POLL_S)
        if process is not None:
            _end(process)
        raise CoordinationError(
            f"the local ZooKeeper did not answer on port {port} within {timeout_s:g} s; "
            f"see {self.log}"
        )

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            command = process.cmdline()
            return MAIN in command and command[-1] == str(self.configuration) and _lives(process)
        except psutil.Error:
            return False


def _lives(process: psutil.Process) -> bool:
    try:
        # Of a process whose first thread has ended, other threads may keep files and port.
        is_zombie = process.status() == psutil.STATUS_ZOMBIE
        return process.is_running() and (not is_zombie or process.num_threads() > 1)
    except psutil.NoSuchProcess:
        return False


def _end(process: psutil.Process) -> None:
    try:
        for signal in (process.terminate, process.kill):
            signal()
            deadline = time.monotonic() + STOP_S
            while time.monotonic() < deadline:
                if not _lives(process):
                    return
                time.sleep(POLL_S)
    except psutil.NoSuchProcess:
        return
    except psutil.Error as error:
        raise CoordinationError(f"cannot end ZooKeeper, process {process.pid}: {error}") from error
    raise CoordinationError(f"ZooKeeper, process {process.pid}, did not end when killed")


def _listens(process: psutil.Process, port: int) -> bool:
    try:
        return any(
            c.status == psutil.CONN_LISTEN and c.laddr.port == port
            for c in process.net_connections(kind="tcp")
        )
    except psutil.Error:
        return False


def server_answer(address: str, port: int) -> str:
    try:
        # To 0.0.0.0, too: Linux then connects to 127.0.0.1.
        with socket.create_connection((address, port), timeout=ASK_S) as connection:
            connection.sendall(b"srvr")
            parts = []
            while part := connection.recv(4096):
                parts.append(part)
            return b"".join(parts).decode(errors="replace")
    except OSError:
        return ""


def _version(answer: str) -> str:
    first = answer.partition("\n")[0]
    if "Mode:" not in answer or not first.startswith("Zookeeper version: "):
        return ""
    return first.removeprefix("Zookeeper version: ").partition("-")[0]


def _usable_port(address: str, port: int) -> int:
    """Return `port`, or a free one if it is 0, on which a process can listen at `address`."""
    try:
        ipaddress.IPv4Address(address)
    except ValueError:
        raise UsageError(
            f"the address is {address!r}; give an IPv4 address of this machine, which has {_own()}"
        ) from None
    try:
        _bind(address, 0)
    except OSError:
        raise UsageError(f"{address} is no address of this machine, which has {_own()}") from None
    if not port:
        return _free_port(0, address)
    try:
        _bind(address, port)
    except OSError as error:
        reason = "another process has it" if error.errno == EADDRINUSE else error.strerror
        raise UsageError(
            f"ZooKeeper cannot listen on port {port} of {address}: {reason}; choose another --port"
        ) from None
    return port


def _own() -> str:
    entries = (one for found in psutil.net_if_addrs().values() for one in found)
    return ", ".join(sorted({one.address for one in entries if one.family == socket.AF_INET}))


def _bind(address: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((address, port))


def _free_port(first: int, address: str = LOOPBACK) -> int:
    for port in [first] * bool(first) + random.sample(PORTS, len(PORTS)):
        with suppress(OSError):
            _bind(address, port)
            return port
    raise CoordinationError(
        f"no port of {PORTS[0]} to {PORTS[-1]} is free for a local ZooKeeper; name "
        "one that runs by --zookeeper"
    )
