"""A rule of one's own is asked in a thread of its own: it may be slow, and must not cut rings."""

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
    """A :class:`edl.core.policy.observation.Rule` for the leader's turns. One thread calls it."""

    def __init__(self, rule: CustomRule) -> None:
        self._rule = rule
        self._question: _Question | None = None
        self._asked_at: tuple[int, int] | None = None  # workers, and steps with so many

    def __call__(self, now: Observation, state: State, now_s: float) -> Suggestion:
        """Its newest answer; until there is one, the size that there is.

        Raises:
            UsageError: it cannot be found, has failed, gave no answer in time, or none that counts.
        """
        rule, question = self._rule, self._question
        if question is None:
            np, steps = self._asked_at or (0, 0)
            due = rule.every_steps if np != now.np else steps + rule.every_steps
            if now.awaits or now.steps < due:
                return Suggestion(
                    now.np, f"{rule} is asked in {counted(due - now.steps, 'step')}", state
                )
            self._asked_at = now.np, now.steps
            question = self._question = _Question(rule, now, dict(state), now_s)
        if question.over.wait(WAIT_S):
            self._question = None
            if question.error is not None:
                raise UsageError(f"{rule} failed: {question.error!r}") from question.error
            return suggestion(question.answer, rule)
        if now_s - question.asked_s > rule.deadline_s:
            raise UsageError(f"{rule} gave no answer within {rule.deadline_s:g} s")
        return Suggestion(now.np, f"{rule} has been asked", state)


class _Question:
    """One question, in a thread."""

    def __init__(
        self, rule: CustomRule, now: Observation, state: dict[str, Any], now_s: float
    ) -> None:
        self.asked_s = now_s
        self.over = threading.Event()
        self.answer: Any = None
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
