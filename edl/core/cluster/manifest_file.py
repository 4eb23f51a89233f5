"""Read the manifest of a job from YAML, and refuse what is wrong with file, line and key.

Each value is converted by the type of its field, so the manifest's declaration is the only place
that says what is allowed. Where a text is expected, the value counts as it is written: in
``env: {VERSION: 1.10}`` the variable is "1.10", and ``no`` is "no".
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from edl.core.cluster.manifest import JobManifest, first_problem
from edl.core.cluster.yaml_text import DEPTH, Scalar, YamlValue, flow_list, parse_yaml
from edl.core.policy.reading import near
from edl.errors import ConfigError, ManifestError

MOST_BYTES = 65536  # of a manifest; ZooKeeper holds at most 1 MB in a node, and all in memory

_JSON_PER_YAML = 4  # the most bytes of JSON that a byte of a manifest's file becomes, about

SHORTEST = "name, command, min and max"

_Key = tuple[str | int, ...]

_SHELL = re.compile(r"[|&;<>$`*?]")  # a command with these was meant for a shell


def decoded_manifest(data: bytes, source: str) -> str:
    """Return the text in the bytes of a manifest's file."""
    _check_size(len(data), source)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        what = f"the byte 0x{data[error.start]:02x} is not UTF-8; save the file as UTF-8"
        raise ManifestError(source, line, what) from None


def parse_manifest(text: str, source: str) -> JobManifest:
    """Return the manifest in `text`; `source` is the name of its file, for messages."""
    _check_size(len(text.encode("utf-8", "replace")), source)
    return _checked(parse_yaml(text, source), source)


def manifest_of_values(values: Mapping[str, Any]) -> JobManifest:
    """Return the manifest with these `values` by key, as a program has them."""
    return _checked(_as_yaml(values, ()), "")


def _checked(root: YamlValue, source: str) -> JobManifest:
    """Return the manifest that the YAML document `root` describes, checked as a whole."""
    if not isinstance(root.content, dict):
        what = f"the manifest is {_described(root)}; write `key: value` lines: {SHORTEST}"
        raise ManifestError(source, root.line, what)
    manifest: JobManifest = _Reader(source).record(root, JobManifest, ())
    if (problem := first_problem(manifest)) is not None:
        raise ManifestError(source, _line(root, problem.key), problem.message, _name(problem.key))
    return manifest


def _as_yaml(value: Any, key: _Key) -> YamlValue:
    """Return `value`, which a program gave under `key`, as if it stood in a file."""
    if len(key) > DEPTH:
        raise ManifestError("", 0, f"{_name(key[:2])}... is nested too deeply", _name(key))
    if isinstance(value, Mapping):
        return YamlValue(0, {str(k): _as_yaml(one, (*key, str(k))) for k, one in value.items()})
    if isinstance(value, list | tuple):
        return YamlValue(0, [_as_yaml(one, (*key, n)) for n, one in enumerate(value)])
    if isinstance(value, str):
        return YamlValue(0, value)
    if value is None or isinstance(value, bool | int | float):
        return YamlValue(0, "" if value is None else str(value).lower(), plain=True)
    what = f"{_name(key)} is of type {type(value).__name__}"
    raise ManifestError("", 0, f"{what}; give texts, numbers, lists and mappings", _name(key))


def _check_size(size: int, source: str) -> None:
    """Raise a ManifestError if the file `source` has `size` bytes, and that is too many."""
    if size > MOST_BYTES:
        what = f"it has more than {MOST_BYTES} bytes, and no manifest needs so many"
        raise ManifestError(source, 0, f"{what}; is it the right file?")


