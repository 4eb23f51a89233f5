"""A command line of Python is taken apart as the interpreter does."""

from __future__ import annotations

import shlex

import pytest

from edl.host.process import Main, PythonCommand, parse_command

SCRIPT, MODULE, CODE, OTHER = Main.SCRIPT, Main.MODULE, Main.CODE, Main.OTHER


@pytest.mark.parametrize(
    ("command", "options", "main", "target", "arguments"),
    [
        ("python train.py --lr 0.1 -m x", "", SCRIPT, "train.py", "--lr 0.1 -m x"),
        ("/opt/python3.11 -u -W error -X dev t.py", "-u -W error -X dev", SCRIPT, "t.py", ""),
        ("python -Wdefault -OO -Xutf8 t.py -c", "-Wdefault -OO -Xutf8", SCRIPT, "t.py", "-c"),
        ("python --check-hash-based-pycs never t.py", "--check-hash-based-pycs never", SCRIPT,
         "t.py", ""),
        ("python -bW error t.py", "-bW error", SCRIPT, "t.py", ""),
        ("python -- -odd.py x", "", SCRIPT, "-odd.py", "x"),
        ("python -m pkg.train --lr 1", "", MODULE, "pkg.train", "--lr 1"),
        ("python -O -mpkg", "-O", MODULE, "pkg", ""),
        ("python -um pkg -u", "-u", MODULE, "pkg", "-u"),
        ("python -c 'print(1)' a b", "", CODE, "print(1)", "a b"),
        ("python -uEc 'print(1)'", "-uE", CODE, "print(1)", ""),
        ("python", "", OTHER, "", ""),
        ("python - a", "- a", OTHER, "", ""),
        ("python -i t.py", "-i t.py", OTHER, "", ""),
        ("python -ui t.py", "-ui t.py", OTHER, "", ""),
        ("python --version", "--version", OTHER, "", ""),
    ],
)  # fmt: skip
def test_a_command_of_python(
    command: str, options: str, main: Main, target: str, arguments: str
) -> None:
    words = shlex.split(command)
    assert parse_command(words) == PythonCommand(
        words[0], tuple(shlex.split(options)), main, target, tuple(shlex.split(arguments))
    )


@pytest.mark.parametrize(
    "command", ["", "bash train.sh", "pythonic t.py", "./train.py", "torchrun"]
)
def test_another_command(command: str) -> None:
    assert parse_command(command.split()) is None
