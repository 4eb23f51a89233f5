"""Resolve all settings of edl with :func:`load`: argument > environment > file > default.

This module is the only reader of ``os.environ`` and of the settings file (``edl.toml`` in the
working directory, else ``edl/edl.toml`` in ``$XDG_CONFIG_HOME`` or ``~/.config``; only the first
that exists is read). The file is a flat table whose keys are the fields of :class:`Config`,
:class:`Sizes` and :class:`JobSettings`. An empty environment variable counts as absent.
"""

from __future__ import annotations

import contextlib
import ipaddress
import operator
import os
import socket
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_type_hints

from edl.errors import ConfigError, UsageError
from edl.secret_file import MIN_SECRET, read_secret
from edl.spec import MAX_WAIT_S, JobSettings, Sizes, check_settings, setting
from edl.spec import variable as variable_of

# ------------------------------------------------------------
# Read the policy of a job from what a script, a program or a command gives: a file, or its text.
#
# The main entry is `read_policy`. The text is not parsed here.


def read_policy(policy: str | os.PathLike[str], reader: str) -> tuple[str, str]:
    if isinstance(policy, str) and "\n" in policy:
        return policy, reader
    try:
        return Path(policy).read_text(), os.fspath(policy)
    except TypeError:
        raise UsageError(
            f"{reader} needs the file of a policy or its text, and was given {policy!r}"
        ) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise UsageError(f"cannot read the policy {os.fspath(policy)}: {why}") from None


LOOPBACK = "127.0.0.1"
_INHERITED_TEMPLATE = "EDL_INHERITED_TEMPLATE"  # SOCKET:PROCESS
STATE_VARIABLE = "EDL_STATE_DIR"  # of the agents of `edl host`, whatever a manifest says of HOME
_TRUTH = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


