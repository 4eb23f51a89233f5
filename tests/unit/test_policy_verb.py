"""The words of `edl policy`: an action, its file, and the job, which may also stand first."""

from __future__ import annotations

from pathlib import Path

import pytest

from edl.cli.main import invoke
from edl.cli.sizing import _read
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


@pytest.mark.parametrize("words", ["set p.toml", "off", "resume", "plot p.png"])
def test_only_what_shows_something_has_json(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["policy", *words.split(), "--json"]) == 2
    assert capsys.readouterr().err == "edl: --json is for show and explain; leave it out\n"
