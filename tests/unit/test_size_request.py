"""What a script says of its job's size: its policy, and its wishes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
from made import Clock

from edl.binding import api
from edl.config import Config
from edl.errors import UsageError
from edl.policy.file import parse_policy
from edl.policy.hill_climbing import Throughput, Votes
from edl.records import JobPolicy
from edl.spec import Sizes
from edl.step.batching import Batching
from edl.worker.coordinator import JobOfOne
from edl.worker.loader_steps import SizeRequest
from edl.worker.shared_state import SharedState
from edl.worker.worker import Worker

SHORT = '[size]\nrule = "throughput"\n'
VOTES = '[size]\nrule = "votes"\nevery = "5m"\n'


def test_the_script_is_asked_when_it_is_due() -> None:
    clock, answers = Clock(), [2, np.int64(-1)]
    wishes = SizeRequest(clock)
    wishes.look()
    wishes.ask(lambda: answers.pop(0), 60.0)
    seen = []
    for clock.now_s in (0.0, 59.0, 60.0, 119.0, 121.0, 150.0):
        wishes.look()
        seen.append(wishes.change)
    assert seen == [0, 0, 2, 2, -1, -1]
    assert type(wishes.change) is int


def test_an_answer_does_not_count_in_the_next_ring() -> None:
    """What it asked for has perhaps come; the script is asked again when it is due."""
    config = Config()
    worker, clock = Worker(config, MagicMock(), SharedState(), JobOfOne(config)), Clock()
    wishes = worker.size_request = worker.steps._size_request = SizeRequest(clock)
    wishes.ask(lambda: 1, 60.0)
    clock.now_s = 60.0
    wishes.look()
    assert wishes.change == 1
    worker._switching.on_switch(2, 3)
    seen = []
    for clock.now_s in (75.0, 119.0, 120.0):
        wishes.look()
        seen.append(wishes.change)
    assert seen == [0, 0, 1]


def test_the_script_is_asked_after_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer would be dropped with that of the ring before."""
    config = Config()
    worker, clock = Worker(config, MagicMock(), SharedState(), JobOfOne(config)), Clock()
    wishes = worker.size_request = worker.steps._size_request = SizeRequest(clock)
    switching = MagicMock(warming_up=False)
    switching.switch.side_effect = lambda *_: worker._switched(2, 3)
    monkeypatch.setattr(worker, "_switching", switching)
    monkeypatch.setattr(worker, "_is_of_another_fit", lambda _number: False)
    monkeypatch.setattr(worker, "_let_leave", lambda _number: True)
    wishes.ask(lambda: 1, 60.0)
    clock.now_s, worker.steps.target = 60.0, 2
    worker.boundary()
    switching.switch.assert_called_once_with(2, worker.steps.idle_record)
    assert wishes.change == 1
    worker.steps.target = 3
    worker.boundary()
    assert wishes.change == 0, "it is not asked again yet"


@pytest.mark.parametrize("answer", [1.0, None, "1", True, 10**30])
def test_a_wish_is_a_whole_number(answer: object) -> None:
    clock = Clock()
    wishes = SizeRequest(clock)
    wishes.ask(lambda: answer, 1.0)
    clock.now_s = 1.0
    with pytest.raises(UsageError, match=r"returned .*; it must return a whole number"):
        wishes.look()


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Any:
    one = SimpleNamespace(
        is_shared=True, sizes=Sizes(1, 4), followed=[], size_request=SizeRequest(Clock())
    )
    one.policy = SimpleNamespace(propose=one.followed.append)
    monkeypatch.setattr(api, "current_worker", lambda: one)
    return one