def checked_manifest(manifest: JobManifest) -> JobManifest:
    """Return `manifest`, which a program has made, as it is read from its record."""
    try:
        # Lists become tuples, so that the same manifest, submitted again, is equal.
        manifest = msgspec.convert(msgspec.to_builtins(manifest), JobManifest)
    except (msgspec.ValidationError, TypeError) as error:
        raise ManifestError("", 0, f"this is not a manifest: {error}") from None
    if (problem := first_problem(manifest)) is not None:
        raise ManifestError("", 0, problem.message, _name(problem.key))
    _check_size(len(msgspec.json.encode(manifest)) // _JSON_PER_YAML, "this manifest")
    return manifest


@dataclass(frozen=True)
class _Reader:
    """Convert values of YAML to the types of a manifest's fields."""

    source: str  # the name of the file, for messages

    def record(self, value: YamlValue, kind: type[Any], key: _Key) -> Any:
        """Return the record (a dataclass) of type `kind` that a mapping in a manifest describes."""
        if not isinstance(value.content, dict):
            raise self._wrong(value, key, f"a mapping with {', '.join(_hints(kind))}")
        hints = _hints(kind)
        within = f"{_name(key)} has" if key else "a manifest has"
        for name, one in value.content.items():
            if name not in hints:
                known = near(name, hints) if hints else ""
                raise self._error(one.line, (*key, name), f"{within} no key {name!r}{known}")
        for needed in fields(kind):
            optional = needed.default is not MISSING or needed.default_factory is not MISSING
            if not optional and needed.name not in value.content:
                path = (*key, needed.name)
                what = f"{_name(path)} is missing; add a line like `{_EXAMPLES[needed.name]}`"
                raise self._error(value.line, path, what)
        given = {
            name: self.value(one, hints[name], (*key, name)) for name, one in value.content.items()
        }
        try:
            return kind(**given)
        except ConfigError as error:  # of a setting that is out of range
            line = value.content.get(error.setting, value).line
            raise self._error(line, (*key, error.setting), f"{_name(key)}.{error}") from None

    def value(self, value: YamlValue, hint: Any, key: _Key) -> Any:
        """Return a value in a manifest in its type: a record, a tuple, a dictionary or a scalar."""
        kind = _plain_type(hint)
        is_empty = value.content == "" and value.plain
        if _is_optional(hint) and value.is_null and not (is_empty and value.line):
            return None
        if is_empty:
            what = f"{_name(key)} has no value; give one, or leave the key out"
            raise self._error(value.line, key, what)
        if is_dataclass(kind):
            assert isinstance(kind, type)
            return self.record(value, kind, key)
        if get_origin(kind) is tuple:
            return self._items(value, hint, key)
        if get_origin(kind) is Mapping:
            return self._mapping(value, hint, key)
        return self._scalar(value, hint, key)

    def _items(self, value: YamlValue, hint: Any, key: _Key) -> tuple[Any, ...]:
        """Return a list of a manifest as a tuple, with its items in the type that `hint` names."""
        if not isinstance(value.content, list):
            if key == ("command",) and isinstance(value.content, str):
                what = f"command is a text; write a list: command: {_words(value.content)}"
                raise self._error(value.line, key, what)
            raise self._wrong(value, key, "a list")
        item = get_args(_plain_type(hint))[0]
        found = tuple(
            self.value(one, item, (*key, number)) for number, one in enumerate(value.content)
        )
        limits = _limits(hint)
        if limits.least is not None and len(found) < limits.least:
            raise self._error(value.line, key, f"{_name(key)} is an empty list; name something")
        if limits.most is not None and len(found) > limits.most:
            what = f"{_name(key)} has {len(found)} items; at most {limits.most:g} are allowed"
            raise self._error(value.line, key, what)
        return found

    def _mapping(self, value: YamlValue, hint: Any, key: _Key) -> dict[str, Any]:
        """Return a mapping of a manifest as a dictionary, with its items in the types of `hint`."""
        if not isinstance(value.content, dict):
            raise self._wrong(value, key, "a mapping, like {KEY: value}")
        names, values = get_args(_plain_type(hint))
        found: dict[str, Any] = {}
        for name, one in value.content.items():
            try:
                msgspec.convert(name, names)
            except msgspec.ValidationError:
                what = f"the key {name!r} of {_name(key)} must {_limits(names).must}"
                raise self._error(one.line, (*key, name), what) from None
            found[name] = self.value(one, values, (*key, name))
        return found

    def _scalar(self, value: YamlValue, hint: Any, key: _Key) -> Scalar:
        """Return a number, a text or a truth value of a manifest in the type that `hint` names."""
        as_written = _plain_type(hint) is str and isinstance(value.content, str)
        given: Any = value.content if as_written else value.scalar
        if isinstance(given, float) and given.is_integer() and _plain_type(hint) is int:
            given = int(given)  # 4.0, which JSON schema takes for an integer, too
        if isinstance(value.content, str):
            try:
                found: Scalar = msgspec.convert(given, hint)
                if not isinstance(found, float) or abs(found) < float("inf"):
                    return found
            except msgspec.ValidationError:
                pass
        raise self._wrong(value, key, _expected(hint, key))

    def _wrong(self, value: YamlValue, key: _Key, expected: str) -> ManifestError:
        must = expected if expected.startswith("it must ") else f"it must be {expected}"
        return self._error(value.line, key, f"{_name(key)} is {_described(value)}; {must}")

    def _error(self, line: int, key: _Key, sentence: str) -> ManifestError:
        return ManifestError(self.source, line, sentence, _name(key))


_EXAMPLES = {
    "name": "name: digits",
    "command": "command: [python, train.py]",
    "min": "min: 1",
    "max": "max: 4",
}


class _Limits(NamedTuple):
    """The limits on the value of a key, read from the annotation of its field."""

    least: float | None = None  # the least number, or the fewest items; None: there is no limit
    above: float | None = None  # the number that the value must be above; None: there is none
    most: float | None = None  # the greatest number, or the most items; None: there is no limit
    must: str = ""  # the rule for a text, as the end of "it must"; empty if there is none


def _limits(hint: Any) -> _Limits:
    """Return the limits in the annotations of the type `hint`; without any, no limits."""
    if get_origin(hint) in (Union, UnionType):
        return _limits(next(one for one in get_args(hint) if one is not NoneType))
    if get_origin(hint) is not Annotated:
        return _Limits()
    inner, *metas = get_args(hint)
    found = _limits(inner)
    for meta in metas:
        assert isinstance(meta, Meta)
        least = meta.ge if meta.ge is not None else meta.min_length
        most = meta.le if meta.le is not None else meta.max_length
        if least is not None or most is not None or meta.gt is not None:
            found = found._replace(least=least, above=meta.gt, most=most)
        if meta.extra:
            found = found._replace(must=meta.extra["must"])
    return found


def _is_optional(hint: Any) -> bool:
    """Return whether the value of a key may be null."""
    if get_origin(hint) is Annotated:
        return _is_optional(get_args(hint)[0])
    return NoneType in get_args(hint)


def _plain_type(hint: Any) -> Any:
    """Return the type in `hint` without annotations and without `| None`."""
    if get_origin(hint) is Annotated:
        return _plain_type(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        return _plain_type(next(one for one in get_args(hint) if one is not NoneType))
    return hint


def _expected(hint: Any, key: _Key) -> str:
    """Return what a scalar must be, like "a whole number from 1 to 8", for the end of a message."""
    kind, limits = _plain_type(hint), _limits(hint)
    if get_origin(kind) is Literal:
        return " or ".join(get_args(kind))
    if kind is str:
        empty = " that is not empty" if limits.least else ""
        return f"it must {limits.must}" if limits.must else f"a text{empty}"
    if kind is bool:
        return "true or false"
    words = "a whole number" if kind is int else "a number"
    if str(key[-1]).endswith("_s"):
        words += " of seconds"
    if limits.above is not None:
        return f"{words} above {limits.above:g} and at most {limits.most:.15g}"
    return (
        words if limits.most is None else f"{words} from {limits.least:.15g} to {limits.most:.15g}"
    )


_HINTS: dict[type[Any], Mapping[str, Any]] = {}  # to find them takes longer than all else


def _hints(kind: type[Any]) -> Mapping[str, Any]:
    """Return the types of the fields of the dataclass `kind`, with annotations, by name."""
    if kind not in _HINTS:
        hints = get_type_hints(kind, include_extras=True)
        _HINTS[kind] = {one.name: hints[one.name] for one in fields(kind)}
    return _HINTS[kind]


def _described(value: YamlValue) -> str:
    """Return what `value` is, for a message: a list, a mapping, or the scalar as written."""
    if isinstance(value.content, list):
        return "a list"
    if isinstance(value.content, dict):
        return "a mapping"
    text = value.content if len(value.content) <= 80 else f"{value.content[:80]}..."
    return text if value.plain and not isinstance(value.scalar, str) else repr(text)


def _words(command: str) -> str:
    """Return `command`, a text that should be a list, as the list in YAML for a message."""
    if not _SHELL.search(command):
        try:
            if words := shlex.split(command):
                return flow_list(words)
        except ValueError:  # a quotation mark is missing
            pass
    return flow_list(["bash", "-c", command]) if command.strip() else "[python, train.py]"


def _name(key: _Key) -> str:
    text = "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in key)
    return text.removeprefix(".")


def _line(root: YamlValue, key: _Key) -> int:
    """Return the line of the value under `key`, or of the nearest value that contains it."""
    found = root
    for one in key:
        within = found.content
        if isinstance(within, dict) and one in within:
            found = within[str(one)]
        elif isinstance(within, list) and isinstance(one, int) and one < len(within):
            found = within[one]
    return found.line
