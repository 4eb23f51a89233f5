"""Build Horovod 0.28.1 once for the frameworks of the running interpreter, and install it.

The cache entry of a wheel is named by everything that decides its content (:class:`Recipe`). It
appears by one rename, so it is complete or does not exist; builds of the same wheel wait for each
other. A wheel from the cache may be of another machine: it is tried by an import, and built anew if
that fails.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rich.console import Console

from edl import config
from edl.errors import BuildError
from edl.horovod_build import MARKER, installed_marker
from edl.install import toolchain

# ------------------------------------------------------------
# Apply edl's patches to the source of Horovod 0.28.1 before it is built.
#
# Horovod's last release is from 2023: it does not build with today's PyTorch and TensorFlow, and
# its failures can abort, freeze or mislead a process. `patches/NN-name.patch` are unified diffs,
# applied in the order of their numbers. The text above each diff says why it is made, and after
# `Lost without it:` what edl cannot promise on a Horovod without it. A build calls `wanted`,
# `apply` and `write_marker`. All patches must fit exactly, or nothing is built.
#
# The wheel has a file `horovod/edl_edits.json` with the names of the patches; see `horovod_build`.
# A build for CPUs leaves out what only operations on GPUs need (`GPU_ONLY`), so that a change of it
# makes no other wheel for CPUs.


FOLDER = Path(__file__).with_name("patches")
NO_XLA_OPS = "no-xla-ops"
GPU_ONLY = frozenset({"broken-ring-ends-nccl"})
APPLY_TIMEOUT_S = 60.0
_NAME = re.compile(r"\d\d-(?P<name>[a-z0-9-]+)\.patch")
_LOST = re.compile(r"^Lost without it: (.+?)\n\n", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Patch:
    """One patch to Horovod's source."""

    name: str  # without its number
    path: Path
    lost: str  # what edl cannot promise without it; empty: it matters only for the build


@cache
def patches(folder: Path = FOLDER) -> tuple[Patch, ...]:
    """Return all patches in a folder in the order of their names, in which they are applied."""
    found = []
    for path in sorted(folder.glob("*.patch")):
        named = _NAME.fullmatch(path.name)
        if named is None:
            raise BuildError(f"{path} is not called NN-name.patch; install edl again")
        reason, _, _ = path.read_text(encoding="utf-8").partition("--- a/")
        lost = _LOST.search(reason)
        found.append(Patch(named["name"], path, " ".join(lost[1].split()) if lost else ""))
    return tuple(found)


def fingerprint(folder: Path = FOLDER, *, gpu: bool) -> str:
    """Return a hash of the file names and contents of the patches that a build chooses from."""
    chosen = [patch.path for patch in patches(folder) if gpu or patch.name not in GPU_ONLY]
    found = [(path.name, path.read_bytes()) for path in chosen]
    return hashlib.sha256(repr(found).encode()).hexdigest()[:12]


def wanted(source: Path, tensorflow_include: Path | None, *, gpu: bool) -> tuple[Patch, ...]:
    without_xla = False
    if tensorflow_include is not None:  # which may lack headers of XLA that Horovod includes
        text = (source / "horovod/tensorflow/xla_mpi_ops.cc").read_text(encoding="utf-8")
        headers = re.findall(r'^#include "(tensorflow/[^"]+)"', text, re.MULTILINE)
        without_xla = not all((tensorflow_include / header).is_file() for header in headers)
    needless = (frozenset() if gpu else GPU_ONLY) | ({NO_XLA_OPS} if not without_xla else set())
    return tuple(patch for patch in patches() if patch.name not in needless)


def missing(marker: Mapping[str, Any]) -> tuple[Patch, ...]:
    applied, gpu = marker.get("edits", ()), marker.get("gpu", True)
    return tuple(
        patch
        for patch in patches()
        if patch.lost and patch.name not in applied and (gpu or patch.name not in GPU_ONLY)
    )


