"""Call a user's scaling rule in a thread of its own, because it may be slow.

If the leader waited for the rule, it would notice a broken ring too late. The main entry is
:class:`CustomRuleRunner`.
"""

from __future__ import annotations

import importlib
import threading
from typing import Any

from edl.core.plural import counted
from edl.core.policy.custom_rule import CustomRule, suggestion
from edl.core.policy.observation import Observation, State, Suggestion
from edl.errors import UsageError

WAIT_S = 0.05  # for an answer in the same turn


class CustomRuleRunner:
    """A `Rule` that calls a user's function in the background, and gives each answer once."""

    def __init__(self, rule: CustomRule) -> None:
        self._rule = rule
        self._question: _RuleCall | None = None
        self._asked_at = 0, 0  # workers, and steps with so many

    def __call__(self, now: Observation, state: State, now_s: float) -> Suggestion:
        rule, question = self._rule, self._question
        if question is None:
            left = rule.every_steps - now.steps_since(*self._asked_at)
            if now.awaits or left > 0:
                when = f"in {counted(left, 'step')}"
                when = "when the workers have changed" if now.awaits else when
                return Suggestion(now.np, f"{rule} is asked {when}", state)
            try:
                question = self._question = _RuleCall(rule, now, dict(state), now_s)
            except RuntimeError:  # the limit of threads: the next call tries again
                return Suggestion(now.np, f"{rule} is not asked: no thread can be started", state)
            self._asked_at = now.np, now.steps
        if question.over.wait(WAIT_S):
            self._question = None
            if question.error is not None:
                raise UsageError(f"{rule} failed: {question.error!r}") from question.error
            return suggestion(question.answer, rule)
        if now_s - question.asked_s > rule.deadline_s:
            raise UsageError(f"{rule} gave no answer within {rule.deadline_s:g} s")
        return Suggestion(now.np, f"{rule} has been asked", state)


class _RuleCall:
    """One call of a user's rule in a thread, and its answer or error."""

    def __init__(
        self, rule: CustomRule, now: Observation, state: dict[str, Any], now_s: float
    ) -> None:
        self.asked_s = now_s  # in seconds of the job's training
        self.over = threading.Event()  # set when the two below may be read
        self.answer: Any = None  # unchecked
        self.error: BaseException | None = None
        self._ask = rule, now, state
        threading.Thread(target=self._run, name="edl-policy", daemon=True).start()

    def _run(self) -> None:
        rule, now, state = self._ask
        try:
            function = getattr(importlib.import_module(rule.module), rule.function)
            self.answer = function(now, state, self.asked_s)
        except BaseException as error:  # noqa: BLE001 - raised by the leader's turn
            self.error = error
        self.over.set()
