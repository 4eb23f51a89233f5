"""Check that the user's command can run on this host, before any worker is started."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from edl.errors import UsageError
from edl.host.process import is_python, python_script


def check_command(command: Sequence[str], cwd: Path, search_path: str | None) -> None:
    """Raise an error if the command of the job's workers cannot run on this host."""
    if not command or not command[0]:
        raise UsageError("no command to run; for example: edl run -np 2 python train.py")
    if not cwd.is_dir():
        raise UsageError(f"the job's working directory {cwd} does not exist on this host")
    program = command[0]
    if os.sep in program:
        path = cwd / program
        if not path.exists():
            raise UsageError(f"the program {program} does not exist")
        if path.is_dir() or not os.access(path, os.X_OK):
            hint = f"; write `python {program}`" if program.endswith(".py") else ""
            raise UsageError(f"{program} is not executable{hint}")
    elif shutil.which(program, path=search_path) is None:
        hint = f"; write `python {program}`" if program.endswith(".py") else ""
        if is_python(program):
            hint = f"; activate the virtual environment, or write {sys.executable}"
        raise UsageError(f"there is no program {program!r} on PATH{hint}")
    script = python_script(command)
    if script is not None and not (cwd / script).exists():
        raise UsageError(f"the script {script} does not exist (in {cwd})")


def is_own_interpreter(program: str) -> bool:
    mine, theirs = Path(sys.executable), Path(program).absolute()
    same_place = mine.parent.resolve() == theirs.parent.resolve()
    return same_place and mine.resolve() == theirs.resolve()


def missing_module_hint(reason: str, command: Sequence[str], search_path: str | None) -> str:
    """Return what to do about workers that lack a module, if they run another Python than edl."""
    if "ModuleNotFoundError" not in reason or not is_python(command[0]):
        return ""
    found = shutil.which(command[0], path=search_path)
    if found is None or is_own_interpreter(found):
        return ""
    return (
        f"`{command[0]}` is {found}, but edl runs in {sys.executable}: activate that virtual "
        f"environment, or write {sys.executable}"
    )
