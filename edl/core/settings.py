"""Declare each setting of edl once, as a field of a frozen dataclass, and check its value.

:func:`setting` declares a field, and :func:`check_settings` checks an object. The declaration gives
the setting's name in the environment (``EDL_`` and the field in capitals) and in ``edl.toml`` (the
field), its option of `edl run`, if there is one, and its row in docs/reference/settings.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, field, fields
from typing import Any

from edl.errors import ConfigError

MOST_WAIT_S = 86_400.0  # for ZooKeeper, whose client counts the milliseconds in 32 bits


def setting(
    default: Any,
    help: str,
    *,
    option: str = "",  # of `edl run`
    metavar: str = "",
    least: float | None = None,
    most: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    """Return a dataclass field that declares a setting; use it as the default of a field."""
    about = {
        "help": help,
        "option": option,
        "metavar": metavar,
        "least": least,
        "most": most,
        "choices": choices,
    }
    return field(default=default, metadata=about)


def variable(name: str) -> str:
    """Return the environment variable's name for the setting `name`, such as "EDL_STALL_S"."""
    return f"EDL_{name.upper()}"


def check_settings(values: Any) -> None:
    """Raise an error if a setting has a value that is out of range or an unknown choice."""
    for one in fields(values):
        value, least = getattr(values, one.name), one.metadata.get("least")
        if value == one.default:
            continue  # thousands of jobs' settings are read at a time
        # A time must be positive, if no `least` is declared.
        if one.name.endswith("_s") and least is None and value is not None and not value > 0:
            raise ConfigError(
                one.name, f"{one.name} is {value:g}; it must be a positive time in seconds"
            )
        if least is not None and value is not None and not value >= least:
            raise ConfigError(one.name, f"{one.name} is {value:g}; it must be at least {least:g}")
        most = one.metadata.get("most")
        if most is not None and value is not None and value > most:
            raise ConfigError(one.name, f"{one.name} is {value:g}; it must be at most {most:g}")
        choices = one.metadata.get("choices")
        if choices and value not in choices:
            raise ConfigError(
                one.name, f"{one.name} is {value!r}; it must be {' or '.join(choices)}"
            )


def row(one: Field[Any]) -> tuple[str, str, str, str]:
    """Return the row of a setting in the table of docs/reference/settings.md."""
    about: Mapping[str, Any] = one.metadata
    option = f" (`edl run {about['option']}`)" if about["option"] else ""
    assert one.default is not MISSING
    name, default = f"`{one.name}`", _shown(one.default)
    return name, f"`{variable(one.name)}`", default, f"{about['help']}{option}"


def _shown(default: object) -> str:
    """Return a setting's `default` value as Markdown for the table of settings."""
    if default is None:
        return "none"
    if default in ("", ()):
        return "empty"
    if isinstance(default, bool):
        return f"`{int(default)}`"
    return f"`{default:g}`" if isinstance(default, float) else f"`{default}`"
