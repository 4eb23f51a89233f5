"""Counting, chaos and a soak on a Horovod that lacks one of edl's patches.

    make without-patch ARGS="shared-memory [--minutes 5] [--tests tests/chaos/test_points.py]"

A job must stay right without a patch that makes it faster; docs/reference/horovod-patches.md says
what is lost without each. Horovod is built without the patch, and without later ones that then do
not fit, and put into a folder before all others in PYTHONPATH. The installed one stays as it is.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import edl
from edl import config
from edl.install.horovod_wheel import FOLDER, patches

ROOT = Path(__file__).resolve().parents[2]
TESTS = (
    "tests/integration/test_counting.py",
    "tests/chaos/test_histories.py",
    "tests/chaos/test_ring_breaks.py",
    "tests/chaos/test_freezes.py",
)
NOT_FITTING = re.compile(r"(?P<file>\d\d-[a-z0-9-]+\.patch) does not fit")
BUILD_S = 3600.0


def build(name: str, scratch: Path) -> tuple[Path, list[str]]:
    copy = scratch / "edl-without"
    shutil.copytree(Path(edl.__file__).parent, copy / "edl")
    folder = copy / "edl" / FOLDER.relative_to(Path(edl.__file__).parent)
    files = {patch.name: folder / patch.path.name for patch in patches()}
    without = [name]
    files[name].unlink()
    environment = config.environment() | {"PYTHONPATH": str(copy)}
    command = [sys.executable, "-m", "edl.cli.main", "build-horovod", "--no-install"]
    while True:
        done = subprocess.run(
            command, cwd=scratch, env=environment, capture_output=True, text=True, timeout=BUILD_S
        )
        if done.returncode == 0:
            break
        said = " ".join((done.stdout + done.stderr).split())
        found = NOT_FITTING.search(said)
        if found is None:
            raise RuntimeError(said[-3000:])
        (folder / found["file"]).unlink()
        without.append(next(each for each, path in files.items() if path.name == found["file"]))
    site = scratch / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site)]
    subprocess.run([*pip, done.stdout.splitlines()[-1]], check=True, timeout=BUILD_S)
    return site, without


def run(site: Path, tests: Sequence[str], minutes: float) -> int:
    """Run the tests and the soak with the Horovod in ``site``; return the number that failed."""
    commands = []
    if tests:
        side_by_side = ["--numprocesses", "3", "--dist", "loadscope", "-p", "no:cacheprovider"]
        commands.append(["-m", "pytest", "--quiet", *side_by_side, *tests])
    if minutes:
        commands.append(["tests/chaos/soak.py", "--minutes", f"{minutes:g}"])
    path = os.pathsep.join([str(site), str(ROOT / "tests" / "integration")])
    environment = config.environment() | {"PYTHONPATH": path}
    return sum(
        subprocess.run([sys.executable, *each], cwd=ROOT, env=environment).returncode != 0
        for each in commands
    )


def main() -> int:
    names = [patch.name for patch in patches() if patch.lost]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("patch", choices=names, help="the patch to leave out")
    parser.add_argument("--minutes", type=float, default=5.0, help="of the soak; 0: none")
    parser.add_argument("--tests", nargs="*", default=TESTS, help="what pytest runs")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="edl-without-") as scratch:
        site, without = build(args.patch, Path(scratch))
        print(f"Horovod without {', '.join(without)}", flush=True)
        return run(site, args.tests, args.minutes)


if __name__ == "__main__":
    sys.exit(main())
