"""Read YAML text into values that know their lines, and refuse what a settings file does not need.

Only the part of YAML is read that settings files use: one document of mappings, lists and scalars
(single values). Anchors, aliases and tags are refused, so a short text never becomes a large value.
Scalars are those of YAML 1.2, as in JSON: ``no`` and ``on`` are texts, ``1:30`` is no number.

The parser of PyYAML delivers events, one at a time. The values are built from them in a loop, and
nesting is limited, so no text exhausts the stack.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from edl.core.cluster.control_characters import first_control_character
from edl.errors import ManifestError

KEY_CHARS = 128  # of a key; longer than names are
DEPTH = 8  # levels of lists and mappings within each other; a manifest has three

Scalar = str | int | float | bool | None

_INT = re.compile(r"[-+]?[0-9]{1,18}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_WORDS: dict[str, Scalar] = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
_WORDS |= dict.fromkeys(("true", "True", "TRUE"), True)
_WORDS |= dict.fromkeys(("false", "False", "FALSE"), False)

_HINTS = (
    ("character '\\t'", "a tab indents it, or stands in front of a value; use spaces"),
    (
        "mapping values are not allowed",
        "end each key with a colon, indent keys alike, quote a text with ': '",
    ),
    ("found unexpected end of stream", "a quotation mark that opens here is never closed"),
    ("could not find expected ':'", "a key needs a colon and a space: `key: value`"),
    ("cannot start any token", "quote a text that begins with this character"),
)


@dataclass(frozen=True)
class YamlValue:
    """A value in a YAML text."""

    # the line on which the value begins, from 1; of a value in a mapping, that of its key
    line: int
    # a scalar as it is written, without quotation marks; or the items of a list; or the values of a
    # mapping, by key
    content: str | list[YamlValue] | dict[str, YamlValue]
    plain: bool = False  # whether this is a scalar without quotation marks, which may be a number

    @property
    def is_null(self) -> bool:
        """Whether this is null, or nothing at all."""
        return isinstance(self.content, str) and self.scalar is None

    @property
    def scalar(self) -> Scalar:
        """The scalar in its type: a number, a truth value, None or a text."""
        text = self.content
        if not isinstance(text, str):
            return None
        if not self.plain:
            return text
        if text in _WORDS:
            return _WORDS[text]
        if _INT.fullmatch(text):
            return int(text)
        return float(text) if _FLOAT.fullmatch(text) else text


def parse_yaml(text: str, source: str) -> YamlValue:
    """Return the one document in `text`; `source` is the name of its file, for messages."""
    if found := first_control_character(text):
        character, place = found
        line = text.count("\n", 0, place) + 1
        raise ManifestError(source, line, f"the character {character!a} is not allowed; remove it")
    builder = _Builder(source)
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            builder.add(event)
    except yaml.MarkedYAMLError as error:
        raise _not_yaml(error, source) from None
    if builder.root is None:
        raise ManifestError(source, 1, "the file is empty")
    return builder.root


def _not_yaml(error: yaml.MarkedYAMLError, source: str) -> ManifestError:
    """Return the error for a text that PyYAML refused with `error`; `source` is its file."""
    problem = str(error.problem)
    mark, began = error.problem_mark, error.context_mark
    if began is not None and (mark is None or "end of stream" in problem):
        mark = began
    line = 1 if mark is None else mark.line + 1
    hint = next((f"; {text}" for part, text in _HINTS if part in problem), "")
    if began is not None and began.line + 1 != line:
        hint = f" {error.context}, which begins in line {began.line + 1}{hint}"
    return ManifestError(source, line, f"this is not YAML: {problem}{hint}")


class _Builder:
    """A builder of the value of a document from the events of PyYAML's parser."""

    def __init__(self, source: str) -> None:
        self.root: YamlValue | None = None  # the document; None before its end
        self._source = source
        self._documents = 0
        # The lists and mappings that are not at their end; of a mapping also the next value's key.
        self._open: list[tuple[YamlValue, list[tuple[str, int]]]] = []

    def add(self, event: Any) -> None:
        """Take the next event of PyYAML's parser, and add what it says to the value."""
        line = event.start_mark.line + 1
        if isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                raise self._error(line, "a second document begins here; write one into each file")
        elif isinstance(event, yaml.NodeEvent):
            self._check(event, line)
            self._begin(event, line)
        elif isinstance(event, yaml.CollectionEndEvent):
            self._open.pop()

    def _begin(self, event: Any, line: int) -> None:
        """Add the scalar, list or mapping that begins with `event`; a scalar may be a key."""
        within, key = self._open[-1] if self._open else (None, [])
        names = within is not None and isinstance(within.content, dict) and not key
        if names and not isinstance(event, yaml.ScalarEvent):
            raise self._error(line, "a key is a list or a mapping; keys are words")
        if names and len(event.value) > KEY_CHARS:
            what = f"a key has {len(event.value)} characters, at most {KEY_CHARS} are allowed"
            raise self._error(line, f"{what}; is the file a manifest?")
        if names:
            key.append((event.value, line))
            self._check_new(within, event.value, line)
            return
        if isinstance(event, yaml.ScalarEvent):
            new = YamlValue(line, event.value, plain=event.style is None)
        elif len(self._open) == DEPTH:
            raise self._error(line, f"lists and mappings are nested deeper than {DEPTH} levels")
        else:
            new = YamlValue(line, {} if isinstance(event, yaml.MappingStartEvent) else [])
        self._put(new, within, key)
        if not isinstance(new.content, str):
            self._open.append((new, []))

    def _put(self, new: YamlValue, within: YamlValue | None, key: list[tuple[str, int]]) -> None:
        if within is None:
            self.root = new
        elif isinstance(within.content, dict):
            name, line = key.pop()
            within.content[name] = YamlValue(line, new.content, new.plain)
        else:
            assert isinstance(within.content, list)
            within.content.append(new)

    def _check_new(self, within: YamlValue | None, key: str, line: int) -> None:
        """Raise a ManifestError if the mapping `within` has `key` already."""
        assert within is not None
        assert isinstance(within.content, dict)
        if key in within.content:
            first = within.content[key].line
            raise self._error(line, f"{key} is given twice, first in line {first}; keep one")

    def _check(self, event: Any, line: int) -> None:
        """Raise ManifestError if `event` has an anchor, an alias, a tag or a control character."""
        if event.anchor is not None:
            sign = "*" if isinstance(event, yaml.AliasEvent) else "&"
            what = f"{sign}{event.anchor} is an anchor or alias of YAML, which is not used here"
            raise self._error(line, f"{what}; write the value out, or quote the text")
        if getattr(event, "tag", None) is not None:
            what = f"the tag {event.tag} is not used here; leave it out, or quote the text"
            raise self._error(line, what)
        if found := first_control_character(getattr(event, "value", "")):  # an escape: "\0"
            raise self._error(line, f"the character {found[0]!a} is not allowed; remove it")

    def _error(self, line: int, sentence: str) -> ManifestError:
        return ManifestError(self._source, line, sentence)


def flow_list(words: list[str]) -> str:
    """Return `words` as a list in one line of YAML, quoted where that is needed."""
    return f"[{', '.join(map(_word, words))}]"


def _word(text: str) -> str:
    """Return `text` as a scalar within a list of YAML, quoted unless it is a plain word."""
    if re.fullmatch(r"[A-Za-z0-9_./=+-]+", text) and text != "-":
        return text
    escaped: Iterator[str] = (
        f"\\{c}" if c in '"\\' else f"\\x{ord(c):02x}" if ord(c) < 32 else c for c in text
    )
    return f'"{"".join(escaped)}"'
