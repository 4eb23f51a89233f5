"""A rule of one's own: found before the job starts, asked beside the leader's turns."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from edl.client.changes import checked_policy
from edl.errors import UsageError
from edl.job.policy_loop import CustomRuleRunner
from edl.policy.file import CustomRule, parse_policy, suggestion
from edl.policy.observation import Observation, Suggestion
from edl.spec import Sizes

RULE = CustomRule("my_rules", "grow", every_steps=10, deadline_s=5.0)
NOW = Observation(2, Sizes(1, 4), steps=10)
TEXT = '[size]\nrule = "my_rules:grow"\nevery_steps = 10\ndeadline = "5s"\n'


@pytest.fixture
def rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(tmp_path))
    count = 0

    def write(text: str) -> CustomRule:
        nonlocal count
        count += 1
        name = f"my_rules_{tmp_path.name}_{count}".replace("[", "_").replace("]", "_")
        (tmp_path / f"{name}.py").write_text(text)
        return CustomRule(name, "grow", every_steps=10, deadline_s=5.0)

    return write


def answered(rule: CustomRuleRunner, now: Observation = NOW, state: Any = None) -> Suggestion:
    deadline = time.monotonic() + 30.0
    while (found := rule(now, state or {}, 0.0)).reason.endswith("has been asked"):
        assert time.monotonic() < deadline
    return found


def test_it_is_named_in_the_file() -> None:
    assert parse_policy(TEXT, "p.toml").size == RULE
    with pytest.raises(UsageError, match=r"p\.toml, line 3: rule my:own has no 'threshold'"):
        parse_policy('[size]\nrule = "my:own"\nthreshold = 1', "p.toml")


def test_without_a_thread_it_is_asked_again(rules: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> NoReturn:
        raise RuntimeError("can't start new thread")

    rule = CustomRuleRunner(rules("def grow(now, state, s): return now.np + 1, 'why', {}"))
    with monkeypatch.context() as now:
        now.setattr(threading.Thread, "start", refuse)
        assert rule(NOW, {}, 0.0).reason.endswith("is not asked: no thread can be started")
    assert answered(rule).np == 3


def test_it_is_asked_with_what_it_has_noted(rules: Any) -> None:
    rule = CustomRuleRunner(
        rules("def grow(now, state, s): return now.np + 1, 'why', {'n': state['n'] + 1}")
    )
    assert answered(rule, state={"n": 4}) == Suggestion(3, "why", {"n": 5})


def test_it_is_asked_every_so_many_steps(rules: Any) -> None:
    rule = CustomRuleRunner(rules("def grow(now, state, s): return 4, 'why', {}"))
    assert rule(Observation(2, Sizes(1, 4), steps=9), {}, 0.0).reason.endswith("in 1 step")
    assert answered(rule).np == 4
    assert rule(Observation(2, Sizes(1, 4), steps=19), {}, 0.0).np == 2
    assert answered(rule, Observation(2, Sizes(1, 4), steps=20)).np == 4
    assert answered(rule, Observation(2, Sizes(1, 4), steps=10)).np == 4  # had 1 for some steps
    assert answered(rule, Observation(3, Sizes(1, 4), steps=10)).np == 4


def test_while_the_workers_change_it_names_no_step() -> None:
    rule = CustomRuleRunner(RULE)
    for steps in (9, 300):
        said = rule(replace(NOW, steps=steps, awaits=True), {}, 0.0).reason
        assert said == "my_rules:grow is asked when the workers have changed"


def test_a_slow_one_holds_nobody_up_and_has_a_deadline(
    rules: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(threading, "go_on", go_on, raising=False)
    rule = CustomRuleRunner(
        rules("import threading\ndef grow(*_): threading.go_on.wait(); return 3, '', {}")
    )
    try:
        assert rule(NOW, {"a": 1}, 100.0).state == {"a": 1}
        assert rule(NOW, {}, 104.9).np == 2
        with pytest.raises(UsageError, match=r"gave no answer within 5 s"):
            rule(NOW, {}, 105.1)
    finally:
        go_on.set()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def grow(*_): return 1 / 0", "failed: ZeroDivisionError('division by zero')"),
        ("def other(*_): pass", "has no attribute 'grow'"),
        ("import no_such_module_at_all", "No module named 'no_such_module_at_all'"),
        ("def grow(*_): raise SystemExit(1)", "failed: SystemExit(1)"),
        ("def grow(*_): return 3", "returned 3; it must return (size, reason, state)"),
    ],
)
def test_what_fails_is_said(rules: Any, text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        answered(CustomRuleRunner(rules(text)))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((1.5, "", {}), "returned the size 1.5; it must be a whole number above 0"),
        ((True, "", {}), "returned the size True"),
        ((0, "", {}), "returned the size 0"),
        ((1, None, {}), "returned the reason None; it must be a sentence"),
        ((1, "", [1]), "returned the state [1]; it must be a dict"),
        ((1, "", {"a": {1}}), "returned a state that is no JSON"),
    ],
)
def test_an_answer_that_does_not_count(answer: object, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        suggestion(answer, RULE)
    assert str(caught.value).startswith(f"my_rules:grow {said}")


def test_it_is_looked_for_before_the_job_starts(tmp_path: Path) -> None:
    command = ("python", "scripts/train.py")
    (tmp_path / "scripts").mkdir()

    def checked(text: str = TEXT) -> None:
        checked_policy(text, "p.toml", Sizes(1, 4), command, tmp_path)

    with pytest.raises(UsageError, match=r"p\.toml: there is no module my_rules for the rule"):
        checked()
    module = tmp_path / "scripts" / "my_rules.py"
    module.write_text("raise SystemExit('it is not run')\ndef shrink(): pass\n")
    with pytest.raises(UsageError, match=r"my_rules\.py has no function grow"):
        checked()
    module.write_text("try:\n    from x import grow\nexcept ImportError:\n    grow = None\n")
    checked()
    checked('[size]\nrule = "edl.policy.hill_climbing:Votes"')
    with pytest.raises(UsageError, match=r"there is no module edl\.policy\.nothing"):
        checked('[size]\nrule = "edl.policy.nothing:Votes"')
    module.write_text("def grow(:")
    with pytest.raises(UsageError, match="cannot read the rule my_rules:grow: invalid syntax"):
        checked()
