"""Define the manifest of a job, what a user submits to a cluster, and read it from a file in YAML.

The fields say what each key means; docs/reference/manifest.md and the JSON schema are generated
from them.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec
import yaml
from msgspec import Meta

from edl import text as names
from edl.errors import ConfigError, ManifestError
from edl.policy.observation import near
from edl.record import Record
from edl.spec import JobSettings, JobSpec, Sizes

# ------------------------------------------------------------
# Find the characters that no text of a manifest may have.


# Ranges of a regular expression, of Python and of JSON schemas.
CONTROL = r"\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ufffe\uffff"
_FIRST = re.compile(rf"[{CONTROL}\ud800-\udfff]")


def first_control_character(text: str) -> tuple[str, int] | None:
    found = _FIRST.search(text)
    return None if found is None else (found[0], found.start())


MAX_WORKERS = 100_000  # of one job; a plan may go through all sizes
MAX_PRIORITY = 1_000_000  # and as much below 0
MAX_ITEMS = 1000  # of a list
VARIABLE_RULE = "letters, digits and underscores, not beginning with a digit"
_Name = Annotated[str, Meta(pattern=names.PATTERN, extra={"must": f"be {names.RULE}"})]

_Variable = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$(?!\n)",
        extra={"must": f"be the name of a variable: {VARIABLE_RULE}"},
    ),
]

_Text = Annotated[str, Meta(min_length=1)]
_Workers = Annotated[int, Meta(ge=1, le=MAX_WORKERS)]
_Samples = Annotated[int, Meta(ge=1, le=10**12)]
_Seconds = Annotated[float, Meta(ge=0.0, le=1e9)]
_Speed = Annotated[float, Meta(gt=0.0, le=1e15)]

_Size = Annotated[
    str,
    Meta(pattern=r"^[1-9][0-9]{0,5}$(?!\n)", extra={"must": "be a number of workers"}),
]


@dataclass(frozen=True)
class BatchRange(Record):
    """The global batches that a job may train with, and whether the policy may choose one."""

    min: Annotated[_Samples, Meta(description="the smallest global batch, in samples")]
    max: Annotated[_Samples, Meta(description="the largest global batch, in samples")]
    set_by_policy: Annotated[
        bool,
        Meta(
            description="whether the cluster's policy may choose the batch in this range. If "
            "false, the script chooses it"
        ),
    ] = False


@dataclass(frozen=True)
class PolicyHints(Record):
    """A user's estimates of a job's length and speed, for policies."""

    steps: Annotated[
        Annotated[int, Meta(ge=1, le=10**15)] | None,
        Meta(description="how many steps the job trains"),
    ] = None
    epochs: Annotated[
        Annotated[int, Meta(ge=1, le=10**9)] | None,
        Meta(description="how many epochs the job trains"),
    ] = None
    duration_s: Annotated[
        Annotated[float, Meta(gt=0.0, le=1e9)] | None,
        Meta(description="how long the job trains with `np` workers, in seconds"),
    ] = None
    throughput: Annotated[
        Mapping[_Size, _Speed],
        Meta(
            description="samples per second at some numbers of workers, like `{1: 410, 4: 1500}`; "
            "with it `profile` measures nothing"
        ),
    ] = field(default_factory=dict)

    @property
    def samples_per_s(self) -> dict[int, float]:
        return {int(size): speed for size, speed in self.throughput.items()}


@dataclass(frozen=True)
class ArrivalProfile(Record):
    """The limits within which a job of unknown speed is measured; each field says its meaning."""

    sizes: Annotated[
        Annotated[int, Meta(ge=2, le=16)],
        Meta(description="with how many numbers of workers it is measured at most"),
    ] = 3
    each_s: Annotated[
        Annotated[float, Meta(ge=1.0, le=3600.0)],
        Meta(description="for how many seconds it trains with each, at least"),
    ] = 10.0
    within_s: Annotated[
        Annotated[float, Meta(ge=1.0, le=86400.0)],
        Meta(description="how many seconds after its first step all of it ends"),
    ] = 120.0


@dataclass(frozen=True)
class JobManifest(Record):
    """The manifest of one job, which a user submits to a cluster."""

    name: Annotated[
        _Name, Meta(description="the name of the job; no other job of the cluster has it")
    ]
    command: Annotated[
        tuple[str, ...],
        Meta(
            min_length=1,
            max_length=MAX_ITEMS,
            description="the command line of each worker, as a list of words; no shell reads it",
        ),
    ]
    min: Annotated[_Workers, Meta(description="never fewer workers")]
    max: Annotated[_Workers, Meta(description="never more workers")]
    np: Annotated[
        _Workers | None,
        Meta(
            description="how many workers are asked for; policies of fixed sizes give just as "
            "many, or fewer after a loss of slots. Default: `max`"
        ),
    ] = None
    sizes: Annotated[
        tuple[_Workers, ...],
        Meta(
            max_length=MAX_ITEMS,
            description="only these numbers of workers, like `[1, 2, 4]`. Default: all from `min` "
            "to `max`",
        ),
    ] = ()
    size_step: Annotated[_Workers, Meta(description="only multiples of this many workers")] = 1
    cwd: Annotated[
        str,
        Meta(
            description="the working directory of the command, on each host; a relative path "
            "begins in the directory of `edl submit`. Default: the directory of `edl submit`"
        ),
    ] = ""
    venv: Annotated[
        str,
        Meta(
            description="a Python virtual environment, on each host: its `bin` stands first in "
            "`PATH`, so that `python` is its own; relative to `cwd`"
        ),
    ] = ""
    env: Annotated[
        Mapping[_Variable, str],
        Meta(description="environment variables of the command; values are taken as written"),
    ] = field(default_factory=dict)
    secrets: Annotated[
        tuple[_Name, ...],
        Meta(
            max_length=MAX_ITEMS,
            description="names of [secrets of the cluster](../guides/cluster-of-jobs.md#secrets), "
            "like `[wandb-token]`; the command reads each from the file of that name in the "
            "directory `EDL_SECRETS_DIR`",
        ),
    ] = ()
    data: Annotated[
        tuple[_Text, ...],
        Meta(
            max_length=MAX_ITEMS,
            description="files and directories that the job needs on a host: it does not start "
            "where one is missing; relative to `cwd`",
        ),
    ] = ()
    checkpoint: Annotated[
        str,
        Meta(
            description="the directory that the script gives to `edl.checkpoint`; relative to "
            "`cwd`. It changes nothing in the script, but with it the first run, too, continues "
            "from the newest checkpoint there, if there is one"
        ),
    ] = ""
    labels: Annotated[
        Mapping[_Name, _Text],
        Meta(description="only hosts that have all these labels are used, like `{gpu: h100}`"),
    ] = field(default_factory=dict)
    queue: Annotated[
        _Name,
        Meta(
            description="the [queue](../guides/queues.md) of the job. In a cluster that has queues "
            "it must be one of them; in others it only serves `edl list --queue`"
        ),
    ] = "default"
    priority: Annotated[
        int,
        Meta(
            ge=-MAX_PRIORITY,
            le=MAX_PRIORITY,
            description="jobs of a higher priority come first; it can be changed later",
        ),
    ] = 0
    weight: Annotated[
        float,
        Meta(
            gt=0.0,
            le=1e6,
            description="the share of the job in policies that share slots by weight",
        ),
    ] = 1.0
    after: Annotated[
        tuple[_Name, ...],
        Meta(
            max_length=MAX_ITEMS,
            description="jobs of the cluster that must have finished before this one first starts",
        ),
    ] = ()
    after_failed: Annotated[
        Literal["end", "wait", "start"],
        Meta(
            description="what becomes of the job when one of `after` has failed or was deleted: "
            "it ends as failed (`end`), waits for another job of that name (`wait`), or no longer "
            "waits for it (`start`)"
        ),
    ] = "end"
    retries: Annotated[
        int,
        Meta(
            ge=0,
            le=1000,
            description="how often the job is started again after it has failed; each time it "
            "continues from its newest checkpoint. A command that cannot start is not",
        ),
    ] = 3
    preemptible: Annotated[
        bool | None,
        Meta(
            description="whether the number of workers may be changed, or the job be halted for "
            "others, while it runs. By default it may, but a job that saves no checkpoint is not "
            "halted for one of the same priority"
        ),
    ] = None
    min_run_s: Annotated[
        _Seconds,
        Meta(description="for so many seconds after a start the job is not halted for others"),
    ] = 0.0
    cool_down_s: Annotated[
        _Seconds,
        Meta(
            description="for so many seconds after a change of its number of workers the policy "
            "does not change it again"
        ),
    ] = 0.0
    snooze_s: Annotated[
        _Seconds,
        Meta(description="for so many seconds after a start the job gets no further slots"),
    ] = 0.0
    batch: Annotated[
        BatchRange | None, Meta(description="the range of the global batch; see below")
    ] = None
    hints: Annotated[
        PolicyHints, Meta(description="what policies may know beforehand; see below")
    ] = field(default_factory=PolicyHints)
    profile: Annotated[
        ArrivalProfile | None,
        Meta(
            description="how the cluster measures the throughput of a job about which it knows "
            "nothing, when it first trains; `{}` takes the defaults; see below"
        ),
    ] = None
    settings: Annotated[
        JobSettings,
        Meta(
            description="[settings](settings.md#settings-of-the-job) of the job by their field's "
            "name, like `{stall_limit_s: 60}`. The cluster sets `resume`, see "
            "below"
        ),
    ] = field(default_factory=JobSettings)

    def to_json(self) -> dict[str, Any]:
        """Return the manifest as JSON values, as the class describes; an older edl reads them."""
        values = super().to_json()
        if self.preemptible is None:
            values.pop("preemptible", None)  # an older edl, which knows no null here, reads true
        return values

    @property
    def requested_np(self) -> int:
        return self.max if self.np is None else self.np

    @property
    def allowed_sizes(self) -> Sizes:
        return Sizes(self.min, self.max, self.sizes, self.size_step)

    @property
    def start_timeout_s(self) -> float:
        """The seconds that a run waits for all its first workers; after that `min` suffice."""
        return self.settings.start_timeout_s

    @cached_property
    def required_paths(self) -> Mapping[str, str]:
        """Path -> what it is, for all that a host must have to start the job."""
        # A path that ends with a slash must be a directory.
        found = {f"{self.cwd.rstrip('/')}/": f"the job's cwd {self.cwd}"} if self.cwd else {}
        if self.venv:
            found[f"{self.venv}/bin/"] = f"the job's venv {self.venv}"
        return found | {path: f"the job's data {path}" for path in self.data}

    def job_spec(self, resume: str) -> JobSpec:
        settings = replace(self.settings, resume=resume).of_size(self.requested_np)
        return JobSpec(self.command, self.requested_np, self.allowed_sizes, settings, self.cwd)

    def with_absolute_paths(self, directory: str, home: Callable[[], str]) -> JobManifest:
        def absolute(path: str, within: str) -> str:
            if path == "~" or path.startswith("~/"):
                path = posixpath.join(home(), path[2:])
            return posixpath.normpath(posixpath.join(within, path))

        cwd = absolute(self.cwd, directory)
        return replace(
            self,
            cwd=cwd,
            venv=absolute(self.venv, cwd) if self.venv else "",
            checkpoint=absolute(self.checkpoint, cwd) if self.checkpoint else "",
            data=tuple(absolute(path, cwd) for path in self.data),
        )

    def environment(self, of_host: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of the job's command on a host, without the manifest's secrets."""
        found = {**of_host, **self.env}
        if self.venv:
            found.pop("PYTHONHOME", None)
            found["VIRTUAL_ENV"] = self.venv
            programs = posixpath.join(self.venv, "bin")
            path = found.get("PATH", "")
            found["PATH"] = f"{programs}:{path}" if path else programs
        return found


