"""What Gloo is told of the address that the ring is to be at, with Horovod's patch and without."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest

from edl.ring.gloo import _interface_for


def entry(address: str) -> SimpleNamespace:
    return SimpleNamespace(family=socket.AF_INET, address=address)


@pytest.fixture(autouse=True)
def two_interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {
        "lo": [entry("127.0.0.1")],
        "eth0": [
            SimpleNamespace(family=socket.AF_INET6, address="10.0.0.6"),
            entry("10.0.0.5"),
            entry("10.0.0.7"),
        ],
    }
    monkeypatch.setattr("psutil.net_if_addrs", lambda: there)


@pytest.mark.parametrize(
    ("edits", "second"), [(frozenset(), "eth0"), ({"ring-at-the-address"}, "10.0.0.7")]
)
def test_the_ring_is_on_the_interface_that_has_the_address(
    monkeypatch: pytest.MonkeyPatch, edits: frozenset[str], second: str
) -> None:
    monkeypatch.setattr("edl.horovod_build.applied", lambda: edits)
    assert _interface_for("127.0.0.1") == "lo"
    assert _interface_for("10.0.0.5") == "eth0"
    assert _interface_for("10.0.0.7") == second
