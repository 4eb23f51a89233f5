"""Install the Horovod that edl builds into the running interpreter, and see that it works.

A wheel from the cache may be of another machine: it is tried by an import, and built anew if that
fails.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import sysconfig
from pathlib import Path

from rich.console import Console

from edl import config
from edl.errors import BuildError
from edl.horovod_build import installed_marker
from edl.install import horovod_wheel, toolchain
from edl.install.horovod_wheel import REQUIREMENTS, VERSION, Recipe, cache_folder, locked

IMPORT_TIMEOUT_S = 120.0  # a first import of TensorFlow on a slow disk


def provide(wanted: Recipe, *, force: bool, console: Console) -> None:
    # If one from the cache cannot be imported here, for example because it was built for another
    # processor, it is built again and replaced in the cache.
    place = hashlib.sha256(sys.prefix.encode()).hexdigest()[:12]
    lock = cache_folder() / f"install-{place}.lock"
    with locked(lock, "installs Horovod for this interpreter", console):
        if not force and is_installed(wanted) and not import_failures(wanted):
            console.print(f"Horovod {VERSION} of this recipe is already installed")
            return
        check_writable_interpreter()
        is_built = force or horovod_wheel.cached(wanted) is None
        _install(horovod_wheel.build(wanted, force=force, console=console), console)
        failures = import_failures(wanted)
        if failures and not is_built:
            console.print(f"the wheel from the cache fails here: {failures[0]}", soft_wrap=True)
            _install(horovod_wheel.build(wanted, force=True, console=console), console)
            failures = import_failures(wanted)
        if not failures:
            return
        if not wanted.gpu:
            raise BuildError(f"Horovod was built and installed, but {failures[0]}")
        console.print(f"installed, but on this machine {failures[0]}", soft_wrap=True)


def is_installed(wanted: Recipe) -> bool:
    return bool(installed_marker().get("key") == wanted.key)


def import_failures(wanted: Recipe) -> list[str]:
    frameworks = {"torch": wanted.torch, "tensorflow": wanted.tensorflow}
    failures = {one: import_failure(one) for one, version in frameworks.items() if version}
    return [f"`import horovod.{one}` fails: {why}" for one, why in failures.items() if why]


def import_failure(module: str) -> str:
    command = [sys.executable, "-c", f"import horovod.{module}"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=IMPORT_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {IMPORT_TIMEOUT_S:g} s"
    if done.returncode == 0:
        return ""
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"exit code {done.returncode}"


def check_writable_interpreter() -> None:
    """Raise an error if pip may not install packages into this interpreter (PEP 668)."""
    # before the build, so that nobody learns it after minutes of compiling
    marker = Path(sysconfig.get_path("stdlib")) / "EXTERNALLY-MANAGED"
    if sys.prefix == sys.base_prefix and marker.is_file():
        raise BuildError(
            f"{sys.executable} belongs to the operating system, which lets pip install nothing; "
            "use a virtual environment: python3 -m venv .venv"
        )


def _install(wheel: Path, console: Console) -> None:
    log = wheel.with_name("install.log")
    env = config.environment()
    pip = [sys.executable, "-m", "pip", "install", "--retries", "10"]
    try:
        toolchain.run_logged(
            [*pip, *REQUIREMENTS],
            what="installing what Horovod requires",
            log=log,
            env=env,
            console=console,
        )
        # --force-reinstall: pip takes a wheel of the version that it has already for the same
        toolchain.run_logged(
            [*pip, "--force-reinstall", "--no-deps", str(wheel)],
            what="installing Horovod",
            log=log,
            env=env,
            console=console,
        )
    except toolchain.CommandFailed as error:
        raise BuildError(
            f"pip could not install {wheel.name} into {sys.executable}: "
            f"{toolchain.error_line(error.tail)} (all of it in {log})"
        ) from error
