"""How a record reads and writes itself: a frozen dataclass, JSON on the wire."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import msgspec

from edl.errors import CoordinationError


@dataclass(frozen=True)
class Record:
    """Mixin: a frozen dataclass that reads and writes itself as JSON values.

    Attributes:
        RENAMED: earlier name of a field, in records that an older edl wrote -> its name now; also
            of a field of a record within this one.
    """

    RENAMED: ClassVar[Mapping[str, str]] = {}

    def to_json(self) -> dict[str, Any]:
        values: dict[str, Any] = msgspec.to_builtins(self)
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read a record; unknown fields are ignored (written by a newer edl).

        Types are strict, but an integer is a float, too. A record in a field is read by its type:
        a ``from_json`` of its own is not called.

        Raises:
            CoordinationError: a field is missing or has the wrong shape.
        """
        if cls.RENAMED:
            values = _renamed(values, cls.RENAMED)
        try:
            return msgspec.convert(values, cls)
        except msgspec.ValidationError as error:
            raise CoordinationError(f"this is not a {cls.__name__}: {error}") from error


def _renamed(values: Any, names: Mapping[str, str]) -> Any:
    """Return JSON values with other names, earlier name -> name now, at any depth."""
    if isinstance(values, Mapping):
        return {names.get(name, name): _renamed(value, names) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return [_renamed(value, names) for value in values]
    return values
