"""The user's command: checked before anything is started."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from edl.core.host.python_command import Main, is_python, parse
from edl.errors import UsageError


def check_command(command: Sequence[str], cwd: Path, search_path: str | None) -> None:
    """Refuse a command that cannot run here.

    Raises:
        UsageError: the program is not found or not executable, or Python's script does not exist.
    """
    if not command or not command[0]:
        raise UsageError("no command to run; for example: edl run -np 2 python train.py")
    if not cwd.is_dir():
        raise UsageError(f"the job's working directory {cwd} does not exist on this host")
    program = command[0]
    if os.sep in program:
        _check_program(cwd / program, program)
    elif shutil.which(program, path=search_path) is None:
        hint = f"; write `python {program}`" if program.endswith(".py") else ""
        if is_python(program):
            hint = f"; activate the virtual environment, or write {sys.executable}"
        raise UsageError(f"there is no program {program!r} on PATH{hint}")
    script = python_script(command)
    if script is not None and not (cwd / script).exists():
        raise UsageError(f"the script {script} does not exist (in {cwd})")


def python_script(command: Sequence[str]) -> str | None:
    """The script that ``python [options] script ...`` names; None for another command."""
    python = parse(command)
    return python.target if python is not None and python.main is Main.SCRIPT else None


def title(command: Sequence[str]) -> str:
    """What people call the command: its script, or its program."""
    return Path(python_script(command) or command[0]).name


def _check_program(path: Path, program: str) -> None:
    if not path.exists():
        raise UsageError(f"the program {program} does not exist")
    if path.is_dir() or not os.access(path, os.X_OK):
        hint = f"; write `python {program}`" if program.endswith(".py") else ""
        raise UsageError(f"{program} is not executable{hint}")
