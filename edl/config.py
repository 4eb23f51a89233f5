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

from edl.core.job_spec import JobSettings
from edl.core.settings import MOST_WAIT_S, check_settings, setting
from edl.core.settings import variable as variable_of
from edl.core.sizes import Sizes
from edl.errors import ConfigError
from edl.secret_file import LEAST_SECRET, read_secret

LOOPBACK = "127.0.0.1"
_INHERITED_TEMPLATE = "EDL_INHERITED_TEMPLATE"  # SOCKET:PROCESS
STATE_VARIABLE = "EDL_STATE_DIR"  # of the agents of `edl host`, whatever a manifest says of HOME
_TRUTH = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


@dataclass(frozen=True)
class Config:
    """The resolved settings of one process, from :func:`load`; docs/reference/settings.md has all.

    Times are in seconds. A field is set by the environment variable ``EDL_`` + the field's name in
    capitals.

    The fields from ``job`` to ``secret`` say which job this process belongs to; the agent (``edl
    run``, ``edl join``) sets them for the workers that it starts. The secret of other processes may
    come from ``secret_file`` instead. Without ``job`` a script is a job of one worker and needs no
    ZooKeeper. ``sizes`` (the allowed numbers of workers) and ``job_settings`` count only in a
    process that starts a job; they are stored in the job's record.

    Raises:
        ConfigError: a value is out of range; or the address or the secret cannot be used.
    """

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

    connect_timeout_s: float = setting(10.0, "first connection to ZooKeeper", most=MOST_WAIT_S)
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
        if self.secret is not None and len(self.secret) < LEAST_SECRET:
            raise ConfigError(
                "secret",
                f"EDL_SECRET has {len(self.secret)} characters and needs {LEAST_SECRET}: who "
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
        """The IPv4 address or name at which this worker listens and other workers reach it.

        The launcher of the worker sets it; without a launcher it is 127.0.0.1.
        """
        return self.address or LOOPBACK


def load(
    environ: Mapping[str, str] | None = None,
    defaults: Mapping[str, Any] = MappingProxyType({}),
    **arguments: Any,
) -> Config:
    """Resolve the settings of this process and return them; each call reads everything anew.

    Each setting is taken from ``arguments``, else from the environment, the settings file,
    ``defaults``, or its declared default, in this order. The secret and the file with the secret
    count as one setting: the first of these places that has one of them decides.

    Args:
        environ: environment variables by name; None: those of this process.
        defaults: values by setting that replace the declared defaults; None counts as absent.
        **arguments: values by setting, such as the options of a command; None counts as absent. A
            text is parsed as one of the environment is.

    Raises:
        ConfigError: ``arguments`` or the file has an unknown setting, a value has the wrong type or
            range, the file is not readable TOML, the file with the secret cannot be used, or it
            holds another secret than the one that is given beside it.
    """
    environ = os.environ if environ is None else environ
    if unknown := sorted(arguments.keys() - {*SETTINGS}):
        raise ConfigError(unknown[0], f"edl has no setting named {', '.join(unknown)}")
    file_values = _read_file(environ)
    found: dict[type, dict[str, Any]] = {kind: {} for kind in KINDS}
    for name, (kind, hint) in SETTINGS.items():
        given, old = arguments.get(name), OLD_NAMES.get(name, name)
        of_environment = environ.get(variable_of(name)) or environ.get(variable_of(old))
        if given is not None:
            is_text = isinstance(given, str) and hint is not str
            found[kind][name] = (_parse if is_text else _typed)(name, given, hint)
        elif of_environment:
            found[kind][name] = _parse(variable_of(name), of_environment, hint)
        elif name in file_values or old in file_values:
            text = _as_text(file_values.get(name, file_values.get(old)))
            found[kind][name] = _parse(f"edl.toml: {name}", text, hint)
        elif defaults.get(name) is not None:
            found[kind][name] = defaults[name]
    _take_secret(found[Config], arguments, _of_environment(environ), file_values, defaults)
    job_settings = JobSettings(**found[JobSettings])
    return Config(**found[Config], sizes=Sizes(**found[Sizes]), job_settings=job_settings)


def _of_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings ``secret`` and ``secret_file``, as far as ``environ`` has them, by name.

    An empty value counts as absent.
    """
    given = {name: environ.get(variable_of(name)) for name in ("secret", "secret_file")}
    return {name: value for name, value in given.items() if value}


def _take_secret(found: dict[str, Any], *places: Mapping[str, Any]) -> None:
    """Let the first place that gives the secret, or a file with it, decide the secret in ``found``.

    If that place gives a file, its path and the secret in it are put into ``found``. Otherwise the
    path in ``found`` becomes empty, and the secret in ``found`` stays as it is.

    Args:
        found: the values of the settings of this process, by name; they may be changed.
        *places: where settings may be given, the one that counts most first; each has its values by
            setting.

    Raises:
        ConfigError: the file cannot be used, or holds another secret than the one beside it.
    """
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
    """Return the environment variables that look like misspelled settings of edl.

    Such a variable begins with ``EDL_``, belongs to no setting, and differs from the variable of
    one by a letter or two. It may be a variable of the user's script.

    Args:
        environ: environment variables by name; None: those of this process.

    Returns:
        By name of each such variable, the setting's variable that it is most like.
    """
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
    """The slot that elastic ``horovodrun`` gives to a process; :func:`horovod_slot` returns it.

    The values are as of the start of the process: later the driver may give it another rank.

    Attributes:
        address, port: the address and port of the key-value store of horovodrun's driver.
        host: the name of the host, as the host discovery script prints it.
        slot: Horovod's local rank when the process was started, from 0.
        rank, size, local_size: the process's rank among all processes, the number of all processes,
            and the number of processes on this host.
        interface: the network interface that the driver has chosen.
    """

    address: str  # of the driver's key-value store
    port: int
    host: str  # as the host discovery script names it
    slot: int  # Horovod's local rank when it was started
    rank: int
    size: int
    local_size: int
    interface: str  # the network interface that the driver has chosen

    @property
    def driver(self) -> str:
        """The ``address:port`` of horovodrun's driver, unique among all drivers that live."""
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
    """Return the slot of elastic ``horovodrun`` that this process was started for.

    Args:
        environ: environment variables by name; None: those of this process.

    Returns:
        The slot, or None if elastic ``horovodrun`` has not started this process.

    Raises:
        ConfigError: a variable is missing or is no number.
    """
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
    """Return HOROVOD_SIZE, the number of workers as a launcher that is not elastic has set it.

    If the variable is unset or empty, the number is 1.

    Raises:
        ConfigError: the variable is no integer.
    """
    return int(_parse("HOROVOD_SIZE", os.environ.get("HOROVOD_SIZE") or "1", int))


def log_of_worker() -> str:
    """Return the path of this worker's log file, as the agent that started the worker has set it.

    It is empty if no agent has set it.
    """
    return os.environ.get("EDL_LOG_FILE", "")


def environment_for_worker() -> dict[str, str]:
    """Return a copy of this process's environment, to start a worker with.

    The copy lacks the variables in which horovodrun describes this process's slot, the device that
    this process was given, the settings of the job, which a worker reads from the job's record, the
    template process of this launcher, its state directory, and the path of the file with the
    secret. The caller adds EDL_SECRET and the other settings of the worker.
    """
    dropped = {*_OF_A_SLOT, "HOROVOD_ELASTIC", "HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE"}
    dropped |= {variable_of(name) for name in OF_THE_JOB}
    dropped |= {_INHERITED_TEMPLATE, STATE_VARIABLE, "EDL_DEVICE", variable_of("secret_file")}
    return {name: value for name, value in os.environ.items() if name not in dropped}


def environment() -> dict[str, str]:
    """Return a copy of this process's environment, to build the environment of a child from."""
    return dict(os.environ)


def take_inherited_template() -> tuple[int, int] | None:
    """Return the template process that this launcher has inherited; further calls return None.

    A template is a process that has imported the framework and forks into workers. A launcher that
    edl's own tests fork from a template inherits a second one. The environment variable that names
    it is removed.

    Returns:
        The file descriptor of the template's socket and the template's process id; None if this
        launcher has inherited no template or the function was called before.
    """
    said = os.environ.pop(_INHERITED_TEMPLATE, "")
    descriptor, _, pid = said.partition(":")
    return (int(descriptor), int(pid)) if said else None


def environment_at_start() -> dict[str, str]:
    """Return the environment that this process was started with, as ``/proc/self/environ`` has it.

    Variables that the process itself has set or unset do not show there.
    """
    text = Path("/proc/self/environ").read_bytes()
    pairs = (os.fsdecode(pair).partition("=") for pair in text.split(b"\0") if pair)
    return {name: value for name, _, value in pairs}


def trace_exporters() -> tuple[tuple[str, ...], ...]:
    """Return the OpenTelemetry exporters that spans go to; empty: the environment asks for none.

    The variables are OpenTelemetry's own: ``OTEL_TRACES_EXPORTER`` (names; ``none``) or else an
    endpoint, and ``OTEL_SDK_DISABLED``. For each exporter the result has the names that its package
    may have registered, the preferred one first: OTLP over HTTP before OTLP over gRPC, unless
    ``OTEL_EXPORTER_OTLP_PROTOCOL`` says another.
    """

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
    """Set environment variables of this process, for edl, child processes and C++ libraries.

    Horovod's library reads them by ``getenv``. ``values`` maps names to values; a value of None
    removes the variable, if it is set.
    """
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def cache_dir() -> Path:
    """Return the user's cache directory of edl, and create it if it does not exist.

    It is ``$XDG_CACHE_HOME/edl``, or ``~/.cache/edl`` if that variable is not set.

    Raises:
        ConfigError: the user has no home directory, and XDG_CACHE_HOME is not set.
        OSError: the directory cannot be created.
    """
    return _user_dir("XDG_CACHE_HOME", ".cache")


def state_dir() -> Path:
    """Return the user's state directory of edl, and create it if it does not exist.

    It is ``$EDL_STATE_DIR``, which `edl host` sets for its agents, else ``$XDG_STATE_HOME/edl``, or
    ``~/.local/state/edl`` if neither is set. It holds secrets and the output of scripts, so access
    by other users is removed, whatever the umask; if the file system refuses that, no error is
    raised.

    Raises:
        ConfigError: the user has no home directory, and XDG_STATE_HOME is not set.
        OSError: the directory cannot be created.
    """
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
    """Return the path of the user's home directory: HOME, or else that in the user database.

    Raises:
        ConfigError: the user has no home directory.
    """
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
    """Return ``value``, from the settings file, as text in the format of an environment variable.

    A list becomes its items with commas between them, like "1,2,4"; any other value its ``str()``.
    """
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _typed(name: str, value: Any, hint: Any) -> Any:
    """Return the value that a program gives for the setting ``name``, as a value of type ``hint``.

    NumPy's numbers, lists and paths are taken, too.

    Raises:
        ConfigError: the value has another type.
    """
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
    """Return the words that an error message uses for the values of a setting.

    ``hint`` is the type of the setting: ``int`` gives "an integer".
    """
    if hint == tuple[int, ...]:
        return "whole numbers with commas between, like 1,2,4"
    kinds = {int: "an integer", float: "a number", bool: "1 or 0", str: "text"}
    return next(kind for type_, kind in kinds.items() if hint in (type_, type_ | None))


def _parse(name: str, text: str, hint: Any) -> Any:
    """Return the value of type ``hint`` that ``text`` stands for.

    Raises:
        ConfigError: it stands for none; ``name`` is that of the setting, or says where it was read.
    """
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