@dataclass(frozen=True)
class Config:
    """The resolved settings of one process, from `load`; docs/reference/settings.md has all."""

    job: str | None = setting(
        None,
        "the job of this process; the agent sets it. Without it a script is a job of one worker; "
        "under horovodrun it names the new job",
    )
    cluster: str | None = setting(
        None,
        "the cluster that commands are about; without it the one that `secret` opens, else the "
        "only one whose secret this user has",
    )
    zookeeper: str | None = setting(
        None, "`host:port,host:port`; without it the local server of this user"
    )
    host: str = setting("", "this host's name in the job; empty: the machine's name")
    address: str = setting(
        "",
        "the address at which other workers reach this host; empty: "
        "[chosen](../guides/hosts.md#names-addresses-clocks)",
    )
    network_interface: str = setting(
        "", "the interface that has this address; empty: the one that leads to ZooKeeper"
    )
    slot: int = setting(0, "the worker's slot, `edl.local_rank()`; the agent sets it")
    device: int | None = setting(
        None,
        "the number of the [device](../guides/gpus.md#several-jobs-on-one-host) that the agent has "
        "given to the worker",
    )
    attempt_id: str = setting("", "token of one start of one worker; the agent sets it")
    run: str = setting(
        "",
        "token of the run (one start of the job) that a worker belongs to; the agent sets it, and "
        "the worker registers with no other run",
    )
    secret: str | None = setting(
        None,
        "the job's [secret](../explanation/security.md), by which a client may read and change "
        "the job: one word of at least 32 characters; `edl run` draws one",
        repr=False,
    )
    secret_file: str = setting(
        "",
        "a file, or a pipe, that holds the secret, and that other users cannot read, so that [no "
        "engine stores it](../explanation/security.md#a-secret-that-you-give)",
    )
    hosts: str = setting(
        "",
        "`host:slots,host:slots` that `edl-discover` may offer to "
        "[horovodrun](../guides/horovodrun.md#how-many-workers)",
    )

    connect_timeout_s: float = setting(10.0, "first connection to ZooKeeper", most=MAX_WAIT_S)
    backoff_max_s: float = setting(
        30.0, "longest pause of a slot whose workers die, before the next start"
    )

    keep_jobs: int = setting(
        100,
        "how many ended jobs, the newest, stay in ZooKeeper; an agent "
        "[removes](../guides/running.md#zookeeper) the others whose secrets it knows",
        least=0,
    )
    keep_jobs_s: float = setting(604800.0, "how long an ended job stays after its end: a week")

    borrowed_file: str = setting(
        "",
        "a file that says how many slots of this host the job "
        "[borrows](../guides/scaling.md#borrowing-idle-slots)",
    )
    reclaim_s: float = setting(30.0, "the time to give borrowed slots back, where nobody names one")
    leave_within_s: float | None = setting(
        None,
        "the time for the workers of a host to leave after a signal to its agent; shortly before "
        "its end a worker that has not left is evicted. None: as long as it takes",
    )

    metrics_port: int | None = setting(
        None,
        "the port at which an agent serves the job's [metrics](metrics.md) on its host's address; "
        "0: any port, which it prints; none: it serves none",
        least=0,
        most=65535,
    )

    frozen_s: float = setting(
        10.0,
        "the agent ends a worker that has left ZooKeeper (its session has ended) and has not "
        "answered for this long since, if others can go on. A worker whose session lives is "
        "evicted by the leader if it has not answered for three times as long since the leader "
        "has seen that [no step completes](#time-outs)",
    )
    suspended_s: float = setting(
        1.0,
        "the agent kills a worker that is suspended (SIGSTOP) for this long, if another worker of "
        "the ring answers, which waits for it; `0`: never, so that the leader evicts it, after the "
        "session",
        least=0,
    )
    stack_signal: int = setting(
        40,
        "the signal (`SIGRTMIN + 6`) by which the agent, or `edl-worker`, asks a worker that does "
        "not answer to [write down where its threads "
        "are](../guides/troubleshooting.md#a-worker-that-does-not-answer); `0`: none",
    )
    stacks: str = setting("", "the file for these stacks; the agent sets it")
    log_file: str = setting("", "the file that the worker's output goes to; the agent sets it")
    trained_file: str = setting(
        "", "the file that the worker creates when it has trained a step; the agent sets it"
    )
    imports_file: str = setting(
        "",
        "the file in which a worker says what it has imported, for the "
        "[template](../explanation/workers.md#how-a-worker-starts); the agent sets it",
    )
    registers_at_s: float | None = setting(
        None,
        "when the replacement of a dead worker may register, by the system's monotonic clock: 0.13 "
        "s after its start, so that the others repair their ring first; the agent sets it",
    )
    same_random: bool = setting(
        False,
        "the [random numbers](../guides/pytorch.md#random-numbers) of the training thread are the "
        "same on all workers, as the script seeds them; an argument of `edl.init`",
    )
    log_mb: int = setting(
        100,
        "when a worker's log has this many MB, the worker begins [a new "
        "one](../guides/troubleshooting.md#files) and keeps the one before",
        least=1,
    )

    # What a job that this process starts is asked to be. Its other processes read that from the
    # job's own record, so the environment of a worker carries its identity only.
    sizes: Sizes = field(default_factory=Sizes)
    job_settings: JobSettings = field(default_factory=JobSettings)

    def __post_init__(self) -> None:
        if not self.host:
            object.__setattr__(self, "host", socket.gethostname())
        check_settings(self)
        if ":" in self.address:
            raise ConfigError(
                "address", f"address is {self.address}; Horovod's rendezvous client knows IPv4 only"
            )
        if self.secret is not None and len(self.secret) < MIN_SECRET:
            raise ConfigError(
                "secret",
                f"EDL_SECRET has {len(self.secret)} characters and needs {MIN_SECRET}: who "
                "guesses it owns the job; take `openssl rand -hex 32`, or leave it to `edl run`",
            )
        if self.secret is not None and self.secret.split() != [self.secret]:
            raise ConfigError(
                "secret",
                "EDL_SECRET has white space in it, and the files that keep secrets take one word; "
                "take `openssl rand -hex 32`, without a newline at its end",
            )
        if _is_every_interface(self.address):
            raise ConfigError(
                "address",
                f"{self.address} means every network of this machine; give the one address at "
                "which the other workers of the job reach it",
            )

    @property
    def own_address(self) -> str:
        return self.address or LOOPBACK


def load(
    environ: Mapping[str, str] | None = None,
    defaults: Mapping[str, Any] = MappingProxyType({}),
    **arguments: Any,
) -> Config:
    """Resolve the settings of this process and return them; each call reads everything anew."""
    environ = os.environ if environ is None else environ
    if unknown := sorted(arguments.keys() - {*SETTINGS}):
        raise ConfigError(unknown[0], f"edl has no setting named {', '.join(unknown)}")
    file_values = _read_file(environ)
    found: dict[type, dict[str, Any]] = {kind: {} for kind in KINDS}
    for name, (kind, hint) in SETTINGS.items():
        value, old = arguments.get(name), OLD_NAMES.get(name, name)
        of_environment = environ.get(variable_of(name)) or environ.get(variable_of(old))
        if value is not None:
            is_text = isinstance(value, str) and hint is not str
            found[kind][name] = (_parse if is_text else _typed)(name, value, hint)
        elif of_environment:
            found[kind][name] = _parse(variable_of(name), of_environment, hint)
        elif name in file_values or old in file_values:
            text = _as_text(file_values.get(name, file_values.get(old)))
            found[kind][name] = _parse(f"edl.toml: {name}", text, hint)
        elif defaults.get(name) is not None:
            found[kind][name] = defaults[name]
    given = {name: environ.get(variable_of(name)) for name in ("secret", "secret_file")}
    in_environment = {name: value for name, value in given.items() if value}
    _take_secret(found[Config], arguments, in_environment, file_values, defaults)
    job_settings = JobSettings(**found[JobSettings])
    return Config(**found[Config], sizes=Sizes(**found[Sizes]), job_settings=job_settings)


