"""The syntax trees of edl's modules, parsed once for all tests that look at the code."""

from __future__ import annotations

import ast
import gc
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import edl

ROOT = Path(edl.__file__).parent
MODULES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py"))


@cache
def nodes() -> dict[str, tuple[ast.AST, ...]]:
    """Return all nodes of each module by its path below edl/, like "step/engine.py".

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


@cache
def nodes_of(module: str) -> tuple[ast.AST, ...]:
    """Return what the rules here look at: imports, calls, attributes and handlers of errors."""
    kinds = (ast.Import, ast.ImportFrom, ast.Call, ast.Attribute, ast.ExceptHandler)
    return tuple(node for node in nodes()[module] if isinstance(node, kinds))


@cache
def imports_of(module: str) -> tuple[str, ...]:
    """Return the full names of all that a file imports, at the top or anywhere else."""
    names: list[str] = []
    for node in nodes_of(module):
        if isinstance(node, ast.Import):
            names += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: imports are absolute"
            names += (f"{node.module}.{alias.name}" for alias in node.names)
    return tuple(names)


def dotted(module: str) -> str:
    """Return the name by which a file of edl is imported."""
    return f"edl/{module}".removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@cache
def import_graph() -> dict[str, set[str]]:
    """Return which files each file imports, also within a function or for a type checker."""
    files = {dotted(module): module for module in MODULES}
    graph = {}
    for module in MODULES:
        # What is imported from a module is named as a module within a package is.
        names = {n if n in files else n.rpartition(".")[0] for n in imports_of(module)}
        graph[module] = {files[name] for name in names & files.keys()}
    return graph


def longest_chain() -> list[str]:
    """Return the files of the longest chain of imports, from the one that imports the next."""
    chains: dict[str, list[str]] = {}
    for module in TopologicalSorter(import_graph()).static_order():
        below = max((chains[each] for each in import_graph()[module]), key=len, default=[])
        chains[module] = [module, *below]
    return max(chains.values(), key=len)
