"""Which device of its host a worker gets, and what it sees of the host.

What an agent decides then stands in `scenarios/agent`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from edl.host.devices import (
    busy_devices,
    cuda_variable,
    entries,
    visible_devices,
    why_wait,
    with_devices,
)
from edl.host.process import Process
from edl.host.supervision import Start
from edl.records import Assigned, Member

NOW = 1000.0


def process(slot: int, device: int | None, **changes: object) -> Process:
    values = Process(slot, f"t-{slot}-{device}", NOW - 10, device=device, worker=slot, seated=True)
    return replace(values, **changes)  # type: ignore[arg-type]


def ended(slot: int, device: int | None) -> Process:
    return process(slot, device, exit_code=0, exited=NOW - 9)


def given(
    slots: Sequence[int],
    allowed: Sequence[int],
    *processes: Process,
    cuda: Sequence[str] | None = None,
    members: Sequence[Member] = (),
) -> list[tuple[int, int | None, str]]:
    starts = [Start(slot, 0, "so") for slot in slots]
    found = with_devices(starts, allowed, cuda, processes, members)
    assert all(one.variables["EDL_DEVICE"] == str(one.device) for one in found)
    return [(s.slot, s.device, s.variables.get("CUDA_VISIBLE_DEVICES", "-")) for s in found]


@pytest.mark.parametrize(
    ("slot", "device", "by_slot", "allowed", "visible"),
    [
        (0, 3, {}, (3,), (3,)),
        (1, 3, {0: 2}, (2, 3), (2, 3)),
        (2, 0, {0: 2, 1: 1}, (0, 1, 2), (2, 1, 0)),
        (1, 1, {}, (0, 1), (0, 1)),  # slot 0 is disabled: another device of the job
        (1, 0, {}, (0, 1), (1, 0)),
        (2, 5, {1: 4}, (4, 5, 6), (6, 4, 5)),
        (2, 5, {0: 4, 1: 4}, (4, 5, 6), (4, 6, 5)),  # two share one: no device twice
        (1, 5, {0: 5}, (4, 5), (4, 5)),
        (1, 5, {0: 9}, (5,), (9, 5)),  # the worker in slot 0 is about to leave device 9
        (1, 5, {}, (5,), None),  # nothing can take the place of slot 0
        (3, 2, {0: 0}, (0, 1, 2), None),
        (0, 1, {1: 0}, (0, 1), (1,)),  # higher slots do not matter
    ],
)
def test_the_own_device_has_the_index_of_the_slot(
    slot: int,
    device: int,
    by_slot: dict[int, int],
    allowed: tuple[int, ...],
    visible: tuple[int, ...] | None,
) -> None:
    found = visible_devices(slot, device, by_slot, allowed)
    assert found == visible
    if found is not None:
        assert found[slot] == device
        assert len(set(found)) == len(found) == slot + 1


@pytest.mark.parametrize(
    ("variable", "found"),
    [
        (None, None),
        ("4,5,6,7", ("4", "5", "6", "7")),
        (" GPU-8932f937 , GPU-46ab ", ("GPU-8932f937", "GPU-46ab")),
        ("0,-1,1", ("0",)),  # as CUDA reads it
        ("0,,1", ("0",)),
        ("", ()),
        ("-1", ()),
    ],
)
def test_entries_of_the_agents_own_variable(
    variable: str | None, found: tuple[str, ...] | None
) -> None:
    assert entries(variable) == found


def test_a_device_is_an_entry_of_the_agents_variable_or_the_number_itself() -> None:
    assert cuda_variable((1, 0), None) == {"CUDA_VISIBLE_DEVICES": "1,0"}
    assert cuda_variable((1, 0), ("4", "GPU-46ab")) == {"CUDA_VISIBLE_DEVICES": "GPU-46ab,4"}
    assert cuda_variable((1, 0), ()) == {}  # all GPUs are hidden, and stay so


def test_each_worker_gets_the_lowest_free_device() -> None:
    assert given([0, 1], (1, 3, 4)) == [(0, 1, "1"), (1, 3, "1,3")]
    assert given([1], (1, 3, 4), process(0, 3)) == [(1, 1, "3,1")]
    assert given([0], (0, 1), cuda=("6", "7")) == [(0, 0, "6")]
    assert given([1], (0, 1), process(0, 0), cuda=("6", "7")) == [(1, 1, "6,7")]
    assert given([0], (2,), cuda=()) == [(0, 2, "-")]
    # The worker in slot 0 has a device that this agent cannot name.
    assert given([1], (0, 1), process(0, 9), cuda=("6", "7")) == [(1, 0, "7,6")]


def test_a_slot_gets_the_device_again_that_it_had() -> None:
    assert given([0], (1, 3), ended(0, 3)) == [(0, 3, "3")]
    assert given([0], (1, 3), ended(0, 5)) == [(0, 1, "1")]  # unless the job may not use it
    assert given([0], (1, 3), ended(0, 3), process(1, 3)) == [(0, 1, "1")]  # or another one does
    assert given([1], (0, 1), ended(1, None)) == [(1, 1, "0,1")]  # it was given none


def test_nobody_starts_without_a_free_device() -> None:
    assert given([1, 2], (0, 1), process(0, 1)) == [(1, 0, "1,0")]
    assert given([0], ()) == []
    assert given([0], (0, 1), cuda=("6",)) == [(0, 0, "6")]
    assert given([0], (1,), cuda=("6",)) == []
    elsewhere = Member(7, "a", 1, "::1", 1, 1, "other-1", device=0)
    assert given([0], (0,), members=[elsewhere]) == []  # an agent that died has started it
    assert given([0], (1,), members=[replace(elsewhere, device=None)]) == []
    assert why_wait(1, (3,), None) == (
        "1 worker cannot start before a device is free: the job has 1 device here (3)"
    )
    assert why_wait(2, (), None) == (
        "2 workers cannot start before a device is free: the job has 0 devices here"
    )
    assert why_wait(2, (5, 0), ("4", "5")).endswith(
        "2 devices here (0, 5), and CUDA_VISIBLE_DEVICES of the agent has no entry 5"
    )


def test_a_replacement_in_the_slot_of_a_worker_that_leaves_shares_its_device() -> None:
    assert given([1], (0, 1), process(0, 0), process(1, 1, departing=NOW)) == [(1, 1, "0,1")]
    # But not a device that the job may not use any more.
    assert given([1], (0, 2), process(0, 0), process(1, 1)) == [(1, 2, "0,2")]
    # Two processes in slot 0: the one that stays started last.
    leaving = process(0, 1, departing=NOW, started=NOW - 50)
    assert given([1], (0, 2, 3), leaving, process(0, 0)) == [(1, 2, "0,2")]


def test_which_devices_are_busy() -> None:
    free, limited = Assigned(), Assigned(devices={"a": (0,)})
    processes = [process(1, 3), process(2, None)]
    member = Member(7, "a", 4, "::1", 1, 1, "other-1", device=0)
    assert busy_devices(free, "a", processes, [member]) == (0, 3)
    assert busy_devices(limited, "a", processes, [member]) == (0, 2, 3)
    assert busy_devices(free, "a", processes[1:], [replace(member, device=None)]) == ()
