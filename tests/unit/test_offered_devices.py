"""The devices that `edl host` offers."""

from __future__ import annotations

import pytest

from edl.errors import UsageError
from edl.host.devices import offered_devices


@pytest.mark.parametrize(
    ("slots", "devices", "cuda", "expected"),
    [
        (2, None, None, (0, 1)),
        (2, None, (), (0, 1)),  # CUDA_VISIBLE_DEVICES hides all
        (None, "2, 5", None, (2, 5)),
        (2, "5,2", None, (2, 5)),
        (None, None, ("GPU-a", "GPU-b", "GPU-c"), (0, 1, 2)),
        (2, None, ("GPU-a", "GPU-b", "GPU-c"), (0, 1)),
        (1, "2", ("6", "7", "4"), (2,)),
    ],
)
def test_each_slot_has_a_device(
    slots: int | None, devices: str | None, cuda: tuple[str, ...] | None, expected: tuple[int, ...]
) -> None:
    assert offered_devices(slots, devices, cuda) == expected


@pytest.mark.parametrize(
    ("slots", "devices", "cuda", "message"),
    [
        (None, None, None, "give --slots"),
        (0, None, None, "--slots is 0; a host needs at least 1"),
        (None, "0,a", None, "--devices is '0,a'; give numbers"),
        (None, "", None, "give numbers"),
        (None, "0,0", None, "names a device twice"),
        (3, "0,1", None, "--slots is 3 and --devices names 2 devices; each slot needs one"),
        (1, "0,1", None, "--slots is 1 and --devices names 2 devices"),
        (3, None, ("0", "1"), "--slots is 3 and CUDA_VISIBLE_DEVICES names 2 devices"),
        (None, "0,2", ("4", "5"), "--devices has 2, and CUDA_VISIBLE_DEVICES has 2 entries"),
    ],
)
def test_what_cannot_be(
    slots: int | None, devices: str | None, cuda: tuple[str, ...] | None, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        offered_devices(slots, devices, cuda)
