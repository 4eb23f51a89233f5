"""Check whether this machine can run edl: :func:`checks` yields a row for each check.

Nothing is changed; processes that import Horovod, and a session with ZooKeeper, are opened.
"""

from __future__ import annotations

import enum
import importlib.metadata
import logging
import platform
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import edl
from edl import config, horovod_build
from edl.errors import ConfigError
from edl.install import horovod_wheel, toolchain
from edl.install.horovod_wheel import import_failure

DISTRIBUTION = "edl-horovod"
FRAMEWORKS = {"torch": "PyTorch", "tensorflow": "TensorFlow"}
HOROVOD_NAMES = {"torch": "pytorch", "tensorflow": "tensorflow"}  # in its metadata.json
ZOOKEEPER_JAR = Path("/usr/share/java/zookeeper.jar")  # of Debian's package
BUILD = "run `edl build-horovod`"


class CheckResult(enum.Enum):
    """The result of one check of the machine."""

    OK = "ok"  # all is as it should be
    LIMITED = "limited"  # edl works, but not all that it promises holds
    FAILED = "failed"  # edl does not work


@dataclass(frozen=True)
class Check:
    """One row of the report of `edl doctor`: what was checked, what was found, and what to do."""

    name: str
    state: CheckResult
    found: str  # such as a version, a path or an error
    remedy: str = ""  # what to do about it


def checks() -> Iterator[Check]:
    python = f"{platform.python_version()}, {sys.executable}"
    yield Check("Python", CheckResult.OK, python)
    names = importlib.metadata.packages_distributions().get("edl", ())
    yield _import_name(frozenset(name.lower().replace("_", "-") for name in names))
    versions = {module: horovod_wheel.framework_version(module) for module in FRAMEWORKS}
    yield from _frameworks(versions)
    yield from _horovod(versions)
    yield from _build_tools(bool(horovod_build.applied()))
    yield from _zookeeper()


def usable(rows: Iterable[Check]) -> bool:
    return all(row.state is not CheckResult.FAILED for row in rows)


def _import_name(providers: frozenset[str]) -> Check:
    name = "import edl"
    where = str(edl.__file__)
    ours = Path(__file__).resolve().parents[1] / "__init__.py"
    # PyPI has other packages with that import name.
    others = sorted(providers - {DISTRIBUTION})
    if others:
        return Check(
            name,
            CheckResult.FAILED,
            f"also provided by {', '.join(others)}",
            f"pip uninstall {' '.join(others)}, then "
            f"pip install --force-reinstall --no-deps {DISTRIBUTION}",
        )
    if edl.__file__ is None or Path(edl.__file__).resolve() != ours:
        return Check(
            name,
            CheckResult.FAILED,
            f"another package: {where}",
            "remove or rename it, or take its folder from PYTHONPATH",
        )
    return Check(name, CheckResult.OK, f"{edl.__version__}, {where}")


def _frameworks(versions: dict[str, str | None]) -> Iterator[Check]:
    none = not any(versions.values())
    for module, title in FRAMEWORKS.items():
        if version := versions[module]:
            yield Check(title, CheckResult.OK, version)
        elif none:
            remedy = f"pip install {module} (one of the two is enough), then {BUILD}"
            yield Check(title, CheckResult.FAILED, "not installed", remedy)
        else:
            yield Check(title, CheckResult.OK, "not installed, not needed")


def _horovod(versions: dict[str, str | None]) -> Iterator[Check]:
    try:
        version = importlib.metadata.version("horovod")
    except importlib.metadata.PackageNotFoundError:
        yield Check("Horovod", CheckResult.FAILED, "not installed", BUILD)
        return
    yield Check("Horovod", CheckResult.OK, version)
    built = horovod_build.read_installed("horovod/metadata.json")
    present = [module for module, found in versions.items() if found]
    with ThreadPoolExecutor() as pool:
        failures = dict(zip(present, pool.map(import_failure, present), strict=True))
    works = [module for module in present if not failures[module]]
    for module in present:
        name = f"Horovod for {FRAMEWORKS[module]}"
        worst = CheckResult.LIMITED if works else CheckResult.FAILED
        built_for = built.get(HOROVOD_NAMES[module])
        if not failures[module]:
            yield Check(name, CheckResult.OK, f"built for {built_for or 'an unknown version'}")
        elif built_for is None:
            yield Check(name, worst, "not built for it", BUILD)
        elif built_for != versions[module]:
            found = f"built for {built_for}, but {versions[module]} is installed"
            yield Check(name, worst, found, BUILD)
        else:
            yield Check(name, worst, f"import fails: {failures[module]}", f"{BUILD} --force")
    yield from _patches(horovod_build.installed_marker())


