"""Define :class:`Record`, the base of frozen dataclasses that are written as JSON."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

import msgspec

from edl.errors import CoordinationError


@dataclass(frozen=True)
class Record:
    """A base class for frozen dataclasses that are written as JSON values and read from them.

    Attributes:
        RENAMED: the old name of a field, as an older edl wrote it -> its present name;
            :meth:`from_json` accepts the old names, also in records within this record.
    """

    RENAMED: ClassVar[Mapping[str, str]] = {}

    def to_json(self) -> dict[str, Any]:
        """Return this record as a dict of JSON values; inner records become dicts, too."""
        values: dict[str, Any] = msgspec.to_builtins(self)
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Return the record that JSON ``values`` describe.

        Unknown fields, which a newer edl has written, are ignored; a missing field gets its
        default. Types are checked strictly, except that an integer is accepted for a float. A field
        that is itself a record is read by the same rules; a ``from_json`` that its class overrides
        is not called.

        Raises:
            CoordinationError: a field without a default is missing, or a field has the wrong type.
        """
        if cls.RENAMED:
            values = _renamed(values, cls.RENAMED)
        try:
            return msgspec.convert(values, cls)
        except msgspec.ValidationError as error:
            raise CoordinationError(f"this is not a {cls.__name__}: {error}") from error


def _renamed(values: Any, names: Mapping[str, str]) -> Any:
    if isinstance(values, Mapping):
        return {names.get(name, name): _renamed(value, names) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return [_renamed(value, names) for value in values]
    return values


# ------------------------------------------------------------
# Keep the kind of a dict (Counter, OrderedDict, defaultdict) where a state is copied or saved.
#
# A kind is a text, such as "Counter". A dict of any other class, and a defaultdict with a function
# of the script's own, has the kind "dict": it comes back as a plain dict.

DICT = "dict"
_FACTORIES = (bool, bytes, dict, float, int, list, set, str, tuple)  # of defaultdicts
_MAKERS: dict[str, Callable[[dict[Any, Any]], dict[Any, Any]]] = {
    DICT: dict,
    "Counter": Counter,
    "OrderedDict": OrderedDict,
    **{f"defaultdict({one.__name__})": partial(defaultdict, one) for one in _FACTORIES},
}


def kind_of_dict(value: dict[Any, Any]) -> str:
    if isinstance(value, defaultdict):
        known = [one.__name__ for one in _FACTORIES if one is value.default_factory]
        return f"defaultdict({known[0]})" if known else DICT
    name = type(value).__name__
    return name if _MAKERS.get(name) is type(value) else DICT


def dict_of_kind(kind: str, items: dict[Any, Any]) -> dict[Any, Any]:
    if kind == DICT:
        return items
    if kind not in _MAKERS:
        raise ValueError(f"a value of kind {kind!r}")
    return _MAKERS[kind](items)
