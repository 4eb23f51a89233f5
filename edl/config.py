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

    job: str | None = None
    cluster: str | None = None  # that commands are about; None: the only one that the user knows
    zookeeper: str | None = None  # "host:port,host:port"; None: the local server of this user
    host: str = ""  # logical host name of this process; default: the machine's
    address: str = ""  # of this host, for other workers; empty: the launcher finds it
    network_interface: str = ""  # that has the address; empty: the one towards ZooKeeper
    slot: int = 0  # number of the slot on this host, stable for the process's life
    device: int | None = None  # that the agent has given to this worker; None: none
    attempt_id: str = ""  # unique token that the agent gives to one start of one worker process
    run: str = ""  # token of the start of the job; a worker joins no other start of that name
    secret: str | None = field(default=None, repr=False)  # needed to read or change the job
    secret_file: str = ""  # a file, or a pipe, that holds the secret; empty: there is none
    # For jobs that horovodrun starts; `edl run` has options for them.
    hosts: str = ""  # "host:slots,host:slots": what `edl-discover` may offer to the driver

    connect_timeout_s: float = setting(10.0, "first connection to ZooKeeper", most=MAX_WAIT_S)
    backoff_max_s: float = 30.0  # longest pause of a slot whose workers die, before the next start

    keep_jobs: int = setting(100, "so many ended jobs, the newest, stay in ZooKeeper", least=0)
    keep_jobs_s: float = 604800.0  # and each so long after its end

    borrowed_file: str = ""  # a file with the number of slots that the job borrows on this host
    reclaim_s: float = 30.0  # to give borrowed slots back, unless a request says otherwise
    leave_within_s: float | None = None  # for the workers of a host to leave, after a signal to
    # its agent; None: as long as it takes

    metrics_port: int | None = setting(
        None, "where an agent serves the job's metrics; 0: at any port", least=0, most=65535
    )

    # no answer for this long, from a worker in whose ring no step completes and that has left
    # ZooKeeper: it is frozen, and its agent ends it; three times as long when it has not left
    frozen_s: float = 10.0
    suspended_s: float = setting(
        1.0, "when SIGSTOP suspends a worker so long, its agent kills it; 0: never", least=0
    )
    stack_signal: int = 40  # SIGRTMIN + 6: a worker writes its stacks; 0: no signal
    stacks: str = ""  # the file for the stacks; the agent sets it
    log_file: str = ""  # the file for a worker's output; the agent sets it
    trained_file: str = ""  # the file that a worker creates when it has trained a step
    imports_file: str = ""  # the file in which a worker lists what it has imported
    registers_at_s: float | None = None  # when a worker may register, by the monotonic clock
    # its training thread draws the numbers that the script's seeds give, as all others do
    same_random: bool = False
    log_mb: int = setting(100, "when a worker's log is so long, in MB, a new one begins", least=1)

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
