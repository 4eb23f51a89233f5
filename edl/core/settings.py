"""How a setting is declared: once, as a field of a frozen dataclass.

From the declaration follow its name in the environment (``EDL_`` + the field in capitals) and in
``edl.toml`` (the field), its option of `edl run`, if it has one, and its row in
docs/reference/settings.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, field, fields
from typing import Any

from edl.errors import ConfigError


def setting(
    default: Any,
    help: str,
    *,
    option: str = "",
    metavar: str = "",
    least: float | None = None,
    most: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    """A field that is a setting.

    Args:
        help: what it decides; for the option and for the docs.
        option: of `edl run`, like "--stall-limit"; empty: it has none.
        least, most: no number below, or above, is accepted.
        choices: no other text is accepted; empty: any is.
    """
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
    """The environment variable of a setting."""
    return f"EDL_{name.upper()}"


def check(values: Any) -> None:
    """Refuse numbers that are out of range (a time must be positive), and unknown choices.

    Raises:
        ConfigError: there is one.
    """
    for one in fields(values):
        value, least = getattr(values, one.name), one.metadata.get("least")
        if one.name.endswith("_s") and value is not None and not value > 0:
            raise ConfigError(
                one.name, f"{one.name} is {value:g}; it must be a positive time in seconds"
            )
        if least is not None and value is not None and value < least:
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
    """The setting in the table of docs/reference/settings.md: name, variable, default, meaning."""
    about: Mapping[str, Any] = one.metadata
    option = f" (`edl run {about['option']}`)" if about["option"] else ""
    assert one.default is not MISSING
    name, default = f"`{one.name}`", _shown(one.default)
    return name, f"`{variable(one.name)}`", default, f"{about['help']}{option}"


def _shown(default: object) -> str:
    if default is None:
        return "none"
    if default in ("", ()):
        return "empty"
    if isinstance(default, bool):
        return f"`{int(default)}`"
    return f"`{default:g}`" if isinstance(default, float) else f"`{default}`"
