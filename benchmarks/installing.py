"""How long it takes from nothing to a first result.

Each row has a fresh clone of the last commit, without `.venv`, and an empty cache: the wheels and
the source of Horovod come from pip's package index, and all is compiled. Debian's packages are
there already. The processor time is that of all processes, user and system.
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks import page
from benchmarks.jobs import ROOT, BenchmarkError

DEMO = "`make demo`"
BUILDS = {"PyTorch": ("TORCH",), "TensorFlow": ("TENSORFLOW",), "both": ("TORCH", "TENSORFLOW")}
ASKED_S = {DEMO: 180.0, "PyTorch": 100.0, "TensorFlow": 100.0, "both": 250.0}
DEADLINE_S = 3600.0  # of one command
COMMAND = 'make bench ARGS="--only installing"'


@dataclass(frozen=True)
class Took:
    """Seconds that a command took, and of the processors."""

    wall_s: float
    processor_s: float


def measure(scratch: Path, say: Callable[[str], None]) -> dict[str, Took]:
    """Time `make demo`, and a build of Horovod for each of :data:`BUILDS`.

    Args:
        scratch: an empty directory for the clones, their environments and caches.
        say: told of each result.

    Returns:
        What each took, by :data:`DEMO` and the names in :data:`BUILDS`.

    Raises:
        BenchmarkError: a command failed; the message has its last lines.
    """
    found = {DEMO: _timed(["make", "demo"], _clone(scratch / "demo"))}
    say(f"{DEMO}: {found[DEMO]}")
    for frameworks, names in BUILDS.items():
        clone = _clone(scratch / frameworks)
        pip = [".venv/bin/python", "-m", "pip", "install", "--quiet"]
        _timed([sys.executable, "-m", "venv", ".venv"], clone)
        _timed([*pip, *(_pinned(name) for name in names), "--editable", "."], clone)
        build = [".venv/bin/edl", "build-horovod", "--no-install"]
        found[frameworks] = _timed(build, clone)
        say(f"edl build-horovod, {frameworks}: {found[frameworks]}")
    return found


def _clone(where: Path) -> Path:
    _timed(["git", "clone", "--quiet", str(ROOT), str(where)], where.parent)
    return where


def _pinned(name: str) -> str:
    """Return the requirement that scripts/setup.sh holds in the variable ``name``."""
    found = re.search(rf'^{name}="(.+?)"', (ROOT / "scripts/setup.sh").read_text(), re.MULTILINE)
    assert found, f"scripts/setup.sh has no {name}"
    return found[1]


def _timed(command: list[str], folder: Path) -> Took:
    """Run ``command`` in ``folder``, with caches and state of its own."""
    own = {"XDG_CACHE_HOME": str(folder / "cache"), "XDG_STATE_HOME": str(folder / "state")}
    before, began_s = _children_s(), time.monotonic()
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, **own},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        words = " ".join(command)
        raise BenchmarkError(f"{words} has not ended within {DEADLINE_S:.0f} s") from error
    if done.returncode != 0:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise BenchmarkError(f"{' '.join(command)} ended with {done.returncode}:\n{last}")
    return Took(time.monotonic() - began_s, _children_s() - before)


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def markdown(found: Mapping[str, Took], machine: str) -> str:
    """Return the text of the page on installing; ``found`` is the result of :func:`measure`."""
    section = page.Section(
        "From nothing",
        "The demo: PyTorch, edl and Horovod for PyTorch are installed, and a job of some 50 s "
        "trains until its table stands. The builds: `edl build-horovod --no-install`.",
        ("what", "s", "processor time, s", "goal, at most, s"),
        [
            (
                name if name == DEMO else f"Horovod for {name}",
                f"{took.wall_s:.0f}",
                f"{took.processor_s:.0f}",
                f"{ASKED_S[name]:.0f}",
            )
            for name, took in found.items()
        ],
    )
    text = " ".join((__doc__ or "").split("\n\n", 1)[1].split())
    return page.markdown("How long installing takes", COMMAND, f"{machine}. {text}", [section])
