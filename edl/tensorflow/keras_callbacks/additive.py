"""Decide whether the state of a Keras metric is a sum over the batches: :func:`is_additive`.

The states of Keras' own metrics are taken for such sums. The source code of a user's metric is
read: ``update_state``, and the methods that it calls, may use a variable of the state only to add
to it, by ``v.assign_add(...)`` or ``v.assign(v + ...)``, or through other metrics that the metric
holds. So a maximum is no sum, a running mean ``v.assign_add((x - v) / n)`` is none, and neither is
code that is not understood. The attribute ``edl_additive`` (True or False) of a metric's class
overrules this.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

import keras

ADDITIONS = {"assign_add", "assign_sub", "update_state"}  # the last one: of a metric inside it
HARMLESS = {"shape", "dtype", "name", "ndim"}  # attributes of a variable that are not its value


def is_additive(metric: Any) -> bool:
    """Return whether the state of `metric` is a sum, so that states of workers can be added."""
    said = getattr(type(metric), "edl_additive", None)
    if said is not None:
        return bool(said)
    inner = [each for each in getattr(metric, "_metrics", ()) if each is not metric]
    return _only_adds(metric) and all(map(is_additive, inner))


def _only_adds(metric: Any) -> bool:
    """Return whether the code of `metric` changes the variables of its state by adding only."""
    own = []  # classes that are not Keras', which are taken to add only
    for kind in type(metric).__mro__:
        if kind.__module__.partition(".")[0] == "keras":
            break
        own.append(kind)
    adds = not any("update_state" in vars(kind) for kind in own)
    ahead, seen = ["update_state"], {"update_state"}
    while ahead:
        for method in _definitions(own, ahead.pop()):
            if method is None or _uses_state(method, metric):  # None: no source to read
                return False
            adds = adds or any(
                isinstance(node, ast.Attribute) and node.attr in {*ADDITIONS, "assign"}
                for node in ast.walk(method)
            )
            called = {each.attr for each in _own_attributes(method)} - seen
            seen |= called
            ahead += called
    return adds  # else the state is elsewhere


def _definitions(kinds: list[type], name: str) -> Iterator[ast.FunctionDef | None]:
    """Yield the trees of the methods that a call of `name` may run; None: one without source."""
    for kind in kinds:
        if name in vars(kind):
            method = _parsed(vars(kind)[name])
            yield method
            if method is None or not any(
                isinstance(node, ast.Name) and node.id == "super" for node in ast.walk(method)
            ):
                return


def _parsed(function: Any) -> ast.FunctionDef | None:
    if isinstance(function, property):
        function = function.fget
    if isinstance(function, staticmethod | classmethod):
        function = function.__func__
    if not callable(function):
        return ast.parse("def value(): ...").body[0]  # type: ignore[return-value]  # a constant
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    except (OSError, TypeError, SyntaxError):
        return None
    return next((each for each in tree.body if isinstance(each, ast.FunctionDef)), None)


def _own_attributes(tree: ast.AST) -> Iterator[ast.Attribute]:
    """Yield each expression `self.name` in the syntax tree `tree`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_self(node.value):
            yield node


def _is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _uses_state(method: ast.FunctionDef, metric: Any) -> bool:
    """Return whether `method` uses variables of `metric` for more than adding to them."""
    allowed: set[int] = set()
    for node in ast.walk(method):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            allowed |= _added_to(node, node.func)
        elif isinstance(node, ast.Attribute) and node.attr in HARMLESS:
            allowed.add(id(_bare(node.value)))
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Is | ast.IsNot):
            allowed.add(id(node.left))  # is None: not made yet
        elif isinstance(node, ast.Assign | ast.AnnAssign):  # makes it
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            allowed |= {id(target) for target in targets}
    return any(
        id(node) not in allowed and _has_variables(getattr(metric, node.attr, None))
        for node in _own_attributes(method)
    )


def _added_to(call: ast.Call, function: ast.Attribute) -> set[int]:
    """Return the `id()` of the nodes that stand for the variable to which a call adds, if any."""
    target = function.value
    if function.attr in ADDITIONS:
        return {id(_bare(target))}
    term = (
        _addend(call.args[0], ast.dump(target)) if function.attr == "assign" and call.args else None
    )
    return set() if term is None else {id(_bare(target)), id(_bare(term))}


def _addend(value: ast.AST, target: str) -> ast.AST | None:
    """Return the node of the sum `value` that `ast.dump` shows as `target`; None: there is none."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add | ast.Sub):
        terms = [value.left, value.right][: 1 + isinstance(value.op, ast.Add)]
    elif isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        terms = {"add": value.args, "subtract": value.args[:1]}.get(value.func.attr, [])
    else:
        return value if ast.dump(value) == target else None
    found = (_addend(term, target) for term in terms)
    return next((node for node in found if node is not None), None)


def _bare(node: ast.AST) -> ast.AST:
    """Return `node` without its subscripts: `self.parts` in place of `self.parts[0]`."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return node


def _has_variables(value: Any) -> bool:
    """Return whether `value`, an attribute of a metric, is or contains a variable."""
    if isinstance(value, dict):
        value = [*value.values()]
    if isinstance(value, list | tuple):
        return any(map(_has_variables, value))
    return isinstance(value, keras.Variable) or hasattr(value, "assign_add")
