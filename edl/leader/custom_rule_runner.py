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
    """A :class:`edl.core.policy.observation.Rule` that calls a user's function in the background.

    Such a rule suggests how many workers a job shall have. The leader calls this object in each of
    its turns, from one thread.

    Args:
        rule: The module and name of the user's function, the number of steps between two calls of
            it, and how many seconds to wait for its answer.
    """

    def __init__(self, rule: CustomRule) -> None:
        self._rule = rule
        self._question: _RuleCall | None = None
        self._asked_at = 0, 0  # workers, and steps with so many

    def __call__(self, now: Observation, state: State, now_s: float) -> Suggestion:
        """Return the number of workers that the user's function has answered, or the present one.

        The function is called in a thread when ``every_steps`` steps (a number in the policy) have
        completed since its last call or since the number of workers changed, unless a change of the
        workers is under way. Each call of this object waits up to 0.05 s for its answer. The one
        that sees the answer returns it, once; all others return the present number of workers and
        ``state``.

        Args:
            now: The observation of the job; the function gets the one with which it is called.
            state: The state that the function returned with its last answer; the function gets a
                copy of it.
            now_s: The seconds since training began, in which the job had workers; the function
                gets it as well.

        Returns:
            The number of workers, the reason as a clause, and the state for the next call.

        Raises:
            UsageError: the function cannot be imported, has failed, gave no answer within
                ``deadline_s`` of the policy, or gave an answer that is not a size above 0, a
                reason and a state.
        """
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
    """One call of a user's rule in a thread, and its answer or error.

    Creating the object starts the thread. ``answer`` and ``error`` are to be read once ``over`` is
    set.

    Attributes:
        asked_s: When the call began, in seconds of the job's training.
        over: An event that is set when the call has ended.
        answer: What the function returned, unchecked; None before that or after an error.
        error: What the import or the function raised; None if nothing was raised (yet).

    Args:
        rule: Names the user's function, and its module, which is imported in the thread.
        now: The observation of the job that the function gets.
        state: The state that the function returned the last time; the function may change it.
        now_s: How long the job has trained, in seconds.

    Raises:
        RuntimeError: no thread can be started.
    """

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
        """Import the user's function, call it, and keep what it returns or raises; raise nothing.

        ``over`` is set at the end.
        """
        rule, now, state = self._ask
        try:
            function = getattr(importlib.import_module(rule.module), rule.function)
            self.answer = function(now, state, self.asked_s)
        except BaseException as error:  # noqa: BLE001 - raised by the leader's turn
            self.error = error
        self.over.set()
