"""The words of `edl policy`: an action, its file, and the job, which may also stand first."""

from __future__ import annotations

from pathlib import Path

import pytest

from edl.cli.policy import _read
from edl.errors import UsageError

FILE = Path("p.toml")


@pytest.mark.parametrize(
    ("words", "read"),
    [
        ("", (None, "show", None)),
        ("explain", (None, "explain", None)),
        ("explain digits", ("digits", "explain", None)),
        ("digits explain", ("digits", "explain", None)),
        ("set p.toml", (None, "set", FILE)),
        ("set p.toml digits", ("digits", "set", FILE)),
        ("digits set p.toml", ("digits", "set", FILE)),
        ("digits", ("digits", "show", None)),
        ("show explain", ("show", "explain", None)),
    ],
)
def test_what_is_meant(words: str, read: tuple[str | None, str, Path | None]) -> None:
    assert _read(words.split()) == read


@pytest.mark.parametrize("words", ["set", "explain a b", "digits plot", "digits explain b"])
def test_what_is_not_understood(words: str) -> None:
    with pytest.raises(UsageError, match=f"'{words}' is not understood; write edl policy show"):
        _read(words.split())
