"""No room of edl/ is larger than house.toml allows, and no chain of imports is longer."""

from __future__ import annotations

import ast
import re
from dataclasses import astuple

import pytest
from house import EDL, Size, budgets, longest_allowed_chain, measure, sizes
from source_trees import longest_chain


@pytest.mark.parametrize("room", budgets())
def test_a_room_keeps_to_its_budget(room: str) -> None:
    size, budget = sizes()[room], budgets()[room]
    over = any(a > b for a, b in zip(astuple(size), astuple(budget), strict=True))
    assert not over, (
        f"edl/{room} has {size}, and house.toml allows {budget}: look for what goes, or raise the "
        "budget there with a line of reason"
    )


def test_each_kind_of_line_is_counted_as_what_it_is() -> None:
    source = (
        '"""One.\n\nTwo."""\n\n# why\nx = 1  # what\n\n\ndef f():\n    """Do."""\n    return x\n'
    )
    assert measure(source) == Size(files=1, code=3, prose=5)


def test_no_chain_of_imports_is_longer() -> None:
    chain = longest_chain()
    assert len(chain) <= longest_allowed_chain(), " imports ".join(chain)


@pytest.mark.parametrize("room", ["torch", "tensorflow"])
def test_what_users_import_has_a_docstring(room: str) -> None:
    """Ruff asks files, and these names stand in files beside others."""
    names = re.findall(r'^    "(\w+)",$', (EDL / room / "__init__.py").read_text(), re.MULTILINE)
    bare = []
    for path in (EDL / room).glob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name in names:
                inside = node.body if isinstance(node, ast.ClassDef) else []
                for one in (node, *inside):
                    if isinstance(one, ast.ClassDef | ast.FunctionDef) and one.name[0] != "_":
                        is_overload = "overload" in map(ast.unparse, one.decorator_list)
                        if not (is_overload or ast.get_docstring(one)):
                            bare.append(f"{node.name}.{one.name}")
    assert names
    assert bare == []
