"""Split a command line that runs Python into its parts, as the interpreter itself does.

The entry point is :func:`parse_command`. Nothing is run, and no file is read.

A launcher has to know what the interpreter would run: to check that a script exists, and to run it
in a process that is forked from a template (:mod:`edl.launch.template`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

TRANSPARENT = "edl.transparent"  # the module that runs an unchanged Horovod script

_PYTHON = re.compile(r"python[0-9.]*")
_WITH_VALUE = "WX"  # options of one letter whose value follows, in the same word or the next
_LONG_WITH_VALUE = ("--check-hash-based-pycs",)
_SHORT_OTHER = "hViqx?"  # print something and end, or go on at a prompt, or skip a line


class Main(StrEnum):
    """The kind of code that the interpreter runs as `__main__`."""

    SCRIPT = "script"  # a file, a directory or a zip archive
    MODULE = "module"  # python -m
    CODE = "code"  # python -c
    OTHER = "other"  # a prompt, standard input, `--help`


@dataclass(frozen=True)
class PythonCommand:
    """A command line of Python, split into options, code and arguments by `parse_command`."""

    program: str  # the interpreter, as it is written
    options: tuple[str, ...]  # of the interpreter
    main: Main
    target: str  # path, module or text of the code; empty for `Main.OTHER`
    arguments: tuple[str, ...]  # of that code; empty for `Main.OTHER`


def is_python(program: str) -> bool:
    """Return whether the last part of the path `program` is "python" with or without a version."""
    return _PYTHON.fullmatch(program.rpartition("/")[2]) is not None


def parse_command(command: Sequence[str]) -> PythonCommand | None:
    """Return the parts of a command line of Python; None if it is empty or not one of Python."""
    if not command or not is_python(command[0]):
        return None
    program, *words = command
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--":
            at += 1
            break
        if not word.startswith("-") or word == "-":
            break
        if word.startswith("--"):
            if word not in _LONG_WITH_VALUE:
                return _other(program, words)
            at += 2
            continue
        letter, value = _first_that_matters(word)
        if letter and letter in "cm":
            target = [value] if value else words[at + 1 : at + 2]
            rest = words[at + (1 if value else 2) :]
            main = Main.CODE if letter == "c" else Main.MODULE
            # `-uc CODE`: the letters before it are options, too.
            before = word[: word.index(letter)]
            options = (*words[:at], *([before] if before != "-" else []))
            return PythonCommand(program, options, main, "".join(target), tuple(rest))
        if letter and letter in _SHORT_OTHER:
            return _other(program, words)
        at += 2 if letter and not value else 1
    if at >= len(words) or words[at] == "-":
        return _other(program, words)
    options = tuple(word for word in words[:at] if word != "--")
    return PythonCommand(program, options, Main.SCRIPT, words[at], tuple(words[at + 1 :]))


def transparent(command: Sequence[str]) -> tuple[str, ...] | None:
    """Return `command` with its script run through edl.transparent; None: no Python code."""
    python = parse_command(command)
    if python is None or python.main is Main.OTHER:
        return None
    if python.main is Main.MODULE and python.target == TRANSPARENT:
        return tuple(command)
    before = 1 + len(python.options)
    return (*command[:before], "-m", TRANSPARENT, *command[before:])


def python_script(command: Sequence[str]) -> str | None:
    """Return the path of the script that a command line `python [options] script ...` runs."""
    python = parse_command(command)
    if python is not None and python.main is Main.MODULE and python.target == TRANSPARENT:
        python = parse_command((python.program, *python.arguments))
    return python.target if python is not None and python.main is Main.SCRIPT else None


def title(command: Sequence[str]) -> str:
    """Return a short name: the file name of the command's Python script, else of its program."""
    path = python_script(command) or command[0]
    return next((part for part in reversed(path.split("/")) if part not in ("", ".")), "")


def _first_that_matters(word: str) -> tuple[str, str]:
    """Return the first letter of an option word that takes a value or ends the options."""
    for index, letter in enumerate(word[1:], 2):
        if letter in f"cm{_WITH_VALUE}{_SHORT_OTHER}":
            return letter, word[index:]
    return "", ""


def _other(program: str, words: Sequence[str]) -> PythonCommand:
    return PythonCommand(program, tuple(words), Main.OTHER, "", ())