class ManifestProblem(NamedTuple):
    key: tuple[str | int, ...]  # to the value that is wrong: keys, and numbers of items in lists
    message: str  # what is wrong, and what to do next


def first_problem(manifest: JobManifest) -> ManifestProblem | None:
    """Return the first contradiction between values of a manifest, or None if there is none."""
    return next(_problems(manifest), None)


def _problems(manifest: JobManifest) -> Iterator[ManifestProblem]:
    for key, text in _texts(manifest.to_json(), ()):
        if found := first_control_character(text):
            yield ManifestProblem(key, f"the character {found[0]!a} is not allowed; remove it")
    yield from _sizes(manifest)
    if manifest.name in manifest.after:
        place = manifest.after.index(manifest.name)
        why = f"after has {manifest.name}, which is this job; a job cannot wait for itself"
        yield ManifestProblem(("after", place), why)
    for variable in manifest.env:
        if variable.startswith("EDL_"):
            why = f"{variable} is a variable of edl; write settings of the job under `settings`"
            yield ManifestProblem(("env", variable), why)
    if not manifest.command[0]:
        yield ManifestProblem(("command", 0), "the command has no program; name it first")
    batch = manifest.batch
    if batch is not None and batch.min > batch.max:
        why = f"batch.min is {batch.min} and batch.max is {batch.max}; lower min, or raise max"
        yield ManifestProblem(("batch", "min"), why)
    if manifest.profile is not None and manifest.preemptible is False:
        why = "profile changes the number of workers, and preemptible is false"
        yield ManifestProblem(("profile",), f"{why}; leave one of them out")
    if manifest.settings.resume:
        why = "settings.resume is set by the cluster: a run continues from the job's checkpoints"
        yield ManifestProblem(("settings", "resume"), f"{why}; leave it out")


