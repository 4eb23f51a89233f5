"""Find the tools that compile Horovod, and say how to install those that are missing."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

# --- Run long commands (pip, compilers) with their output in a log, and show how far they are.


PLAIN_PERIOD_S = 20.0  # without a terminal: how often a line is written while nothing else changes
_PERCENT = re.compile(r"\[\s*(\d{1,3})%\]")  # make's, in CMake's makefiles


class CommandFailed(Exception):
    """The error of `run_logged` that a command ended with an exit code other than 0."""

    def __init__(self, command: Sequence[str], code: int, tail: Sequence[str]) -> None:
        super().__init__(f"{' '.join(command[:6])} ended with {code}")
        self.code = code  # negative: the number of the signal that ended the command
        self.tail = tuple(tail)  # the last lines of the output


def error_line(tail: tuple[str, ...]) -> str:
    """Return the line of a failed command's output that most likely says why it failed."""
    signs = ("fatal error", "error:", "ERROR:", "CMake Error", "Killed", "No space left")
    lines = [line.strip() for line in tail if line.strip()] or ["no output"]
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if any(sign in line for sign in signs):
            # CMake and others put the place first and the reason into the next line
            return (f"{line} {following}" if line.endswith(":") else line)[:300]
    return lines[-1][:300]


def run_logged(
    command: Sequence[str],
    *,
    what: str,
    log: Path,
    env: Mapping[str, str],
    console: Console,
) -> None:
    show = _live if console.is_terminal else _plain
    show(command, what, log, env, console)


def _plain(
    command: Sequence[str], what: str, log: Path, env: Mapping[str, str], console: Console
) -> None:
    start = time.monotonic()
    state = {"percent": -1}
    ended = threading.Event()
    console.print(f"{what} ...", soft_wrap=True)

    def report() -> None:
        while not ended.wait(PLAIN_PERIOD_S):
            percent = f"{state['percent']} %, " if state["percent"] >= 0 else ""
            elapsed_s = time.monotonic() - start
            console.print(f"{what}: {percent}{elapsed_s:.0f} s", soft_wrap=True)

    def on_percent(percent: int) -> None:
        state["percent"] = percent

    reporter = threading.Thread(target=report, name="edl-progress", daemon=True)
    reporter.start()
    try:
        _stream(command, log, env, on_percent)
    finally:
        ended.set()
        reporter.join()
    console.print(f"{what}: done in {time.monotonic() - start:.0f} s", soft_wrap=True)


def _live(
    command: Sequence[str], what: str, log: Path, env: Mapping[str, str], console: Console
) -> None:
    columns = (SpinnerColumn(), TextColumn(what), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(what, total=None)
        _stream(
            command, log, env, lambda percent: progress.update(task, total=100, completed=percent)
        )
        progress.update(task, total=100, completed=100)


def _stream(
    command: Sequence[str], log: Path, env: Mapping[str, str], on_percent: Callable[[int], None]
) -> None:
    tail: list[str] = []
    with log.open("a", encoding="utf-8") as sink:
        sink.write(f"$ {' '.join(command)}\n")
        sink.flush()
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(env),
            encoding="utf-8",
            errors="replace",
        ) as process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    sink.write(line)
                    sink.flush()
                    tail = [*tail[-400:], line.rstrip()]
                    if found := _PERCENT.search(line):
                        on_percent(min(int(found[1]), 100))
            except BaseException:  # Ctrl-C too: leave no compiler behind
                process.terminate()
                raise
    if process.returncode != 0:
        raise CommandFailed(command, process.returncode, tail)


# ------------------------------------------------------------
# Choose how many compilers run at once when Horovod is built: `with_make_flags`.


GB_PER_COMPILER = 2.0  # what one compilation against PyTorch's headers takes at its peak
# The limit of a container's memory, in bytes, as the container sees it: cgroup 2, then 1.
LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
OF_MAKE = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")  # what make exports to its recipes


def with_make_flags(environ: Mapping[str, str]) -> dict[str, str]:
    # What make exports to its recipes says nothing about this build, and names a closed pipe.
    by_user = environ.get("MAKEFLAGS", "").strip() if "MAKELEVEL" not in environ else ""
    rest = {name: value for name, value in environ.items() if name not in OF_MAKE}
    return rest | {"MAKEFLAGS": by_user or f"-j{compilers()}"}


