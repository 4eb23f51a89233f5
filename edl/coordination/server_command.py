"""Find Java and ZooKeeper on this machine; :func:`server_command` gives the command to run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from edl.errors import CoordinationError

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
    """Return the Java class path of the ZooKeeper that is installed."""
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
