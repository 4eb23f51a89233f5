"""Keep the kind of a dict (Counter, OrderedDict, defaultdict) where a state is copied or saved.

A kind is a text, such as "Counter". A dict of any other class, and a defaultdict with a function of
the script's own, has the kind "dict": it comes back as a plain dict.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

DICT = "dict"
_FACTORIES = (bool, bytes, dict, float, int, list, set, str, tuple)  # of defaultdicts
_MAKERS: dict[str, Callable[[dict[Any, Any]], dict[Any, Any]]] = {
    DICT: dict,
    "Counter": Counter,
    "OrderedDict": OrderedDict,
    **{f"defaultdict({one.__name__})": partial(defaultdict, one) for one in _FACTORIES},
}


def kind_of_dict(value: dict[Any, Any]) -> str:
    """Return the kind of `value`, such as "OrderedDict" or "defaultdict(int)"."""
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
