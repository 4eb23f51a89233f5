"""Run a real standalone ZooKeeper for this user on this machine, when there is no other.

There is one server for each state directory. It listens on 127.0.0.1 only and outlives the process
that started it. Other processes recognize it by its command line, which names the configuration
file in that state directory; edl never signals or writes to any other process.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from edl import config
from edl.errors import CoordinationError

START_S = 30.0
STOP_S = 10.0
LOCK_S = START_S + STOP_S + 5.0
ASK_S = 2.0
POLL_S = 0.05
PORT_TRIES = 3  # between choosing a free port and listening on it somebody may take it
# Below the ports that Linux gives to outgoing connections: while the server is stopped, one of them
# could take its port, and jobs would not find it again.
PORTS = range(20_000, 32_000)
DEBIAN_JAR = Path("/usr/share/java/zookeeper.jar")
MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"

# A session ends up to a tick later than asked for; sessions are granted from 2 ticks on.
_CONFIGURATION = """\
tickTime=250
maxSessionTimeout=60000
dataDir={data}
clientPort={port}
clientPortAddress=127.0.0.1
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
_JVM = (
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dzookeeper.preAllocSize=1024",  # KB; the default reserves 64 MB a log file
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
)


@dataclass(frozen=True)
class LocalServer:
    """The local ZooKeeper that runs on this machine.

    Attributes:
        hosts: Its address, "127.0.0.1:PORT".
        port: The port that it listens on.
        pid: Its process id.
        version: The version of ZooKeeper; empty if the server does not answer at the moment.
        data_dir: The directory of its data.
        log_file: The file that it logs to.
    """

    hosts: str
    port: int
    pid: int
    version: str
    data_dir: Path
    log_file: Path


def start_local(
    state_dir: Path | None = None,
    environ: Mapping[str, str] | None = None,
    timeout_s: float = START_S,
) -> str:
    """Start the local ZooKeeper unless it runs, wait until it answers, and return its address.

    The address is "127.0.0.1:PORT". Many processes may call this at once: one of them starts the
    server, the others wait. The port is chosen at the first start and kept, unless another process
    takes it meanwhile.

    Args:
        state_dir: The directory of the server's files; None: ``zookeeper`` in the state directory
            of edl.
        environ: The environment variables in which to look for Java and ZooKeeper; None: those of
            this process.
        timeout_s: How long to wait for the server to answer, in seconds.

    Raises:
        CoordinationError: Java or ZooKeeper is not installed, or the server did not answer in time;
            the message says what to install, or where the log is.
    """
    files = _ServerFiles(state_dir)
    with files.lock():
        if (process := files.process(search=True)) is not None and (port := files.port()):
            files.await_answer(process, port, timeout_s)
            return f"127.0.0.1:{port}"
        command = server_command(
            config.environment() if environ is None else environ, files.directory
        )
        for attempt in range(PORT_TRIES):
            port = files.configure(keep_port=attempt == 0)
            process = files.launch(command)
            if files.await_answer(process, port, timeout_s, may_die=attempt + 1 < PORT_TRIES):
                break
        return f"127.0.0.1:{port}"


def stop_local(state_dir: Path | None = None) -> bool:
    """End the local ZooKeeper whose files are in ``state_dir``; keep its data and its port.

    None for ``state_dir`` means ``zookeeper`` in the state directory of edl.

    Returns:
        Whether it was running.

    Raises:
        CoordinationError: the process does not end.
    """
    files = _ServerFiles(state_dir)
    with files.lock():
        process = files.process(search=True)
        if process is None:
            return False
        _end(process)
        return True


def local_status(state_dir: Path | None = None) -> LocalServer | None:
    """Return the running local ZooKeeper whose files are in ``state_dir``; None if it does not run.

    None for ``state_dir`` means ``zookeeper`` in the state directory of edl.
    """
    files = _ServerFiles(state_dir)
    process, port = files.process(), files.port()
    if process is None or not port:
        return None
    version = _version(_ask(port))
    address = f"127.0.0.1:{port}"
    return LocalServer(address, port, process.pid, version, files.data, files.log)


def find_local(state_dir: Path | None = None) -> str | None:
    """Return the address "127.0.0.1:PORT" of the running local ZooKeeper; None if it does not run.

    The server is not asked, so it may not answer. Its files are in ``state_dir``; None means
    ``zookeeper`` in the state directory of edl.
    """
    files = _ServerFiles(state_dir)
    port = files.port()
    return f"127.0.0.1:{port}" if port and files.process() is not None else None


