"""How a record reads and writes itself: a frozen dataclass, JSON on the wire."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from types import NoneType, UnionType
from typing import Any, Self, get_args, get_origin, get_type_hints

from edl.errors import CoordinationError


@dataclass(frozen=True)
class Record:
    """Mixin: a frozen dataclass that reads and writes itself as JSON values."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read a record; unknown fields are ignored (written by a newer edl).

        Raises:
            CoordinationError: a field is missing or has the wrong shape.
        """
        hints = get_type_hints(cls)
        known: dict[str, Any] = {}
        try:
            for f in fields(cls):
                if f.name in values:
                    known[f.name] = _read(hints[f.name], values[f.name])
            return cls(**known)
        except (TypeError, ValueError, KeyError) as error:
            raise CoordinationError(f"this is not a {cls.__name__}: {error}") from error


def _read(hint: Any, value: Any) -> Any:
    """Give a JSON value the type that its field declares."""
    if get_origin(hint) is UnionType:
        (hint,) = (one for one in get_args(hint) if one is not NoneType)
        return None if value is None else _read(hint, value)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return hint(value)
    if isinstance(hint, type) and issubclass(hint, Record):
        return hint.from_json(value)
    if get_origin(hint) is tuple:
        if not isinstance(value, list | tuple):
            raise TypeError(f"{value!r} is not a list")
        (item, _ellipsis) = get_args(hint)
        return tuple(_read(item, each) for each in value)
    if get_origin(hint) is Mapping:
        if not isinstance(value, Mapping):
            raise TypeError(f"{value!r} is not a mapping")
        return value
    allowed = {int: (int,), float: (int, float), str: (str,), bool: (bool,)}.get(hint)
    if allowed and (
        not isinstance(value, allowed) or isinstance(value, bool) is not (hint is bool)
    ):
        raise TypeError(f"{value!r} is not {hint.__name__}")
    return value
