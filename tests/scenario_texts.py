"""Scenarios as texts: a title, facts, and after `=>` what follows from them.

Facts stand between `|`, each a word and its value. A further `=>` of the same scenario has the
facts before it, but for those that were given anew since, or taken back (`no dead`). Scenarios are
divided by empty lines, and a line that begins with `#` is a comment.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent / "unit/scenarios"
# w1@b/0(fields): a worker, its host, its slot, and what else a room's texts say of it.
WORKER = re.compile(r"w(\d+)(?:@(\w+))?(?:/(\d+))?(?:\(([^)]*)\))?")


def scenarios(room: str) -> list[Any]:
    """Return the parameters of a test with one case for each scenario in the files of a room."""
    found = []
    for file in sorted((FOLDER / room).glob("*.txt")):
        for text in file.read_text().split("\n\n"):
            title, *lines = [one for one in text.splitlines() if not one.startswith("#")] or [""]
            if lines:
                found.append(pytest.param(lines, id=f"{file.stem}: {title}"))
    return found


def check(lines: list[str], answer: Callable[[dict[str, str]], list[str]]) -> None:
    """Compare what a scenario says with what follows from its facts."""
    facts: dict[str, str] = {}
    expected: list[str] = []
    for line in [*lines, ""]:
        if line.startswith(("  =>", "     ")):
            expected.append(line.removeprefix("  =>").strip())
            continue
        if expected:
            assert answer(facts) == expected
            expected = []
        facts = with_facts(facts, line)


def with_facts(facts: dict[str, str], line: str) -> dict[str, str]:
    facts = dict(facts)
    for key, _, value in (fact.partition(" ") for fact in line.strip().split(" | ")):
        facts[key] = value
        if key == "no":
            del facts[value]
    return facts


def numbers(text: str, each: Any = int) -> dict[str, Any]:
    return {key: each(n) for key, n in (pair.split("=") for pair in text.split())}


def ids(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"w(\d+)", text)]