class _ServerFiles:
    """The files of the local ZooKeeper in its state directory, and the process that uses them.

    Args:
        state_dir: The directory; None: ``zookeeper`` in the state directory of edl.
    """

    def __init__(self, state_dir: Path | None) -> None:
        self.directory = (state_dir or config.state_dir() / "zookeeper").absolute()
        self.data = self.directory / "data"
        self.log = self.directory / "zookeeper.log"
        self.configuration = self.directory / "zoo.cfg"
        self._pid_file = self.directory / "server.json"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock on the directory against other processes while the context lasts.

        The lock is freed, too, if the process that holds it dies.

        Raises:
            CoordinationError: another process has held the lock for ``LOCK_S`` seconds.
        """
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

    def port(self) -> int:
        """Return the port in the configuration file; 0 before the first start."""
        try:
            lines = self.configuration.read_text().splitlines()
        except OSError:
            return 0
        ports = [line.partition("=")[2] for line in lines if line.startswith("clientPort=")]
        return int(ports[0]) if ports and ports[0].isdigit() else 0

    def process(self, search: bool = False) -> psutil.Process | None:
        """Return the process of the local ZooKeeper, or None if it does not run.

        The process id is in a file. If the id has gone to another process meanwhile, the command
        line of that process differs, and it does not count.

        Args:
            search: Whether to look among all processes of the machine, too, if the file names no
                live server: a start may have been killed before it wrote the file, and two servers
                on one directory destroy its data.
        """
        try:
            known = json.loads(self._pid_file.read_text())
            process = psutil.Process(int(known["pid"]))
            if self._is_ours(process):
                return process
        except (OSError, ValueError, KeyError, TypeError, psutil.Error):
            pass
        if not search:
            return None
        return next((p for p in psutil.process_iter() if self._is_ours(p)), None)

    def configure(self, keep_port: bool) -> int:
        """Write the configuration files of the server, and return its port.

        Args:
            keep_port: Whether to use the port of the last start again, if it is free.
        """
        old = self.port() if keep_port else 0
        port = old if old and _is_free(old) else _free_port()
        text = _CONFIGURATION.format(data=self.data, port=port)
        (self.directory / "logback.xml").write_text(_LOGBACK)
        partial = self.configuration.with_suffix(".new")
        partial.write_text(text)
        partial.replace(self.configuration)
        return port

    def launch(self, command: list[str]) -> psutil.Process | None:
        """Start the server with ``command``, detached from this process and its terminal.

        Args:
            command: The result of :func:`server_command`; the path of the configuration is
                appended.

        Returns:
            The process, or None if it has died already.
        """
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
        self, process: psutil.Process | None, port: int, timeout_s: float, may_die: bool = False
    ) -> bool:
        """Wait until the ZooKeeper in ``process`` answers on ``port``.

        Args:
            process: The process of the server; None if it has died already.
            port: The port that it was configured with.
            timeout_s: How long to wait, in seconds; then the process is ended.
            may_die: Whether to return False, rather than raise, if the process has died.

        Returns:
            True if it answers; False if it died and ``may_die`` is set.

        Raises:
            CoordinationError: the process died or did not answer in time.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if process is None or not _lives(process):
                if may_die:
                    return False
                raise CoordinationError(f"the local ZooKeeper died at its start; see {self.log}")
            # Another ZooKeeper that took the port would answer too.
            if _version(_ask(port)) and _listens(process, port):
                return True
            time.sleep(POLL_S)
        if process is not None:
            _end(process)
        raise CoordinationError(
            f"the local ZooKeeper did not answer on port {port} within {timeout_s:g} s; "
            f"see {self.log}"
        )

    def _is_ours(self, process: psutil.Process) -> bool:
        """Return whether ``process`` runs, with the command line of this directory's server."""
        try:
            command = process.cmdline()
            return MAIN in command and command[-1] == str(self.configuration) and _lives(process)
        except psutil.Error:
            return False


def server_command(environ: Mapping[str, str], directory: Path) -> list[str]:
    """Return the command that starts a ZooKeeper server, without its last argument.

    That argument is the path of the server's configuration file, which the caller appends.

    Args:
        environ: The environment variables; ``JAVA_HOME``, ``PATH`` and ``ZOOKEEPER_HOME`` count.
        directory: The state directory of the server.

    Raises:
        CoordinationError: there is no Java, or no ZooKeeper.
    """
    home = environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else environ.get("PATH"))
    if java is None:
        raise CoordinationError(
            "a local ZooKeeper needs Java, and there is no `java` on the PATH: "
            "`apt-get install default-jre-headless`, or name a running one with --zookeeper"
        )
    return [java, *_JVM, "-cp", f"{directory}{os.pathsep}{_class_path(environ)}", MAIN]


def _class_path(environ: Mapping[str, str]) -> str:
    """Return the Java class path of the ZooKeeper that is installed.

    It is looked for in ``ZOOKEEPER_HOME`` (a variable of ``environ``) if that is set, else in /opt
    and in Debian's package.

    Raises:
        CoordinationError: there is no ZooKeeper.
    """
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


def _lives(process: psutil.Process) -> bool:
    """Return whether ``process`` runs and is not a zombie."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _end(process: psutil.Process) -> None:
    """End ``process`` with SIGTERM, then with SIGKILL, waiting ``STOP_S`` seconds for each.

    Raises:
        CoordinationError: the process does not end, or may not be signalled.
    """
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
    """Return whether ``process`` listens on the TCP port ``port``."""
    try:
        return any(
            c.status == psutil.CONN_LISTEN and c.laddr.port == port
            for c in process.net_connections(kind="tcp")
        )
    except psutil.Error:
        return False


def _ask(port: int) -> str:
    """Return the answer of the server on local port ``port`` to ZooKeeper's command "srvr".

    The text is empty if the server does not answer within ``ASK_S`` seconds.
    """
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=ASK_S) as connection:
            connection.sendall(b"srvr")
            parts = []
            while part := connection.recv(4096):
                parts.append(part)
            return b"".join(parts).decode(errors="replace")
    except OSError:
        return ""


def _version(answer: str) -> str:
    """Return the version of ZooKeeper in ``answer``, a server's answer to the command "srvr".

    It is empty if the answer is not that of a server that serves clients.
    """
    first = answer.partition("\n")[0]
    if "Mode:" not in answer or not first.startswith("Zookeeper version: "):
        return ""
    return first.removeprefix("Zookeeper version: ").partition("-")[0]


def _is_free(port: int) -> bool:
    """Return whether a process could listen on ``port`` of this machine."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _free_port() -> int:
    """Return a random port of ``PORTS`` on which no process of this machine listens.

    Raises:
        CoordinationError: there is no such port.
    """
    for port in random.sample(PORTS, len(PORTS)):
        if _is_free(port):
            return port
    raise CoordinationError(
        f"no port of {PORTS[0]} to {PORTS[-1]} is free for a local ZooKeeper; name "
        "one that runs by --zookeeper"
    )
