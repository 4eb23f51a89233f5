"""A worker leaves at SIGTERM, SIGUSR1 and SIGUSR2; a script's own handler is called."""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from edl.binding.process import NOTICES, leave_on_notices


class Caller:
    """A worker that notes that it is asked to leave, before it calls the script's handler."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def request_leave(self, own: Callable[[], object] | None) -> None:
        self.heard.append("leaves")
        if own is not None:
            own()


@pytest.fixture
def worker() -> Iterator[Any]:
    before = {number: signal.getsignal(number) for number in NOTICES}
    for number in NOTICES:
        signal.signal(number, signal.SIG_DFL)
    yield Caller()
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", NOTICES)
def test_a_notice_lets_it_leave(worker: Any, number: signal.Signals) -> None:
    leave_on_notices(worker)
    leave_on_notices(worker)
    signal.raise_signal(number)
    assert worker.heard == ["leaves"]


@pytest.mark.parametrize("early", [True, False])
def test_the_handler_of_the_script_is_called_whenever_it_was_set(
    worker: Any, early: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    def own(number: int, _frame: object) -> None:
        worker.heard.append(signal.Signals(number).name)

    if not early:
        leave_on_notices(worker)
    signal.signal(signal.SIGTERM, own)
    leave_on_notices(worker)
    leave_on_notices(worker)
    signal.raise_signal(signal.SIGTERM)
    assert worker.heard == ["leaves", "SIGTERM"]
    assert "SIGTERM: the script's handler is called; this worker then" in capfd.readouterr().err


def test_who_uses_sigusr1_for_something_keeps_it(worker: Any, tmp_path: Any) -> None:
    signal.signal(signal.SIGUSR1, lambda number, frame: worker.heard.append("its own"))
    with (tmp_path / "stacks").open("w") as file:
        faulthandler.register(signal.SIGUSR2, file=file)  # Python knows nothing of this handler
        leave_on_notices(worker)
        signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGUSR2)
        faulthandler.unregister(signal.SIGUSR2)
    assert worker.heard == ["its own"]
    assert "most recent call first" in (tmp_path / "stacks").read_text()


def test_a_notice_to_all_processes_kills_no_fork(worker: Any) -> None:
    leave_on_notices(worker)
    if (child := os.fork()) == 0:
        os.kill(os.getpid(), signal.SIGUSR1)
        os._exit(len(worker.heard))
    assert os.waitpid(child, 0)[1] == 0


def test_a_newcomer_in_its_warm_up_does_not_call_it() -> None:
    """It might save a model that has not trained over the one of the job."""
    from edl.worker.worker import Worker

    calls: list[str] = []
    for shared, calls_it in ((True, False), (False, True)):
        calls.clear()
        warming: Any = SimpleNamespace(
            is_shared=shared,
            warming_up=True,
            finished=False,
            finishing=SimpleNamespace(),
            checkpointing=SimpleNamespace(saves=False),
            _switching=SimpleNamespace(generation=None),
            _coordinator=SimpleNamespace(leave_requested=False),
        )
        try:
            Worker.request_leave(warming, lambda: calls.append("own"))
        except SystemExit:
            assert shared
        assert bool(calls) is calls_it
