"""Decide from its source whether the state of a metric is a sum over the batches.

The state is a sum if every ``update_state`` of the metric only adds to its variables what does not
depend on them. It is looked for in the syntax tree; whatever is not understood is no sum.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

SUPER = "super().update_state"


def is_additive(metric: Any) -> bool:
    """Return whether the state of ``metric`` after several batches is the sum of their states.

    Keras' own metrics are sums. The attribute ``edl_additive`` of a class of the user's own decides
    for it, where it is set. A metric that keeps nothing in variables or inner metrics is no sum.
    """
    inner = [each for each in getattr(metric, "_metrics", ()) if each is not metric]
    said = getattr(metric, "edl_additive", None)
    if said is not None:
        return bool(said)
    return _adds(type(metric).__mro__) and all(map(is_additive, inner))


def _adds(kinds: tuple[type, ...]) -> bool:
    """Return whether the first ``update_state`` of these classes, in their order, only adds."""
    for at, kind in enumerate(kinds):
        if "update_state" not in vars(kind):
            continue
        if kind.__module__.partition(".")[0] == "keras":
            return kind.__name__ != "Metric"  # whose own update_state is not implemented
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
        except (OSError, TypeError, SyntaxError):  # made at a prompt, or in a string
            return False
        updates = list(_updates(tree.body[0]))
        passes_on = SUPER in updates
        return bool(updates) and "" not in updates and (not passes_on or _adds(kinds[at + 1 :]))
    return False


def _updates(kind: ast.AST) -> Iterator[str]:
    """Yield how each method of a class but ``reset_state`` changes a state.

    The text of what is called, or of the variable that is added to; "" where it is no addition.
    """
    methods = [each for each in ast.iter_child_nodes(kind) if isinstance(each, ast.FunctionDef)]
    for method in methods:
        if method.name in ("__init__", "build", "reset_state", "reset_states"):
            continue
        for node in ast.walk(method):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                yield from _update(node, node.func)


def _update(call: ast.Call, function: ast.Attribute) -> Iterator[str]:
    target, arguments = ast.unparse(function.value), [*call.args]
    arguments += [keyword.value for keyword in call.keywords]
    if function.attr == "update_state":
        yield SUPER if target.startswith("super(") else f"{target}.update_state"
    elif function.attr in ("assign_add", "assign_sub"):
        yield target if not any(_reads(each, target) for each in arguments) else ""
    elif function.attr == "assign":
        yield target if len(arguments) == 1 and _is_addition(arguments[0], target) else ""
    elif function.attr.startswith("scatter_"):
        yield ""


def _is_addition(value: ast.expr, target: str) -> bool:
    """Return whether ``value`` is ``target`` and something that does not depend on it."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add | ast.Sub):
        left, right = value.left, value.right
        swapped = isinstance(value.op, ast.Add)
    elif isinstance(value, ast.Call) and len(value.args) == 2 and not value.keywords:
        name = ast.unparse(value.func).rpartition(".")[2]
        if name not in ("add", "subtract"):
            return False
        (left, right), swapped = value.args, name == "add"
    else:
        return False
    if swapped and ast.unparse(right) == target:
        left, right = right, left
    if ast.unparse(left) == target:
        return not _reads(right, target)
    return _is_addition(left, target) and not _reads(right, target)  # target + a + b


def _reads(value: ast.expr, target: str) -> bool:
    return any(
        isinstance(node, ast.expr) and ast.unparse(node) == target for node in ast.walk(value)
    )