def apply(source: Path, chosen: Iterable[Patch]) -> None:
    for patch in chosen:
        command = ["patch", "--strip=1", "--fuzz=0", "--forward", "--batch"]
        try:
            done = subprocess.run(
                [*command, f"--directory={source}", f"--input={patch.path}"],
                capture_output=True,
                text=True,
                timeout=APPLY_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BuildError(
                f"the program `patch` did not apply {patch.path.name} to Horovod: {error}"
            ) from error
        if done.returncode != 0:
            said = " / ".join((done.stdout + done.stderr).strip().splitlines())
            raise BuildError(
                f"{patch.path.name} does not fit Horovod ({said}); this is not the source of "
                "Horovod 0.28.1 that edl knows. Remove it from the cache and try again"
            )


def write_marker(source: Path, chosen: Iterable[Patch], key: str, *, gpu: bool) -> None:
    names = sorted(patch.name for patch in chosen)
    marker = {"edits": names, "fingerprint": fingerprint(gpu=gpu), "gpu": gpu, "key": key}
    (source / "horovod" / MARKER).write_text(json.dumps(marker, indent=1) + "\n", encoding="utf-8")


VERSION = "0.28.1"
SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"  # of PyPI's sdist
REQUIREMENTS = ("cloudpickle", "psutil", "pyyaml", "packaging", "cffi>=1.4.0")  # of Horovod itself
BUILD_TOOLS = ("setuptools<81", "wheel")  # 81 drops pkg_resources, which setup_requires needs
CMAKE = "cmake>=3.18,<4"  # 4 refuses the old cmake_minimum_required of the bundled Gloo
VARIABLES = (  # Horovod's own build variables that are passed through ...
    "HOROVOD_BUILD_ARCH_FLAGS",
    "HOROVOD_CPU_OPERATIONS",
    "HOROVOD_DEBUG",
    "HOROVOD_WITHOUT_NVTX",
)
GPU_VARIABLES = (  # ... and those that need --gpu
    "HOROVOD_ALLOW_MIXED_GPU_IMPL",
    "HOROVOD_BUILD_CUDA_CC_LIST",
    "HOROVOD_CUDA_HOME",
    "HOROVOD_GPU",
    "HOROVOD_GPU_ALLGATHER",
    "HOROVOD_GPU_ALLREDUCE",
    "HOROVOD_GPU_ALLTOALL",
    "HOROVOD_GPU_BROADCAST",
    "HOROVOD_GPU_OPERATIONS",
    "HOROVOD_GPU_REDUCESCATTER",
    "HOROVOD_NCCL_HOME",
    "HOROVOD_NCCL_INCLUDE",
    "HOROVOD_NCCL_LIB",
    "HOROVOD_NCCL_LINK",
    "HOROVOD_NVTX_INCLUDE",
    "HOROVOD_ROCM_HOME",
)


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the content of a wheel, besides Horovod's version and the patches."""

    python: str  # the cache tag and ABI flags of the interpreter, like "cpython-312"
    machine: str  # its architecture, like "x86_64"
    torch: str | None  # its version; None: the wheel is built without it
    tensorflow: str | None
    variables: tuple[tuple[str, str], ...]  # of Horovod's build, those that the user has set

    @property
    def gpu(self) -> bool:
        return any(name in GPU_VARIABLES for name, _ in self.variables)

    @property
    def key(self) -> str:
        patches = fingerprint(gpu=self.gpu)
        parts = [VERSION, patches, self.python, self.machine]
        parts.append(f"torch{self.torch}" if self.torch else "notorch")
        parts.append(f"tensorflow{self.tensorflow}" if self.tensorflow else "notensorflow")
        if self.variables:
            parts.append(hashlib.sha256(repr(self.variables).encode()).hexdigest()[:8])
        return "-".join(parts)

    @property
    def environment(self) -> dict[str, str]:
        return {
            f"HOROVOD_WITH{'' if self.torch else 'OUT'}_PYTORCH": "1",
            f"HOROVOD_WITH{'' if self.tensorflow else 'OUT'}_TENSORFLOW": "1",
            "HOROVOD_WITHOUT_MXNET": "1",
            "HOROVOD_WITHOUT_MPI": "1",
            "HOROVOD_WITH_GLOO": "1",
            **dict(self.variables),
        }


def recipe(*, gpu: bool, environ: Mapping[str, str]) -> Recipe:
    torch, tensorflow = framework_version("torch"), framework_version("tensorflow")
    if torch is None and tensorflow is None:
        raise BuildError(
            f"neither torch nor tensorflow is importable by {sys.executable}; install the one "
            "you train with first, for example `pip install torch`"
        )
    names = VARIABLES + GPU_VARIABLES if gpu else VARIABLES
    variables = {name: environ[name] for name in names if environ.get(name)}
    operations = [name for name in variables if name.startswith("HOROVOD_GPU_")]
    if gpu and not operations:
        variables["HOROVOD_GPU_OPERATIONS"] = "NCCL"
    return Recipe(
        python=f"{sys.implementation.cache_tag}{getattr(sys, 'abiflags', '')}",
        machine=platform.machine(),
        torch=torch,
        tensorflow=tensorflow,
        variables=tuple(sorted(variables.items())),
    )


def framework_version(module: str) -> str | None:
    if importlib.util.find_spec(module) is None:
        return None
    for name in importlib.metadata.packages_distributions().get(module, ()):
        if name.replace("_", "-").startswith(module):
            return importlib.metadata.version(name)
    return "unknown"


def cached(wanted: Recipe) -> Path | None:
    wheels = sorted((cache_folder() / wanted.key).glob("horovod-*.whl"))
    return wheels[0] if wheels else None


def build(wanted: Recipe, *, force: bool, console: Console) -> Path:
    if not force and (wheel := cached(wanted)):
        console.print(f"Horovod {VERSION}: wheel from the cache, {wheel}", soft_wrap=True)
        return wheel
    if missing := [tool for tool in toolchain.tools() if not tool.found]:
        raise BuildError(
            f"cannot compile Horovod: {', '.join(tool.name for tool in missing)} not found; "
            + "; ".join(tool.remedy for tool in missing)
        )
    headers = _tensorflow_include(wanted)
    # Horovod's build files separate TensorFlow's flags by spaces: it would fail after minutes.
    if headers is not None and len(str(headers).split()) > 1:
        raise BuildError(
            f"Horovod cannot be compiled for the TensorFlow in {headers.parent}, for that path has "
            "a space in it; put the virtual environment into a folder without one"
        )
    environ = config.environment() | wanted.environment
    for_cuda = wanted.gpu and environ.get("HOROVOD_GPU") != "ROCM"
    if for_cuda and (failure := toolchain.cuda_failure(environ)):
        raise BuildError(f"cannot compile Horovod for GPUs: {failure}")
    with locked(cache_folder() / f"{wanted.key}.lock", "builds the same wheel", console):
        if not force and (wheel := cached(wanted)):  # built by the one we waited for
            return wheel
        return _Build(wanted, console).run()


class _Build:
    """One build of a wheel, in a temporary folder beside the cache entries; `run` does it."""

    def __init__(self, wanted: Recipe, console: Console) -> None:
        self.recipe = wanted
        self.console = console
        self.log = cache_folder() / f"{wanted.key}.log"

    def run(self) -> Path:
        self.log.write_text("")
        # Horovod's CMake takes its directory for a regular expression: no "+cpu" in the path.
        prefix = f".build-{hashlib.sha256(self.recipe.key.encode()).hexdigest()[:12]}-"
        for left_over in cache_folder().glob(f"{prefix}*"):  # of a killed build; we hold its lock
            shutil.rmtree(left_over, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=prefix, dir=cache_folder()) as folder:
            work = Path(folder)
            try:
                self._run(work)
            except toolchain.CommandFailed as error:
                raise BuildError(
                    f"building Horovod {VERSION} failed: {toolchain.error_line(error.tail)} "
                    f"(all of it in {self.log})"
                ) from error
            except OSError as error:
                raise BuildError(
                    f"building Horovod {VERSION} failed: {error} (the log is {self.log})"
                ) from error
            entry = cache_folder() / self.recipe.key
            if entry.exists():  # --force
                entry.rename(work / "replaced")
            (work / "wheel").rename(entry)
        wheel = cached(self.recipe)
        assert wheel is not None
        return wheel

    def _run(self, work: Path) -> None:
        tools = work / "tools"
        cmake = () if toolchain.system_cmake() else (CMAKE,)
        pip_install = ("install", "--target", str(tools), *BUILD_TOOLS, *cmake, *REQUIREMENTS)
        self._pip(*pip_install, what="fetching build tools", env=config.environment())
        env = self._environment(tools) | nccl_variables(self.recipe, work / "nccl")
        source = self._source(work, env)
        gpu = self.recipe.gpu
        patches = wanted(source, _tensorflow_include(self.recipe), gpu=gpu)
        apply(source, patches)
        write_marker(source, patches, self.recipe.key, gpu=gpu)
        out = work / "wheel"
        self.console.print("compiling takes a minute or two, longer for GPUs", soft_wrap=True)
        names = [f"PyTorch {self.recipe.torch}"] if self.recipe.torch else []
        names += [f"TensorFlow {self.recipe.tensorflow}"] if self.recipe.tensorflow else []
        self._pip(
            "wheel",
            "--verbose",
            "--no-build-isolation",
            "--no-deps",
            "--no-cache-dir",
            "--wheel-dir",
            str(out),
            str(source),
            what=f"compiling Horovod {VERSION} for {' and '.join(names)}",
            env=env,
        )
        self._check(next(out.glob("*.whl")))

    def _check(self, wheel: Path) -> None:
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
        libraries = {"torch": self.recipe.torch, "tensorflow": self.recipe.tensorflow}
        for framework, version in libraries.items():
            start = f"horovod/{framework}/mpi_lib"
            if version and not any(n.startswith(start) and n.endswith(".so") for n in names):
                raise BuildError(
                    f"Horovod {VERSION} was built, but its wheel has no {start}*.so for "
                    f"{framework} {version}; the log is {self.log}"
                )

    def _source(self, work: Path, env: Mapping[str, str]) -> Path:
        archive = cache_folder() / f"horovod-{VERSION}.tar.gz"
        if not archive.is_file() or _sha256(archive) != SHA256:
            self._download(work, archive, env)
        with tarfile.open(archive) as tar:
            if hasattr(tarfile, "data_filter"):
                tar.extractall(work / "source", filter="data")
            else:  # Python 3.11.0 to 3.11.3; the checksum is ours, so the content is known
                tar.extractall(work / "source")
        return work / "source" / f"horovod-{VERSION}"

    def _download(self, work: Path, archive: Path, env: Mapping[str, str]) -> None:
        # pip knows the user's index, proxy and certificates. It asks each source distribution
        # for its metadata; without isolation that takes our setuptools and about a second.
        requirement = work / "requirements.txt"
        requirement.write_text(f"horovod=={VERSION} --hash=sha256:{SHA256}\n")
        self._pip(
            "download",
            "--no-deps",
            "--no-binary",
            "horovod",
            "--no-build-isolation",
            "--require-hashes",
            "--dest",
            str(work / "download"),
            "--requirement",
            str(requirement),
            what=f"downloading Horovod {VERSION}",
            env=env,
        )
        fetched = work / "download" / archive.name
        if _sha256(fetched) != SHA256:
            raise BuildError(
                f"the downloaded {archive.name} has the wrong checksum {_sha256(fetched)}; "
                f"expected {SHA256}. Check the package index that pip uses"
            )
        fetched.replace(archive)

    def _pip(self, *arguments: str, what: str, env: Mapping[str, str]) -> None:
        _pip(*arguments, what=what, log=self.log, env=env, console=self.console)

    def _environment(self, tools: Path) -> dict[str, str]:
        env = {k: v for k, v in config.environment().items() if not k.startswith("HOROVOD_")}
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(tools), env.get("PYTHONPATH"))))
        if self.recipe.gpu:
            env["PATH"] = toolchain.cuda_path(env | self.recipe.environment)
        env["PATH"] = os.pathsep.join(filter(None, (str(tools / "bin"), env.get("PATH"))))
        env = toolchain.with_make_flags(env)
        if cuda := self.recipe.environment.get("HOROVOD_CUDA_HOME"):
            env.setdefault("CUDA_HOME", cuda)
        env["PYTHONUNBUFFERED"] = "1"
        return env | self.recipe.environment


