"""Name a custom size rule as ``module:function``, and check what the function returns.

A custom size rule is a function of the user that chooses a job's number of workers.
:class:`CustomRule` describes it, and :func:`suggestion` checks its answers; nothing here calls it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from edl.core.policy.observation import Suggestion
from edl.core.settings import setting
from edl.errors import UsageError

_NAME = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_]\w*)")


@dataclass(frozen=True)
class CustomRule:
    """A size rule that the user has written: a function of a module, called as a `Rule` is."""

    module: str = ""
    function: str = ""
    every_steps: int = setting(10, "steps between two questions", least=1)
    deadline_s: float = setting(10.0, "for an answer; then the policy is off")

    def __str__(self) -> str:
        return f"{self.module}:{self.function}"


def module_and_function(text: str) -> tuple[str, str] | None:
    """Return the pair (module, function) that a text such as "module:function" names."""
    match = _NAME.fullmatch(text)
    return None if match is None else (match[1], match[2])


def suggestion(answer: Any, rule: CustomRule) -> Suggestion:
    """Return the `answer` of a custom size rule as a `Suggestion`, after checking it."""
    if not isinstance(answer, tuple) or len(answer) != 3:
        raise UsageError(
            f"{rule} returned {answer!r}; it must return (size, reason, state): a whole number, a "
            "sentence, and a dict that it is given the next time"
        )
    np, reason, state = answer
    if isinstance(np, bool) or not isinstance(np, int) or np < 1:
        raise UsageError(f"{rule} returned the size {np!r}; it must be a whole number above 0")
    if not isinstance(reason, str):
        raise UsageError(f"{rule} returned the reason {reason!r}; it must be a sentence")
    try:
        same = json.loads(json.dumps(state))
    except (TypeError, ValueError) as error:
        raise UsageError(f"{rule} returned a state that is no JSON: {error}") from None
    if not isinstance(same, dict):
        raise UsageError(f"{rule} returned the state {state!r}; it must be a dict")
    return Suggestion(np, reason, same)
