"""Count edl/ room by room, and print it beside the budgets of house.toml: `make house`.

A room is the folder with the longest path that house.toml names. Code is each line but blank ones,
comments and docstrings; prose is docstrings, and lines of comments. `--lower` sets each budget that
is above what is there to what is there; a budget is raised by hand, with its reason.
"""

from __future__ import annotations

import argparse
import ast
import re
import tomllib
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
EDL = ROOT / "edl"
HOUSE = ROOT / "house.toml"
WITH_DOCSTRING = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Size:
    files: int
    code: int
    prose: int

    def __add__(self, other: Size) -> Size:
        return Size(*map(sum, zip(astuple(self), astuple(other), strict=True)))


NOTHING = Size(0, 0, 0)


def measure(source: str) -> Size:
    """Return the size of one file."""
    said: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, WITH_DOCSTRING) and ast.get_docstring(node, clean=False) is not None:
            said |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    rest = [line.strip() for at, line in enumerate(source.splitlines(), 1) if at not in said]
    comments = sum(line.startswith("#") for line in rest)
    return Size(1, sum(map(bool, rest)) - comments, len(said) + comments)


@cache
def _house() -> Mapping[str, Any]:
    return tomllib.loads(HOUSE.read_text(encoding="utf-8"))


def longest_allowed_chain() -> int:
    """Return how many files may import one another in a row."""
    return int(_house()["longest_chain"])


@cache
def budgets() -> Mapping[str, Size]:
    """Return the budget of each room by its path below edl/; that of edl itself is ``""``."""
    return {name: Size(**each) for name, each in _house()["rooms"].items()}


def room_of(module: str) -> str:
    """Return the room of the file with the path ``module`` below edl/."""
    return max((r for r in budgets() if not r or module.startswith(f"{r}/")), key=len)


@cache
def sizes() -> dict[str, Size]:
    """Return what each room has."""
    found = dict.fromkeys(budgets(), NOTHING)
    for path in EDL.rglob("*.py"):
        found[room_of(path.relative_to(EDL).as_posix())] += measure(path.read_text("utf-8"))
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--lower", action="store_true", help="budgets that are too large")
    lower, found = options.parse_args().lower, sizes()
    text = HOUSE.read_text(encoding="utf-8")
    print(f"{'room':28}{'files':>12}{'code':>16}{'prose':>16}")
    for room, size in found.items():
        pairs = tuple(zip(astuple(size), astuple(budgets()[room]), strict=True))
        print(f"{room or 'edl':28}" + "".join(f"{a:8,}/{b:7,}" for a, b in pairs))
        files, code, prose = (min(pair) for pair in pairs)
        row = f'"{room}" = {{ files = {files}, code = {code}, prose = {prose} }}'
        text = re.sub(rf'^"{room}" = {{.*?}}', row, text, flags=re.MULTILINE)
    print(f"{'all':28}" + "".join(f"{n:8,}{'':8}" for n in astuple(sum(found.values(), NOTHING))))
    if lower:
        HOUSE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