def _take_secret(found: dict[str, Any], *places: Mapping[str, Any]) -> None:
    # Otherwise the path in `found` becomes empty, and the secret in `found` stays as it is.
    for place in places:
        secret, path = place.get("secret"), place.get("secret_file")
        if secret is not None or path:
            break
    found["secret_file"] = str(path) if path else ""
    if not path:
        return
    found["secret"] = read_secret(path)
    if secret is not None and secret != found["secret"]:
        raise ConfigError(
            "secret_file",
            f"the secret file {path} holds another secret than EDL_SECRET; give only one of them",
        )


def misspelled(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    environ = os.environ if environ is None else environ
    known = {variable_of(name).removeprefix("EDL_"): variable_of(name) for name in SETTINGS}
    found = {}
    for variable in sorted(environ):
        prefix, _, name = variable.partition("EDL_")
        if prefix == "" and name and name not in known and name.lower() not in OLD_NAMES.values():
            for near in get_close_matches(name, known, n=1, cutoff=SIMILAR):
                found[variable] = known[near]
    return found


SIMILAR = 0.85  # of difflib's ratio, from 0 to 1
OLD_NAMES = {"borrowed_file": "lent_file"}  # of settings, in older versions of edl
KINDS = (Config, Sizes, JobSettings)
SETTINGS: Mapping[str, tuple[type, Any]] = {
    one.name: (kind, hints[one.name])
    for kind, hints in ((kind, get_type_hints(kind)) for kind in KINDS)
    for one in fields(kind)
    if not (kind is Config and one.name in ("sizes", "job_settings"))
}
OF_THE_JOB = frozenset(name for name, (kind, _) in SETTINGS.items() if kind is not Config)


@dataclass(frozen=True)
class HorovodSlot:
    address: str  # of the driver's key-value store
    port: int
    host: str  # as the host discovery script names it
    slot: int  # Horovod's local rank when it was started
    # the process's rank among all processes, the number of all processes, and the number of
    # processes on this host
    rank: int
    size: int
    local_size: int
    interface: str  # the network interface that the driver has chosen

    @property
    def driver(self) -> str:
        """The `address:port` of horovodrun's driver, unique among all drivers that live."""
        return f"{self.address}:{self.port}"


_OF_A_SLOT = {
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": "address",
    "HOROVOD_GLOO_RENDEZVOUS_PORT": "port",
    "HOROVOD_HOSTNAME": "host",
    "HOROVOD_LOCAL_RANK": "slot",
    "HOROVOD_RANK": "rank",
    "HOROVOD_SIZE": "size",
    "HOROVOD_LOCAL_SIZE": "local_size",
    "HOROVOD_GLOO_IFACE": "interface",
}


def horovod_slot(environ: Mapping[str, str] | None = None) -> HorovodSlot | None:
    environ = os.environ if environ is None else environ
    if environ.get("HOROVOD_ELASTIC") != "1" or not environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR"):
        return None
    hints = get_type_hints(HorovodSlot)
    values: dict[str, Any] = {}
    for variable, name in _OF_A_SLOT.items():
        if not environ.get(variable):
            raise ConfigError(
                variable,
                f"HOROVOD_ELASTIC is 1 and {variable} is missing: start the workers with "
                "`horovodrun --host-discovery-script ...`, or with `edl run`",
            )
        values[name] = _parse(variable, environ[variable], hints[name])
    return HorovodSlot(**values)


def horovod_size() -> int:
    return int(_parse("HOROVOD_SIZE", os.environ.get("HOROVOD_SIZE") or "1", int))


def log_of_worker() -> str:
    return os.environ.get("EDL_LOG_FILE", "")


def environment_for_worker() -> dict[str, str]:
    dropped = {*_OF_A_SLOT, "HOROVOD_ELASTIC", "HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE"}
    dropped |= {variable_of(name) for name in OF_THE_JOB}
    dropped |= {_INHERITED_TEMPLATE, STATE_VARIABLE, "EDL_DEVICE", variable_of("secret_file")}
    return {name: value for name, value in os.environ.items() if name not in dropped}


def environment() -> dict[str, str]:
    return dict(os.environ)


def take_inherited_template() -> tuple[int, int] | None:
    """Return the template process that this launcher has inherited; further calls return None."""
    said = os.environ.pop(_INHERITED_TEMPLATE, "")
    descriptor, _, pid = said.partition(":")
    return (int(descriptor), int(pid)) if said else None


def environment_at_start() -> dict[str, str]:
    """Return the environment that this process was started with, as `/proc/self/environ` has it."""
    text = Path("/proc/self/environ").read_bytes()
    pairs = (os.fsdecode(pair).partition("=") for pair in text.split(b"\0") if pair)
    return {name: value for name, _, value in pairs}


def trace_exporters() -> tuple[tuple[str, ...], ...]:
    def of(name: str) -> str:
        return os.environ.get(f"OTEL_{name}", "").strip().lower()

    names = of("TRACES_EXPORTER")
    if not names and (of("EXPORTER_OTLP_TRACES_ENDPOINT") or of("EXPORTER_OTLP_ENDPOINT")):
        names = "otlp"
    if of("SDK_DISABLED") == "true" or names in ("", "none"):
        return ()
    protocol = of("EXPORTER_OTLP_TRACES_PROTOCOL") or of("EXPORTER_OTLP_PROTOCOL")
    kinds = {"grpc": ("grpc",)}.get(protocol, ("http",) if protocol else ("http", "grpc"))
    otlp = tuple(f"otlp_proto_{kind}" for kind in kinds)
    given = [name.strip() for name in names.split(",")]
    return tuple(otlp if name == "otlp" else (name,) for name in given if name not in ("", "none"))


def set_environment(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def cache_dir() -> Path:
    return _user_dir("XDG_CACHE_HOME", ".cache")


def state_dir() -> Path:
    if given := os.environ.get(STATE_VARIABLE):
        path = Path(given)
        path.mkdir(parents=True, exist_ok=True)
    else:
        path = _user_dir("XDG_STATE_HOME", ".local/state")
    if path.stat().st_mode & 0o077:
        with contextlib.suppress(OSError):  # another's, or its file system knows no modes
            path.chmod(0o700)
    return path


def home_dir() -> str:
    try:
        return str(Path.home())
    except RuntimeError as error:
        raise ConfigError("HOME", "this user has no home directory; set HOME") from error


def _is_every_interface(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_unspecified
    except ValueError:  # a name
        return False


def _user_dir(variable: str, fallback: str) -> Path:
    try:
        base = os.environ.get(variable) or str(Path.home() / fallback)
    except RuntimeError as error:  # a container's user that has no entry in /etc/passwd
        raise ConfigError(
            variable, f"this user has no home directory to keep files in; set HOME or {variable}"
        ) from error
    path = Path(base) / "edl"
    path.mkdir(parents=True, exist_ok=True)
    return path


def _read_file(environ: Mapping[str, str]) -> dict[str, Any]:
    candidates = [Path("edl.toml")]
    if home := environ.get("XDG_CONFIG_HOME") or environ.get("HOME"):
        sub = "edl" if environ.get("XDG_CONFIG_HOME") else ".config/edl"
        candidates.append(Path(home) / sub / "edl.toml")
    for path in candidates:
        if path.is_file():
            try:
                values = tomllib.loads(path.read_text())
            except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
                raise ConfigError("file", f"{path} is not readable TOML: {error}") from error
            if unknown := sorted(set(values) - {*SETTINGS, *OLD_NAMES.values()}):
                raise ConfigError("file", f"{path} has unknown settings: {', '.join(unknown)}")
            return values
    return {}


def _as_text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _typed(name: str, value: Any, hint: Any) -> Any:
    try:
        if hint in (int, int | None):
            return operator.index(value)
        if hint == tuple[int, ...]:
            return tuple(operator.index(size) for size in value)
        if hint in (float, float | None):
            return float(value)
        if hint is bool:
            return bool(operator.index(value))
        return os.fspath(value)
    except (TypeError, ValueError):
        raise ConfigError(name, f"{name} is {value!r}; it must be {_kind(hint)}") from None


def _kind(hint: Any) -> str:
    if hint == tuple[int, ...]:
        return "whole numbers with commas between, like 1,2,4"
    kinds = {int: "an integer", float: "a number", bool: "1 or 0", str: "text"}
    return next(kind for type_, kind in kinds.items() if hint in (type_, type_ | None))


def _parse(name: str, text: str, hint: Any) -> Any:
    try:
        if hint in (int, int | None):
            return int(text)
        if hint == tuple[int, ...]:
            return tuple(int(word) for word in text.split(",") if word.strip())
        if hint in (float, float | None):
            return float(text)
        if hint is bool:
            return _TRUTH[text.strip().lower()]
    except (KeyError, ValueError):
        raise ConfigError(name, f"{name} is {text!r}; it must be {_kind(hint)}") from None
    return text