def _tensorflow_include(wanted: Recipe) -> Path | None:
    if wanted.tensorflow is None:
        return None
    spec = importlib.util.find_spec("tensorflow")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "include"


def nccl_variables(wanted: Recipe, folder: Path) -> dict[str, str]:
    """Return the build variables by which Horovod uses the NCCL of PyTorch's own wheels."""
    # The process then has one NCCL, and nobody has to install another.
    names = [name for name, value in wanted.variables if value == "NCCL"]
    named = any(name.startswith("HOROVOD_NCCL_") for name, _ in wanted.variables)
    package = toolchain.packaged_nccl() if names and not named else None
    if package is None:
        return {}
    (folder / "lib").mkdir(parents=True)
    (folder / "include").symlink_to(package / "include")
    # the name that Horovod's build looks for, which the package lacks
    (folder / "lib/libnccl.so").symlink_to(package / "lib/libnccl.so.2")
    # Without LINK it would prefer a static NCCL of the system.
    return {"HOROVOD_NCCL_HOME": str(folder), "HOROVOD_NCCL_LINK": "SHARED"}


def cache_folder() -> Path:
    path = config.cache_dir() / "wheels"
    path.mkdir(parents=True, exist_ok=True)
    return path


@contextmanager
def locked(path: Path, does: str, console: Console) -> Iterator[None]:
    """Hold an exclusive lock on a file during the `with` block; entering the block waits for it."""
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            console.print(f"another process {does}; waiting for it ...")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# ------------------------------------------------------------
# Install the wheel into the running interpreter, and see that it works: `provide`.