def _sizes(manifest: JobManifest) -> Iterator[ManifestProblem]:
    least, most, step = manifest.min, manifest.max, manifest.size_step
    sizes, np = manifest.allowed_sizes, manifest.np
    logical = manifest.settings.of_size(manifest.requested_np).logical
    if 0 < logical < most:
        key = "logical" if manifest.settings.logical else "exact"
        why = f"the job has {logical} logical workers, and max is {most}; lower max to {logical}"
        yield ManifestProblem(("settings", key), f"{why}, or give more logical workers")
    if least > most:
        yield ManifestProblem(
            ("min",), f"min is {least} and max is {most}; lower min, or raise max"
        )
        return
    for number, size in enumerate(manifest.sizes):
        if not sizes.allows(size):
            multiple = f", and be a multiple of size_step {step}" if step > 1 else ""
            why = f"it must lie between min {least} and max {most}{multiple}"
            yield ManifestProblem(("sizes", number), f"sizes has {size}; {why}")
    if sizes.below(most) is None:
        why = f"there is no multiple of size_step {step} between min {least} and max {most}"
        yield ManifestProblem(("size_step",), f"{why}; lower size_step, or raise max")
    elif np is not None and not least <= np <= most:
        why = f"np is {np}; it must lie between min {least} and max {most}"
        yield ManifestProblem(("np",), why)
    elif not sizes.allows(manifest.requested_np):
        key = "max" if np is None else "np"
        hint = "; give np" if np is None else ""
        near = sizes.refusal(manifest.requested_np)
        yield ManifestProblem((key,), f"{key} is {manifest.requested_np}, and {near}{hint}")


