"""Policies that a user has written: how they are found, and what is refused in one sentence."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clusters import job, nodes

from edl.cli.main import invoke
from edl.cluster.policies.registry import MAX_REASON_CHARS, OwnPolicy
from edl.cluster.state import Allocation, ClusterState
from edl.cluster_policies import load_policy
from edl.errors import UsageError

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "writing-a-policy.md"
MODULE = """
import sys
from dataclasses import dataclass
from edl.cluster.state import Allocation

def function(cluster):
    return Allocation({}, {})

class Plain:
    def __call__(self, cluster):
        return Allocation({}, {job.name: "waits" for job in cluster.jobs}, {"seen": (1, 2)})

class NoCall:
    pass

@dataclass(frozen=True)
class Patient:
    patience_s: float = 1.0
    def __call__(self, cluster):
        return Allocation({}, {job.name: "waits " * 100 for job in cluster.jobs})

class Needs:
    def __init__(self, what):
        pass
    def __call__(self, cluster):
        pass

class Raises:
    def __call__(self, cluster):
        return cluster.jobs[0].slots / 0

class Answers:
    def __call__(self, cluster):
        return ANSWER
"""
STATE = ClusterState([job("a")], nodes(2), {}, 0.0, {})


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def mine(here: Path) -> Path:
    (here / "mine.py").write_text(MODULE)
    return here


@pytest.mark.usefixtures("mine")
class TestFinding:
    def test_a_class_of_the_working_directory(self) -> None:
        found = load_policy("mine:Plain")
        assert isinstance(found, OwnPolicy)
        assert found(STATE) == Allocation({}, {"a": "waits"}, {"seen": [1, 2]})

    def test_its_fields_are_parameters(self) -> None:
        found: Any = load_policy("mine:Patient", {"patience_s": 3})
        assert found.rule.patience_s == 3
        assert len(found(STATE).reasons["a"]) == MAX_REASON_CHARS

    @pytest.mark.parametrize(
        ("name", "parameters", "sentence"),
        [
            ("mine:function", {}, "mine:function is a function, and no policy; write a class with"),
            ("mine:NoCall", {}, "mine:NoCall is <class 'mine.NoCall'>, and no policy"),
            ("mine:sys", {}, "mine:sys is a module, and no policy"),
            ("mine:Absent", {}, "there is no Absent in "),
            ("mine:Needs", {}, "no object of the policy mine:Needs can be made: TypeError: "),
            ("mine:Plain", {"x": 1}, "the policy mine:Plain has no parameter 'x'; it has no para"),
            ("mine:Patient", {"x": 1}, "no parameter 'x'; its parameters are patience_s"),
            ("mine:Patient", {"patience_s": "long"}, "is 'long'; it must be like 1.0"),
            ("subprocess:Popen", {}, "subprocess:Popen is <class 'subprocess.Popen'>, and no poli"),
            (
                "none:Such",
                {},
                "cannot be imported here: ModuleNotFoundError: No module named 'none",
            ),
            ("maxmin", {}, "there is no policy 'maxmin'; use one of fifo, "),
        ],
    )
    def test_what_is_refused(self, name: str, parameters: Any, sentence: str) -> None:
        with pytest.raises(UsageError, match=re.escape(sentence)):
            load_policy(name, parameters)

    @pytest.mark.parametrize(
        ("text", "sentence"),
        [
            ("def f(:\n", "SyntaxError: invalid syntax (wrong.py, line 1)"),
            ("raise SystemExit(3)\n", "SystemExit: 3"),
            ("1 / 0\n", "ZeroDivisionError: division by zero"),
        ],
    )
    def test_a_module_that_fails(self, mine: Path, text: str, sentence: str) -> None:
        (mine / "wrong.py").write_text(text)
        with pytest.raises(UsageError, match=re.escape(f"cannot be imported here: {sentence}")):
            load_policy("wrong:Policy")


@pytest.mark.usefixtures("mine")
class TestAnswers:
    def test_an_error_names_the_line(self) -> None:
        sentence = "the policy mine:Raises has failed: AttributeError: .*mine.py, line 30"
        with pytest.raises(UsageError, match=sentence):
            load_policy("mine:Raises")(STATE)

    @pytest.mark.parametrize(
        ("answer", "sentence"),
        [
            (None, "has answered NoneType; it must return an edl.cluster.state.Allocation"),
            (Allocation({"a": {"n0": 1}}, {"a": "has"}), "is no Allocation: Expected `array`"),  # type: ignore[dict-item]
            (Allocation({"a": (("n0", "1"),)}, {}), "is no Allocation: Expected `int`"),  # type: ignore[dict-item]
            (Allocation({}, {"a": "waits"}, {"x": object()}), "is no Allocation: Encoding objects"),
            (Allocation({}, {"a": "waits"}, {"x": "y" * 200_000}), "wants to keep a state of 200"),
            (Allocation({}, {}), "breaks a rule: a is given no reason"),
            (Allocation({"b": (("n0", 1),)}, {"a": "waits"}), "breaks a rule: b has slots and is"),
            (Allocation({"a": (("n0", 3),)}, {"a": "has"}), "rule: 3 slots of node n0 are given"),
        ],
    )
    def test_nonsense_is_a_sentence(self, answer: object, sentence: str) -> None:
        found: Any = load_policy("mine:Answers")
        sys.modules["mine"].ANSWER = answer  # type: ignore[attr-defined]
        with pytest.raises(UsageError, match=re.escape(sentence)):
            found(STATE)

    def test_a_state_that_holds_itself(self) -> None:
        found: Any = load_policy("mine:Answers")
        state: dict[str, Any] = {}
        state["me"] = state
        sys.modules["mine"].ANSWER = Allocation({}, {}, state)  # type: ignore[attr-defined]
        with pytest.raises(UsageError, match="is no Allocation"):
            found(STATE)

    def test_the_simulator_says_it_in_one_sentence(self, tmp_path: Path, capsys: Any) -> None:
        jobs = tmp_path / "jobs.csv"
        jobs.write_text("name,time_s,slots,duration_s\na,0,4,100\n")
        assert invoke(["simulate", "--trace", str(jobs), "--policy", "mine:Raises"]) == 2
        assert re.fullmatch(
            r"edl: the policy mine:Raises has failed: .*\(mine.py, line 30\)\n",
            capsys.readouterr().err,
        )


class TestThePage:
    @pytest.fixture
    def example(self, here: Path) -> Path:
        block, test = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)
        assert len(block.splitlines()) <= 40
        (here / "my_policy.py").write_text(block)
        (jobs,) = re.findall(r"^```csv\n(.*?)^```", PAGE.read_text(), re.M | re.S)
        (here / "jobs.csv").write_text(jobs)
        (here / "test.py").write_text(test)
        return here

    def test_the_example_is_simulated(self, example: Path, capsys: Any) -> None:
        lines = re.findall(r"^edl simulate (.*)$", PAGE.read_text(), re.M)
        first, second = (line.partition(">")[0].split() for line in lines)
        assert invoke(["simulate", *first]) == 0
        assert "my_policy:Fewest" in capsys.readouterr().out
        assert invoke(["simulate", *second]) == 0
        (run,) = map(json.loads, capsys.readouterr().out.splitlines())
        assert run["policy"] == "my_policy:Fewest"
        reasons = {one["reason"] for job in run["jobs"] for one in job["history"]}
        assert any(re.match(r"has \d+ slots, of at least ", one) for one in reasons)

    def test_the_test_in_the_page_passes(self, example: Path) -> None:
        sys.path.insert(0, str(example))
        exec((example / "test.py").read_text(), {})

    def test_its_parameter(self, example: Path) -> None:
        jobs = [job("a"), job("b")]
        state = ClusterState(jobs, nodes(4), {}, 0.0, {})
        placed = load_policy("my_policy:Fewest", {"spare": 1})(state).placements
        assert placed == {"a": (("n0", 1),), "b": (("n0", 2),)}