IMPORT_TIMEOUT_S = 120.0  # a first import of TensorFlow on a slow disk


def provide(wanted: Recipe, *, force: bool, console: Console) -> None:
    # If one from the cache cannot be imported here, for example because it was built for another
    # processor, it is built again and replaced in the cache.
    place = hashlib.sha256(sys.prefix.encode()).hexdigest()[:12]
    lock = cache_folder() / f"install-{place}.lock"
    with locked(lock, "installs Horovod for this interpreter", console):
        if not force and is_installed(wanted) and not import_failures(wanted):
            console.print(f"Horovod {VERSION} of this recipe is already installed")
            return
        check_writable_interpreter()
        is_built = force or cached(wanted) is None
        _install(build(wanted, force=force, console=console), console)
        failures = import_failures(wanted)
        if failures and not is_built:
            console.print(f"the wheel from the cache fails here: {failures[0]}", soft_wrap=True)
            _install(build(wanted, force=True, console=console), console)
            failures = import_failures(wanted)
        if not failures:
            return
        if not wanted.gpu:
            raise BuildError(f"Horovod was built and installed, but {failures[0]}")
        console.print(f"installed, but on this machine {failures[0]}", soft_wrap=True)


def is_installed(wanted: Recipe) -> bool:
    return bool(installed_marker().get("key") == wanted.key)


