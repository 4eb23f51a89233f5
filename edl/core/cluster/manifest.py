"""Define the manifest of a job: what a user submits to a cluster, as a file in YAML.

The shortest manifest::

    name: digits
    command: [python, train.py]
    min: 1
    max: 4

The fields say what each key means; docs/reference/manifest.md and the JSON schema are generated
from them. :mod:`edl.core.cluster.manifest_file` reads the file.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Meta

from edl.core import names
from edl.core.cluster.control_characters import first_control_character
from edl.core.job_spec import JobSettings, JobSpec
from edl.core.record import Record
from edl.core.sizes import Sizes

MOST_WORKERS = 100_000  # of one job; a plan may go through all sizes
MOST_PRIORITY = 1_000_000  # and as much below 0
MOST_ITEMS = 1000  # of a list

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
_Workers = Annotated[int, Meta(ge=1, le=MOST_WORKERS)]
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
        """The throughput in samples per second, by number of workers."""
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
            max_length=MOST_ITEMS,
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
            max_length=MOST_ITEMS,
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
            max_length=MOST_ITEMS,
            description="names of [secrets of the cluster](../guides/cluster-of-jobs.md#secrets), "
            "like `[wandb-token]`; the command reads each from the file of that name in the "
            "directory `EDL_SECRETS_DIR`",
        ),
    ] = ()
    data: Annotated[
        tuple[_Text, ...],
        Meta(
            max_length=MOST_ITEMS,
            description="files and directories that must exist on a host before the job gets a "
            "slot there; relative to `cwd`",
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
            ge=-MOST_PRIORITY,
            le=MOST_PRIORITY,
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
            max_length=MOST_ITEMS,
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
        """The number of workers that the job asks for."""
        return self.max if self.np is None else self.np

    @property
    def allowed_sizes(self) -> Sizes:
        """The numbers of workers that the job may have."""
        return Sizes(self.min, self.max, self.sizes, self.size_step)

    @property
    def start_timeout_s(self) -> float:
        """The seconds that a run waits for all its first workers; after that `min` suffice."""
        return self.settings.start_timeout_s

    @cached_property
    def required_paths(self) -> Mapping[str, str]:
        """Path -> what it is, for all that a host must have before the job gets a slot there."""
        # A path that ends with a slash must be a directory.
        found = {f"{self.cwd.rstrip('/')}/": f"the job's cwd {self.cwd}"} if self.cwd else {}
        if self.venv:
            found[f"{self.venv}/bin/"] = f"the job's venv {self.venv}"
        return found | {path: f"the job's data {path}" for path in self.data}

    def job_spec(self, resume: str) -> JobSpec:
        """Return the specification of one run of the job."""
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
    """Why a manifest asks for something impossible."""

    # the path to the value that is wrong: keys, and numbers of items in lists
    key: tuple[str | int, ...]
    message: str  # what is wrong, and what to do next


def first_problem(manifest: JobManifest) -> ManifestProblem | None:
    """Return the first contradiction between values of a manifest, or None if there is none."""
    problems = (problem for check in _CHECKS for problem in check(manifest))
    return next(problems, None)


def _sizes(manifest: JobManifest) -> Iterator[ManifestProblem]:
    """Yield each contradiction between the numbers of workers (min, max, ...) of `manifest`."""
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


def _names(manifest: JobManifest) -> Iterator[ManifestProblem]:
    """Yield each name of a job or of an environment variable that `manifest` must not have."""
    if manifest.name in manifest.after:
        place = manifest.after.index(manifest.name)
        why = f"after has {manifest.name}, which is this job; a job cannot wait for itself"
        yield ManifestProblem(("after", place), why)
    for variable in manifest.env:
        if variable.startswith("EDL_"):
            why = f"{variable} is a variable of edl; write settings of the job under `settings`"
            yield ManifestProblem(("env", variable), why)


def _characters(manifest: JobManifest) -> Iterator[ManifestProblem]:
    """Yield each text of `manifest` with a character that no process can be started with."""
    for key, text in _texts(manifest.to_json(), ()):
        if found := first_control_character(text):
            yield ManifestProblem(key, f"the character {found[0]!a} is not allowed; remove it")


def _texts(
    value: object, key: tuple[str | int, ...]
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield each text in a value of JSON, keys of mappings too, with its key under `key`."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping):
        for name, one in value.items():
            yield (*key, name), name
            yield from _texts(one, (*key, name))
    elif isinstance(value, list | tuple):
        for number, one in enumerate(value):
            yield from _texts(one, (*key, number))


def _values(manifest: JobManifest) -> Iterator[ManifestProblem]:
    """Yield what is wrong with the command, the batches and the settings of `manifest`."""
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


_CHECKS: tuple[Callable[[JobManifest], Iterator[ManifestProblem]], ...] = (
    _characters,
    _sizes,
    _names,
    _values,
)