def compilers() -> int:
    """Return how many compilers may run at once: one for each core, if the memory is enough."""
    cores = len(os.sched_getaffinity(0))
    sizes = [float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))]
    for path in LIMITS:
        with suppress(OSError, ValueError):  # no such file, or no limit: "max"
            sizes.append(float(path.read_text()))
    return max(1, min(cores, int(min(sizes) / (GB_PER_COMPILER * 1e9))))


CUDA = "/usr/local/cuda"
# The compiler, its headers and the library may each be there, or be missing, by themselves.
CUDA_PROGRAM = "#include <cuda_runtime.h>\nint main() { return cudaFree(0); }\n"
COMPILE_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Tool:
    """A tool or file that the build of Horovod needs, as `tools` has looked for it."""

    name: str
    found: str  # its path; empty if it is missing
    remedy: str  # what to do if it is missing


def tools() -> tuple[Tool, ...]:
    header = Path(sysconfig.get_path("include")) / "Python.h"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    # not CMake: the build lets pip install it where it is missing
    return (
        Tool(
            "g++",
            shutil.which("g++") or shutil.which("c++") or "",
            "install a C++20 compiler (Debian: apt-get install g++)",
        ),
        Tool("make", shutil.which("make") or "", "install make (Debian: apt-get install make)"),
        Tool("patch", shutil.which("patch") or "", "install patch (Debian: apt-get install patch)"),
        Tool(
            "Python.h",
            str(header) if header.is_file() else "",
            f"install the headers of Python {version} (Debian: apt-get install python3-dev)",
        ),
    )


def system_cmake() -> str:
    """Return the path of an installed CMake that can build Horovod: version 3.13 or a later 3.x."""
    path = shutil.which("cmake")
    if path is None:
        return ""
    try:
        output = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=30, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    found = re.search(r"version (\d+)\.(\d+)", output)
    if found is None:
        return ""
    return path if (3, 13) <= (int(found[1]), int(found[2])) < (4, 0) else ""


def cuda_path(environ: Mapping[str, str]) -> str:
    """Return PATH with the folder that HOROVOD_CUDA_HOME or CUDA_HOME names first, if one does."""
    home, path = (
        environ.get("HOROVOD_CUDA_HOME") or environ.get("CUDA_HOME"),
        environ.get("PATH", ""),
    )
    return f"{home}/bin:{path}" if home else path


def cuda_failure(environ: Mapping[str, str]) -> str:
    """Return why no program for CUDA can be compiled here, and what to do; empty if one can."""
    nvcc = shutil.which("nvcc", path=f"{cuda_path(environ)}:{CUDA}/bin")
    why = f"there is no nvcc on PATH, in CUDA_HOME or in {CUDA}"
    if nvcc is not None:
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder, "program")
            command = [nvcc, "-x", "cu", "-", "-o", str(program)]
            try:
                done = subprocess.run(
                    command,
                    input=CUDA_PROGRAM,
                    capture_output=True,
                    text=True,
                    timeout=COMPILE_TIMEOUT_S,
                    check=False,
                )
                said = error_line(tuple((done.stdout + done.stderr).splitlines()))
            except (OSError, subprocess.SubprocessError) as error:
                said = str(error)
            if program.is_file():
                return ""
        why = f"{nvcc} compiles no program ({said})"
    return (
        f"{why}; install the whole CUDA toolkit, of the version that PyTorch was built for, or set "
        "CUDA_HOME to its folder; without --gpu Horovod is built for CPUs"
    )


def packaged_nccl() -> Path | None:
    """Return the folder of the NCCL that PyTorch's wheels for CUDA require; None without it."""
    try:
        spec = importlib.util.find_spec("nvidia.nccl")
    except ModuleNotFoundError:  # there is not even a package nvidia
        return None
    folders = spec.submodule_search_locations if spec is not None else None
    for folder in map(Path, folders or ()):
        if (folder / "include/nccl.h").is_file() and (folder / "lib/libnccl.so.2").is_file():
            return folder
    return None