def import_failures(wanted: Recipe) -> list[str]:
    frameworks = {"torch": wanted.torch, "tensorflow": wanted.tensorflow}
    failures = {one: import_failure(one) for one, version in frameworks.items() if version}
    return [f"`import horovod.{one}` fails: {why}" for one, why in failures.items() if why]


def import_failure(module: str) -> str:
    command = [sys.executable, "-c", f"import horovod.{module}"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=IMPORT_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {IMPORT_TIMEOUT_S:g} s"
    if done.returncode == 0:
        return ""
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"exit code {done.returncode}"


def check_writable_interpreter() -> None:
    """Raise an error if pip may not install packages into this interpreter (PEP 668)."""
    # before the build, so that nobody learns it after minutes of compiling
    marker = Path(sysconfig.get_path("stdlib")) / "EXTERNALLY-MANAGED"
    if sys.prefix == sys.base_prefix and marker.is_file():
        raise BuildError(
            f"{sys.executable} belongs to the operating system, which lets pip install nothing; "
            "use a virtual environment: python3 -m venv .venv"
        )


def _install(wheel: Path, console: Console) -> None:
    log, env = wheel.with_name("install.log"), config.environment()
    try:
        what = "installing what Horovod requires"
        _pip("install", *REQUIREMENTS, what=what, log=log, env=env, console=console)
        # --force-reinstall: pip takes a wheel of the version that it has already for the same
        again = ("install", "--force-reinstall", "--no-deps", str(wheel))
        _pip(*again, what="installing Horovod", log=log, env=env, console=console)
    except toolchain.CommandFailed as error:
        raise BuildError(
            f"pip could not install {wheel.name} into {sys.executable}: "
            f"{toolchain.error_line(error.tail)} (all of it in {log})"
        ) from error


def _pip(*arguments: str, what: str, log: Path, env: Mapping[str, str], console: Console) -> None:
    command, *rest = arguments
    pip = [sys.executable, "-m", "pip", command, "--retries", "10", *rest]
    toolchain.run_logged(pip, what=what, log=log, env=env, console=console)