def _patches(marker: Mapping[str, Any]) -> Iterator[Check]:
    missing = horovod_wheel.missing(marker)
    for patch in missing:
        yield Check(
            f"Horovod patch {patch.name}", CheckResult.LIMITED, f"missing: {patch.lost}", BUILD
        )
    if not missing:
        yield Check("Horovod patches", CheckResult.OK, "all present")


def _build_tools(needless: bool) -> Iterator[Check]:
    worst = CheckResult.OK if needless else CheckResult.FAILED
    for tool in toolchain.tools():
        if tool.found:
            yield Check(tool.name, CheckResult.OK, tool.found)
        else:
            yield Check(tool.name, worst, "not found", tool.remedy)
    yield Check(
        "CMake", CheckResult.OK, toolchain.system_cmake() or "not found; the build fetches one"
    )


def _zookeeper() -> Iterator[Check]:
    try:
        settings = config.load()
    except ConfigError as error:
        yield Check("settings", CheckResult.FAILED, str(error), "correct or unset it")
        return
    hosts = settings.zookeeper
    if hosts:
        yield _reachable(hosts, settings.connect_timeout_s)
    worst = CheckResult.OK if hosts else CheckResult.FAILED
    environ = config.environment()
    home = environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else environ.get("PATH"))
    needs: tuple[tuple[str, str | None, str], ...] = (
        ("Java", java, "openjdk-17-jre-headless"),
        ("ZooKeeper", _zookeeper_jar(environ), "zookeeper"),
    )
    for name, found, package in needs:
        remedy = f"Debian: apt-get install {package}; or use a server: EDL_ZOOKEEPER=host:port"
        if found:
            yield Check(name, CheckResult.OK, found)
        elif hosts:
            yield Check(name, worst, "not found, not needed with a server elsewhere")
        else:
            yield Check(name, worst, "not found", remedy)


# It looks where edl.zookeeper.local_server looks, as `_zookeeper` does for Java.
def _zookeeper_jar(environ: Mapping[str, str]) -> str | None:
    named = environ.get("ZOOKEEPER_HOME")
    homes = [Path(named)] if named else sorted(Path("/opt").glob("zookeeper*"), reverse=True)
    for home in homes:
        if jars := sorted((home / "lib").glob("zookeeper-[0-9]*.jar")):
            return str(jars[0])
    return str(ZOOKEEPER_JAR) if ZOOKEEPER_JAR.is_file() and not named else None


def _reachable(hosts: str, timeout_s: float) -> Check:
    name = "ZooKeeper server"
    if _connects(hosts, timeout_s):
        return Check(name, CheckResult.OK, f"{hosts} answers")
    remedy = "start it, or correct EDL_ZOOKEEPER; without one `edl run` starts its own"
    return Check(name, CheckResult.FAILED, f"{hosts} did not answer within {timeout_s:g} s", remedy)


def _connects(hosts: str, timeout_s: float) -> bool:
    from kazoo.client import KazooClient  # slow to import, and only needed here
    from kazoo.exceptions import KazooException

    quiet = logging.Logger("edl.doctor.kazoo")  # the row says it; no lines between the rows
    quiet.addHandler(logging.NullHandler())
    try:
        client = KazooClient(hosts=hosts, timeout=timeout_s, logger=quiet)
    except ValueError:  # not a list of hosts
        return False
    try:
        client.start(timeout=timeout_s)
    except (KazooException, client.handler.timeout_exception, OSError):
        return False
    finally:
        client.stop()
        client.close()
    return True