def test_a_policy_is_a_file_or_its_text(worker: Any, tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(SHORT)
    api.policy(file)
    api.policy(str(file))
    api.policy(SHORT)
    assert worker.followed == [
        JobPolicy(SHORT, str(file), 1800.0),
        JobPolicy(SHORT, str(file), 1800.0),
        JobPolicy(SHORT, "edl.policy", 1800.0),
    ]


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("missing.toml", "cannot read the policy missing.toml: No such file or directory"),
        (3, "edl.policy needs the file of a policy or its text, and was given 3"),
        ('[size]\nrule = "thruput"\n', "edl.policy, line 2: there is no rule 'thruput'"),
        ('[size]\nrule = "nowhere:at_all"\n', "edl.policy: cannot find the rule nowhere:at_all"),
        ('[size]\nrule = "json:at_all"\n', "edl.policy: cannot find the rule json:at_all"),
        ('[size]\nrule = "json:__name__"\n', "edl.policy: the rule json:__name__ is no function"),
    ],
)
def test_a_policy_that_cannot_be_is_refused(worker: Any, policy: Any, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        api.policy(policy)
    assert said in str(refused.value)
    assert not worker.followed


def test_a_policy_for_a_job_of_one_size_is_refused(worker: Any) -> None:
    worker.sizes = Sizes(2, 2)
    with pytest.raises(UsageError, match="is to find the job's size, and the job may have"):
        api.policy(SHORT)
    worker.is_shared = False
    api.policy(SHORT)


def test_wishes_are_a_policy(worker: Any) -> None:
    api.on_interval(lambda: 1, 90, "mean")
    [policy] = worker.followed
    assert policy.source == "edl.on_interval"
    assert parse_policy(policy.text, policy.source).size == Votes("mean", 90.0)
    with pytest.raises(UsageError, match=r"edl\.on_interval was called already"):
        api.on_interval(lambda: 1)


BATCHES = "[batch]\nbatch_size = 4\n"


@pytest.mark.parametrize(("size", "proposals"), [(VOTES, 1), (SHORT, 2), ("", 2)])
def test_the_function_does_not_replace_the_policy_of_the_script(
    worker: Any, size: str, proposals: int
) -> None:
    """A file with the rule ``votes`` needs no second policy; with others the log names both."""
    worker.loader = SimpleNamespace(progress=SimpleNamespace(attached=False))
    worker.replica = None
    api.policy(BATCHES + size)
    api.on_interval(lambda: 1)
    assert len(worker.followed) == proposals
    assert worker.size_request.policy.batch == Batching(4)


@pytest.mark.parametrize("earlier", [lambda: api.on_interval(int), lambda: api.policy(SHORT)])
def test_batches_of_a_later_policy_are_refused(worker: Any, earlier: Callable[[], None]) -> None:
    worker.loader = SimpleNamespace(progress=SimpleNamespace(attached=False))
    worker.replica = None
    earlier()
    with pytest.raises(UsageError, match=r"call edl\.policy before edl\.on_interval, and once"):
        api.policy(BATCHES)
    api.policy('[size]\nrule = "throughput"\nthreshold = 0.2\n')
    assert worker.size_request.policy.of_script == (None, None)
    assert worker.size_request.policy.size in (Votes(), Throughput())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((1,), "edl.on_interval needs a function that returns how many workers more"),
        ((int, 0), "every_s is 0; it must be a number of seconds above 0"),
        ((int, float("inf")), "every_s is inf; it must be a number of seconds above 0"),
        ((int, "1m"), "every_s is '1m'; it must be a number of seconds above 0"),
        ((int, 60.0, "any"), "together is 'any'; it must be sum or mean or max"),
    ],
)
def test_what_cannot_be_asked_is_refused(worker: Any, arguments: Any, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        api.on_interval(*arguments)
    assert said in str(refused.value)


@pytest.mark.parametrize("late", ["loader", "optimizer"])
def test_batches_and_rates_are_said_before_the_loader_and_the_optimizer(
    worker: Any, late: str
) -> None:
    worker.loader = SimpleNamespace(progress=SimpleNamespace(attached=late == "loader"))
    worker.replica = object() if late == "optimizer" else None
    with pytest.raises(UsageError, match=r"or its optimizer already: call edl\.policy before both"):
        api.policy("[batch]\nbatch_size = 4\n")
    api.policy(SHORT)
    assert worker.size_request.policy.of_script == (None, None)


def test_a_script_follows_the_policy_that_it_proposes(worker: Any) -> None:
    worker.loader = SimpleNamespace(progress=SimpleNamespace(attached=False))
    worker.replica = None
    api.policy("[batch]\nbatch_size = 4\n")
    assert worker.size_request.policy.batch == Batching(4)
