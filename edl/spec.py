"""Define the specification of a job, :class:`JobSpec`: command, numbers of workers, settings.

The process that starts the job writes it once to ZooKeeper; workers and agents read it.

Settings of a machine or a process (addresses, ZooKeeper, the slot) are in :mod:`edl.config`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Any

from edl.errors import ConfigError, UsageError
from edl.record import Record
from edl.text import workers

# ------------------------------------------------------------
# Declare each setting of edl once, as a field of a frozen dataclass, and check its value.
#
# `setting` declares a field, and `check_settings` checks an object. The declaration gives the
# setting's name in the environment (`EDL_` and the field in capitals) and in `edl.toml` (the
# field), its option of `edl run`, if there is one, and its row in docs/reference/settings.md.

MAX_WAIT_S = 86_400.0  # for ZooKeeper, whose client counts the milliseconds in 32 bits


def setting(
    default: Any,
    help: str,
    *,
    option: str = "",  # of `edl run`
    metavar: str = "",
    least: float | None = None,
    most: float | None = None,
    choices: tuple[str, ...] = (),
    repr: bool = True,
) -> Any:
    about = {
        "help": help,
        "option": option,
        "metavar": metavar,
        "least": least,
        "most": most,
        "choices": choices,
    }
    return field(default=default, repr=repr, metadata=about)


def variable(name: str) -> str:
    return f"EDL_{name.upper()}"


def check_settings(values: Any) -> None:
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


# ------------------------------------------------------------
# Decide how many workers a job may have, by all rules about its size: `Sizes`.
#
# A switch is *planned* only to an allowed size: from `min_np` to `max_np`, one of `sizes` if any
# are given, and a multiple of `size_step`. A crash is not planned: the ring goes on with any size
# of at least `min_np`, and returns to an allowed size when replacements join, or when surplus
# workers leave.


@dataclass(frozen=True)
class Sizes(Record):
    """The world sizes (numbers of workers) that one job may have."""

    min_np: int = setting(
        1,
        "the job never trains with fewer workers. Under horovodrun its `--min-np` is the default, "
        "unless edl [cannot see it](../guides/horovodrun.md#settings)",
        option="--min-np",
    )
    max_np: int | None = setting(
        None,
        "the job never has more workers. Default: `-np`, or `--slots` if that is given and "
        "greater. Under horovodrun its `--max-np` is the default, unless edl cannot see it",
        option="--max-np",
    )
    sizes: tuple[int, ...] = setting(
        (),
        "only these numbers of workers, like `1,2,4` "
        "([sizes](../guides/scaling.md#only-some-sizes)); empty: all from `min_np` to `max_np`",
        option="--sizes",
        metavar="N,N,...",
    )
    size_step: int = setting(
        1, "only multiples of this many workers", option="--size-step", metavar="N"
    )

    # --- what is allowed

    def allows(self, np: int) -> bool:
        """Return whether `np` is an allowed size: one to which a switch may be planned."""
        within = self.min_np <= np and (self.max_np is None or np <= self.max_np)
        return within and (not self.sizes or np in self.sizes) and np % self.size_step == 0

    def enough(self, np: int) -> bool:
        """Return whether a ring of `np` workers may train, allowed or not: at least `min_np`."""
        return np >= self.min_np

    def below(self, np: int) -> int | None:
        if self.sizes:
            return max((n for n in self.sizes if n <= np and self.allows(n)), default=None)
        top = np if self.max_np is None else min(np, self.max_np)
        top -= top % self.size_step
        return top if self.allows(top) else None

    def above(self, np: int) -> int | None:
        if self.sizes:
            return min((n for n in self.sizes if n >= np and self.allows(n)), default=None)
        bottom = max(np, self.min_np)
        bottom += -bottom % self.size_step
        return bottom if self.allows(bottom) else None

    def fit(self, np: int) -> int:
        """Return the largest allowed size of at most `np`, or else the smallest allowed size."""
        below = self.below(np)
        if below is not None:
            return below
        least = self.above(np)
        return max(np, self.min_np) if least is None else least

    # --- more and fewer

    def room(self, others: int, np: int, has: int = 0) -> int:
        """Return the largest number from `has` to `np` whose sum with `others` is allowed."""
        fitting = (n for n in range(np, has, -1) if self.allows(others + n))
        return next(fitting, has)

    def keeps(self, size: int, now: int) -> bool:
        """Return whether a ring may be changed, by a plan, from `now` to `size` workers."""
        return size == now or self.allows(size) or now < size <= self.min_np

    # --- what is refused

    def check(self, np: int) -> None:
        """Raise an error if these sizes are impossible, or no job can start with `np` workers."""
        given = (("np", np), ("min-np", self.min_np), ("max-np", self.max_np))
        for name, value in (*given, ("size-step", self.size_step)):
            if value is not None and value < 1:
                raise UsageError(f"--{name} is {value}; a job needs at least 1 worker")
        most = self.max_np
        if most is not None and self.min_np > most:
            raise UsageError(
                f"--min-np is {self.min_np} and --max-np is {most}; min must not be above max"
            )
        wrong = [n for n in self.sizes if not self.allows(n)]
        if wrong:
            raise UsageError(
                f"--sizes has {', '.join(map(str, wrong))}; each must lie between --min-np "
                f"{self.min_np} and --max-np {most}, and be a multiple of --size-step "
                f"{self.size_step}"
            )
        if not self.min_np <= np or (most is not None and np > most):
            raise UsageError(
                f"-np is {np}; it must lie between --min-np {self.min_np} and --max-np {most}"
            )
        if not self.allows(np):
            raise UsageError(f"-np is {np}; {self.refusal(np)}")

    def check_scale(self, job: str, np: int) -> None:
        if self.allows(np):
            return
        hint = ""
        if np < 1:
            raise UsageError(
                f"cannot scale job {job} to {workers(np)}: `edl stop {job}` ends it, and `edl "
                f"preempt {job}` saves it first, to be resumed later"
            )
        if not self.enough(np):
            hint = f"; start it with a lower --min-np, or run `edl stop {job}`"
        elif self.max_np is not None and np > self.max_np:
            hint = "; start it with a higher --max-np"
        raise UsageError(f"cannot scale job {job} to {workers(np)}: {self.refusal(np)}{hint}")

    def refusal(self, np: int) -> str:
        if not self.enough(np):
            return f"min_np is {self.min_np}"
        if self.max_np is not None and np > self.max_np:
            return f"max_np is {self.max_np}"
        near = [n for n in (self.below(np), self.above(np)) if n is not None]
        nearest = " and ".join(map(str, near)) or "none"
        be = "are" if len(near) > 1 else "is"
        return f"the job may have {self}; nearest to {np} {be} {nearest}"

    def __str__(self) -> str:
        if self.sizes:
            return f"{_one_of(n for n in self.sizes if self.allows(n))} workers"
        most = "any number" if self.max_np is None else str(self.max_np)
        steps = f" in steps of {self.size_step}" if self.size_step > 1 else ""
        return f"{self.above(self.min_np) or self.min_np} to {most} workers{steps}"


def _one_of(numbers: Iterable[int]) -> str:
    *most, last = [str(n) for n in sorted(set(numbers))] or ["no"]
    return f"{', '.join(most)} or {last}" if most else last


# Values of the setting `resume`, in lower case; any other one is the path of a directory.
RESUME_NO = ("", "0", "no", "false")
RESUME_YES = ("1", "yes", "true")
RESUME_AUTO = "auto"


def resume_directory(resume: str) -> str | None:
    """Return the directory that a value of the setting `resume` names; None if it names none."""
    named = resume.strip()
    return None if named.lower() in (*RESUME_NO, *RESUME_YES, RESUME_AUTO) else named


@dataclass(frozen=True)
class JobSettings(Record):
    """The settings of one job: its time limits (in seconds) and how it trains."""

    resume: str = setting(
        "",
        "`1` (`edl run --resume`): continue from the script's checkpoints; `auto` "
        "(`--resume=auto`): if there are any, else begin; a path (`--resume-from`): from those "
        "there",
    )
    session_timeout_s: float = setting(
        6.0,
        "the time-out of the ZooKeeper session of each worker and agent: how long a frozen one "
        "counts as alive. If the server grants another time, because its limits are other ones, "
        "edl counts with the granted time",
        most=MAX_WAIT_S,
    )
    start_timeout_s: float = setting(
        120.0, "for the first `np` workers to come up; then `min_np` are enough"
    )
    prepare_timeout_s: float = setting(
        300.0, "for a newcomer, from its registration until it has warmed up"
    )
    gather_timeout_s: float = setting(
        3.0,
        "how long ready newcomers wait for others that still prepare; longer in a "
        "[migration](../guides/scaling.md#migrating)",
    )
    switch_timeout_s: float = setting(
        60.0,
        "a newcomer that is ready is evicted if it does not read the newest membership within this "
        "time. A worker whose ring broke fails if there is no repair within `elastic_timeout_s` "
        "plus this time",
    )
    save_timeout_s: float = setting(60.0, "how long the last checkpoint before an end may take")
    preempt_within_s: float | None = setting(
        None,
        "SIGTERM to `edl run` [preempts the job](../guides/checkpoints.md#preempt-a-job): it saves "
        "and ends within this time, with exit code 96; none: SIGTERM stops it, with 143. In a job "
        "without a launcher, the same for SIGTERM to the script",
        option="--preempt-within",
        metavar="SECONDS",
    )
    elastic_timeout_s: float = setting(
        600.0,
        "how long the job waits for other workers if fewer than `min_np` are left, and after a "
        "crash for ZooKeeper, for a survivor that is alive and does not report, or for a ring that "
        "can be built",
        option="--elastic-timeout",
        metavar="SECONDS",
    )
    leave_grace_s: float = setting(
        20.0, "how long a worker that got SIGTERM and is needed waits for its replacement"
    )
    leave_gather_s: float = setting(
        0.5,
        "how long a worker that got SIGTERM waits for other workers of its host to get it, too, so "
        "that they [leave in one switch](../guides/hosts.md#all-processes-of-a-host-are-signalled)",
    )
    exit_timeout_s: float = setting(
        30.0,
        "once the script has ended, how long exit handlers (`atexit`) may take that were "
        "registered before edl was imported; then the process is killed, and what the script "
        "returned counts",
    )
    stall_s: float = setting(
        10.0,
        "after this long without a step, and 20 usual steps, the leader says who holds the job up; "
        "before the first step, and after a call of Keras' `fit`, after six times as long",
    )
    stall_limit_s: float | None = setting(
        None,
        "a worker that holds the others up for this long is evicted (if a call of Keras' `fit` has "
        "just ended there, after 600 s at least); none: never",
        option="--stall-limit",
        metavar="SECONDS",
    )
    max_restarts: int = setting(
        10,
        "how often in a row a slot is started again after its worker has failed, or was evicted, "
        "without progress: before its first step, within 60 s of it, or killed within 5 s of it. "
        "Then the job goes on without the slot, or fails if `min_np` needs it. If the worker had "
        "trained no step, the next start waits for 1, 2, 4, ... 30 s. Progress sets the count to 0",
        option="--max-restarts",
        metavar="N",
        least=0,
    )
    state_check_steps: int = setting(
        500,
        "number of steps over which the workers' whole [states are compared]"
        "(../explanation/guarantees.md#equal-states), a part of them after each step; 0: never",
        least=0,
    )
    on_divergence: str = setting(
        "end",
        "when the workers' states [differ](../explanation/guarantees.md#equal-states): `end` the "
        "job, or `resync` those that differ from what most hold",
        option="--on-divergence",
        metavar="end|resync",
        choices=("end", "resync"),
    )
    exact: str = setting(
        "off",
        "[bit-identical training](../guides/exact.md): `same-size`, in each run with as many "
        "workers (`logical` is `-np`); `any-size`, with any number of workers (needs `logical`)",
        option="--exact",
        metavar="off|same-size|any-size",
        choices=("off", "same-size", "any-size"),
    )
    logical: int = setting(
        0,
        "[logical workers](../guides/exact.md): each step is the sum of this many batches, one of "
        "each logical worker, bit for bit the same for any number of workers that share them; 0: "
        "none, the global batch grows with the workers",
        option="--logical",
        metavar="N",
        least=0,
    )
    exact_audit: int = setting(
        0,
        "steps, after each start and join, whose [logical workers are trained a second time]"
        "(../guides/exact.md#audit), on another worker, to compare the bits; 0: none",
        option="--exact-audit",
        metavar="N",
        least=0,
    )
    checkpoint_dir: str = setting(
        "",
        "directory of the job's checkpoints, for a script that does not call "
        "[edl.checkpoint](../guides/checkpoints.md); all hosts share it. Also a URL",
        option="--checkpoint-dir",
        metavar="DIR",
    )
    noise_scale_steps: int = setting(
        0,
        "steps from one measurement of the "
        "[gradient noise scale](../guides/batch-and-learning-rate.md#how-large-a-batch) to the "
        "next; 0: it is measured only if a policy or a learning rate needs it, every 50 steps",
        option="--noise-scale-steps",
        metavar="N",
        least=0,
    )
    template: bool = setting(
        True,
        "fork later workers of a host from a "
        "[template](../explanation/workers.md#how-a-worker-starts) that has imported what they "
        "import, where that can be",
        option="--no-template",
    )
    status_period_s: float = setting(0.5, "how often the leader writes the status")
    chaos: bool = setting(
        False,
        "each worker's HTTP port takes orders to end its session or cut its ring, to "
        "[try faults](../guides/troubleshooting.md#trying-faults)",
        option="--chaos",
    )

    def __post_init__(self) -> None:
        if self.on_divergence == "heal":  # its name in older versions
            object.__setattr__(self, "on_divergence", "resync")
        check_settings(self)
        if self.exact == "any-size" and not self.logical:
            raise ConfigError(
                "exact",
                "exact=any-size needs the number of logical workers, which stays the same whatever "
                "the number of workers: give --logical N as well",
            )

        if self.exact_audit and not self.logical and self.exact == "off":
            raise ConfigError(
                "exact_audit",
                "exact_audit compares the results of logical workers: give --logical N, or --exact "
                "same-size, as well",
            )

    def of_size(self, np: int) -> JobSettings:
        if self.exact == "same-size" and not self.logical:
            return replace(self, logical=np)
        return self

    @property
    def repair_timeout_s(self) -> float:
        """How long a broken ring waits for the report of a worker that may be alive."""
        return max(self.switch_timeout_s, self.elastic_timeout_s)


@dataclass(frozen=True)
class JobSpec(Record):
    """The specification of a job: its command, its numbers of workers and its settings."""

    command: tuple[str, ...]  # of each worker, the program first
    np: int = 1  # workers to start with
    sizes: Sizes = field(default_factory=Sizes)
    settings: JobSettings = field(default_factory=JobSettings)
    cwd: str = ""  # of the workers; empty: that of their launcher

    def check(self) -> None:
        self.sizes.check(self.np)
        logical, most = self.settings.logical, self.sizes.max_np or self.np
        if logical and most > logical:
            option = f"-np is {self.np}" if self.np > logical else f"--max-np is {most}"
            raise UsageError(
                f"{option} and --logical is {logical}: a worker without a logical worker would "
                f"have nothing to train; give at most {logical}, or more logical workers"
            )

    def differences(self, other: JobSpec) -> dict[str, tuple[object, object]]:
        mine, theirs = (
            {
                "command": one.command,
                "cwd": one.cwd,
                **vars(one.sizes),
                **{k: v for k, v in vars(one.settings).items() if k != "resume"},
            }
            for one in (self, other)
        )
        return {name: (mine[name], theirs[name]) for name in mine if mine[name] != theirs[name]}
