"""A user's cluster policy in a process of its own: whatever it does, the leader goes on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from clusters import job, nodes

from edl.cluster.controller.policy_runner import PolicyProcess
from edl.cluster.state import ClusterState
from edl.errors import UsageError

pytestmark = [pytest.mark.integration, pytest.mark.long]  # tests/README.md, Time

STATE = ClusterState([job("a", model=None)], nodes(2), {}, 0.0, {})
MODULE = """
import os, signal, time
from edl.cluster.state import Allocation

class Mine:
    def __call__(self, cluster):
        print("a policy may print", flush=True)
        {body}
        return Allocation({{"a": (("n0", 2),)}}, {{"a": "has 2 slots"}})
"""


@pytest.fixture
def others() -> set[psutil.Process]:
    return set(psutil.Process().children())


@pytest.fixture
def policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: set[psutil.Process]
) -> Iterator[PolicyProcess]:
    monkeypatch.chdir(tmp_path)
    one = PolicyProcess("mine:Mine", {}, limit_s=8.0)
    yield one
    one.close()
    assert set(psutil.Process().children()) <= others


def write(body: str = "pass") -> None:
    Path("mine.py").write_text(MODULE.format(body=body))


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("1 / 0", r"has failed: ZeroDivisionError: division by zero \(mine.py, line 8\)"),
        ("os._exit(3)", "the process of the policy mine:Mine has ended with code 3"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "has ended with code -9"),
        ("raise SystemExit(4)", "has ended with code 4"),
        ("return None", "has answered NoneType; it must return"),
        ("return Allocation({}, {})", "breaks a rule: a is given no reason"),
    ],
)
def test_it_fails_and_is_mended(policy: PolicyProcess, body: str, sentence: str) -> None:
    write(body)
    for _ in range(2):
        with pytest.raises(UsageError, match=sentence):
            policy(STATE)
    write()
    for _ in range(2):
        assert policy(STATE).placements == {"a": (("n0", 2),)}


def test_it_takes_for_ever(policy: PolicyProcess, others: set[psutil.Process]) -> None:
    write("while True: pass")
    for limit_s in (0.1, 2.0):  # while it is imported, and while it decides
        policy._limit_s = limit_s
        began_s = time.monotonic()
        sentence = f"the policy mine:Mine has not answered within {limit_s:g} s, about 1 job"
        with pytest.raises(UsageError, match=sentence):
            policy(STATE)
        assert time.monotonic() - began_s < limit_s + 5.0
        assert set(psutil.Process().children()) <= others


def test_a_question_that_it_does_not_read(policy: PolicyProcess) -> None:
    """It is larger than what a socket holds."""
    write("os.kill(os.getpid(), signal.SIGSTOP)")
    many = ClusterState([job(f"j{n}", model=None) for n in range(20_000)], nodes(2), {}, 0.0, {})
    policy._limit_s = 3.0
    for _ in range(2):
        with pytest.raises(UsageError, match="has not answered within 3 s, about 20000 jobs"):
            policy(many)


def test_it_cannot_be_imported(policy: PolicyProcess) -> None:
    with pytest.raises(UsageError, match="No module named 'mine'"):
        policy(STATE)
