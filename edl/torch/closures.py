"""Use the gradients that a closure computes in ``optimizer.step()``; refuse to run it twice.

:func:`after_closure` wraps the closure in a hook before the step. An optimizer that evaluates it a
second time in a step, such as LBFGS with several iterations, gets a UsageError.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from edl.errors import UsageError

AGAIN = (
    "{kind} evaluates its closure more than once in a step, and edl trains one backward() in each; "
    "use an optimizer that evaluates it once, such as Adam, or torch.optim.LBFGS with max_iter=1 "
    "and no line search"
)

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def after_closure(
    arguments: tuple[Any, ...], named: dict[str, Any], then: Callable[[], None]
) -> Arguments | None:
    """Call `then` when a `step()` has its gradients; return its new arguments, if they change."""
    closure = named.get("closure", arguments[1] if len(arguments) > 1 else None)
    if closure is None:
        then()
        return None
    evaluated = False

    def once() -> Any:
        nonlocal evaluated
        if evaluated:
            raise UsageError(AGAIN.format(kind=type(arguments[0]).__name__))
        evaluated = True
        loss = closure()
        then()
        return loss

    if "closure" in named:
        return arguments, {**named, "closure": once}
    return (arguments[0], once, *arguments[2:]), named
