"""The syntax trees of edl's modules, parsed once for all tests that look at the code."""

from __future__ import annotations

import ast
import gc
from functools import cache
from pathlib import Path

import edl

ROOT = Path(edl.__file__).parent
MODULES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py"))


@cache
def nodes() -> dict[str, tuple[ast.AST, ...]]:
    """Return all nodes of each module by its path below edl/, like "core/step/batch.py".

    The first node of a module is its :class:`ast.Module`.
    """
    found = {
        name: tuple(ast.walk(ast.parse((ROOT / name).read_text(encoding="utf-8"), name)))
        for name in MODULES
    }
    gc.freeze()  # a million objects, which each later collection of garbage would look at
    return found


def module_of(name: str) -> ast.Module:
    """Return the tree of the module with the path ``name`` below edl/."""
    module = nodes()[name][0]
    assert isinstance(module, ast.Module)
    return module