def _texts(
    value: object, key: tuple[str | int, ...]
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping):
        for name, one in value.items():
            yield (*key, name), name
            yield from _texts(one, (*key, name))
    elif isinstance(value, list | tuple):
        for number, one in enumerate(value):
            yield from _texts(one, (*key, number))


# ------------------------------------------------------------
# Read YAML text into values that know their lines, and refuse what a settings file does not need.
#
# Only the part of YAML is read that settings files use: one document of mappings, lists and scalars
# (single values). Anchors, aliases and tags are refused, so a short text never becomes a large
# value. Scalars are those of YAML 1.2, as in JSON: `no` and `on` are texts, `1:30` is no number.
#
# The parser of PyYAML delivers events, one at a time. The values are built from them in a loop, and
# nesting is limited, so no text exhausts the stack.


KEY_CHARS = 128  # of a key; longer than names are
DEPTH = 8  # levels of lists and mappings within each other; a manifest has three
Scalar = str | int | float | bool | None
_INT = re.compile(r"[-+]?[0-9]{1,18}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_WORDS: dict[str, Scalar] = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
_WORDS |= dict.fromkeys(("true", "True", "TRUE"), True)
_WORDS |= dict.fromkeys(("false", "False", "FALSE"), False)

_YAML_HINTS = (
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
    line: int  # on which the value begins, from 1; in a mapping that of its key
    # a scalar as it is written, without quotation marks; or the items of a list; or the values of a
    # mapping, by key
    content: str | list[YamlValue] | dict[str, YamlValue]
    plain: bool = False  # whether this is a scalar without quotation marks, which may be a number

    @property
    def is_null(self) -> bool:
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
        problem = str(error.problem)
        mark, began = error.problem_mark, error.context_mark
        if began is not None and (mark is None or "end of stream" in problem):
            mark = began
        line = 1 if mark is None else mark.line + 1
        hint = next((f"; {text}" for part, text in _YAML_HINTS if part in problem), "")
        if began is not None and began.line + 1 != line:
            hint = f" {error.context}, which begins in line {began.line + 1}{hint}"
        raise ManifestError(source, line, f"this is not YAML: {problem}{hint}") from None
    if builder.root is None:
        raise ManifestError(source, 1, "the file is empty")
    return builder.root


class _Builder:
    def __init__(self, source: str) -> None:
        self.root: YamlValue | None = None  # the document; None before its end
        self._source = source
        self._documents = 0
        # The lists and mappings that are not at their end; of a mapping also the next value's key.
        self._open: list[tuple[YamlValue, list[tuple[str, int]]]] = []

    def add(self, event: Any) -> None:
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
        if within is not None and isinstance(within.content, dict) and not key:
            if not isinstance(event, yaml.ScalarEvent):
                raise self._error(line, "a key is a list or a mapping; keys are words")
            if len(event.value) > KEY_CHARS:
                what = f"a key has {len(event.value)} characters, at most {KEY_CHARS} are allowed"
                raise self._error(line, f"{what}; is the file a manifest?")
            if event.value in within.content:
                what = f"{event.value} is given twice, first in line"
                raise self._error(line, f"{what} {within.content[event.value].line}; keep one")
            key.append((event.value, line))
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
    return f"[{', '.join(map(_word, words))}]"


def _word(text: str) -> str:
    """Return `text` as a scalar within a list of YAML, quoted unless it is a plain word."""
    if re.fullmatch(r"[A-Za-z0-9_./=+-]+", text) and text != "-":
        return text
    escaped: Iterator[str] = (
        f"\\{c}" if c in '"\\' else f"\\x{ord(c):02x}" if ord(c) < 32 else c for c in text
    )
    return f'"{"".join(escaped)}"'


# ------------------------------------------------------------
# Generate the JSON schema of job manifests, by which editors complete and check them.


_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_AS_WRITTEN = ["string", "number", "boolean"]  # of a text that a user need not quote
_TEXT = f"^[^{CONTROL}]*$"
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


def manifest_schema() -> dict[str, Any]:
    schema = msgspec.json.schema(JobManifest)
    kinds: dict[str, Any] = schema["$defs"]
    for kind in kinds.values():
        kind["additionalProperties"] = False
        kind.pop("description", None)  # a docstring, for programmers
        for one in kind["properties"].values():
            if "description" in one:
                one["description"] = _without_links(one["description"])
            for inner in (one.get("items"), one.get("additionalProperties")):
                if inner and inner.get("type") == "string" and "pattern" not in inner:
                    inner["type"] = _AS_WRITTEN
            for text in (one, *one.values()):
                if isinstance(text, dict) and "string" in text.get("type", ()):
                    text.setdefault("pattern", _TEXT)
    properties = kinds["JobSettings"]["properties"]
    del properties["resume"]  # the cluster sets it
    for setting in fields(JobSettings):
        about: Mapping[str, Any] = setting.metadata
        if setting.name in properties:
            described = properties[setting.name]
            described["description"] = _without_links(about["help"])
            if about["choices"]:
                described["enum"] = list(about["choices"])
            if about["least"] is not None:
                described["minimum"] = about["least"]
    manifest = kinds.pop("JobManifest")
    command = manifest["properties"]["command"]
    command["prefixItems"] = [{**command["items"], "minLength": 1}]
    manifest["title"] = "A job of an edl cluster"
    return {"$schema": _DIALECT, **manifest, "$defs": kinds}


def _without_links(text: str) -> str:
    return _LINK.sub(r"\1", text)


# ------------------------------------------------------------
# Read the manifest of a job from YAML, and refuse what is wrong with file, line and key.
#
# Each value is converted by the type of its field, so the manifest's declaration is the only place
# that says what is allowed. Where a text is expected, the value counts as it is written: in `env:
# {VERSION: 1.10}` the variable is "1.10", and `no` is "no".


MAX_BYTES = 65536  # of a manifest; ZooKeeper holds at most 1 MB in a node, and all in memory
_JSON_PER_YAML = 4  # the most bytes of JSON that a byte of a manifest's file becomes, about
SHORTEST = "name, command, min and max"
_Key = tuple[str | int, ...]
_SHELL = re.compile(r"[|&;<>$`*?]")  # a command with these was meant for a shell


def decoded_manifest(data: bytes, source: str) -> str:
    _check_size(len(data), source)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        what = f"the byte 0x{data[error.start]:02x} is not UTF-8; save the file as UTF-8"
        raise ManifestError(source, line, what) from None


def parse_manifest(text: str, source: str) -> JobManifest:
    _check_size(len(text.encode("utf-8", "replace")), source)
    return _checked(parse_yaml(text, source), source)


def manifest_of_values(values: Mapping[str, Any]) -> JobManifest:
    return _checked(_as_yaml(values, ()), "")


def _checked(root: YamlValue, source: str) -> JobManifest:
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
    if size > MAX_BYTES:
        what = f"it has more than {MAX_BYTES} bytes, and no manifest needs so many"
        raise ManifestError(source, 0, f"{what}; is it the right file?")


def checked_manifest(manifest: JobManifest) -> JobManifest:
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
    source: str  # the name of the file, for messages

    def record(self, value: YamlValue, kind: type[Any], key: _Key) -> Any:
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
    found = root
    for one in key:
        within = found.content
        if isinstance(within, dict) and one in within:
            found = within[str(one)]
        elif isinstance(within, list) and isinstance(one, int) and one < len(within):
            found = within[one]
    return found.line
