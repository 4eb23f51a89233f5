"""What `edl build-horovod` does: when it builds, what it tries, and what it refuses."""

from __future__ import annotations

import io
import threading
from pathlib import Path

import pytest
from rich.console import Console

from edl.errors import BuildError
from edl.install import horovod_wheel
from edl.install.horovod_wheel import Recipe, provide

RECIPE = Recipe("cpython-311", "x86_64", "2.13.0", "2.21.0", ())
GPU = Recipe("cpython-311", "x86_64", "2.13.0", None, (("HOROVOD_GPU_OPERATIONS", "NCCL"),))


class Output(io.StringIO):
    """The text that the user sees; ``both_wait`` is set once two calls say that they wait."""

    def __init__(self) -> None:
        super().__init__()
        self.both_wait = threading.Event()

    def write(self, text: str) -> int:
        written = super().write(text)
        if self.getvalue().count("waiting for it") == 2:
            self.both_wait.set()
        return written


class Machine:
    """Stands for pip, the compiler and the cache of wheels.

    Attributes:
        cached: whether the cache has the wheel.
        installed: whether it is installed.
        works: whether an import works; of a wheel that is built here it is ``built_works``.
        did: what was done.
        may_end: an installation ends only once this is set.
    """

    def __init__(self, cached: bool, works: bool = True, built_works: bool = True) -> None:
        self.cached, self.installed, self.works = cached, False, works
        self.built_works = built_works
        self.did: list[str] = []
        self.output = Output()
        self.may_end = threading.Event()
        self.may_end.set()

    def build(self, wanted: Recipe, *, force: bool, console: Console) -> Path:
        if force or not self.cached:
            self.did.append("build")
            self.cached, self.works = True, self.built_works
        return Path("horovod.whl")

    def install(self, wheel: Path, console: Console) -> None:
        self.did.append("install begins")
        assert self.may_end.wait(60)
        self.did.append("install ends")
        self.installed = True

    def provide(self, wanted: Recipe = RECIPE, force: bool = False) -> str:
        provide(wanted, force=force, console=Console(file=self.output, width=200))
        return self.output.getvalue()


@pytest.fixture
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Machine:
    one = Machine(*request.param)
    monkeypatch.setattr(horovod_wheel, "build", one.build)
    monkeypatch.setattr(horovod_wheel, "cached", lambda wanted: "wheel" if one.cached else None)
    monkeypatch.setattr(horovod_wheel, "_install", one.install)
    monkeypatch.setattr(horovod_wheel, "is_installed", lambda wanted: one.installed)
    failure = "Illegal instruction"
    monkeypatch.setattr(horovod_wheel, "import_failure", lambda name: "" if one.works else failure)
    monkeypatch.setattr(horovod_wheel, "check_writable_interpreter", lambda: None)
    return one


INSTALL = ["install begins", "install ends"]


@pytest.mark.parametrize("machine", [(False,)], indirect=True)
def test_it_is_built_and_installed_once(machine: Machine) -> None:
    machine.provide()
    assert machine.did == ["build", *INSTALL]
    assert "is already installed" in machine.provide()
    assert machine.did == ["build", *INSTALL]
    machine.provide(force=True)
    assert machine.did == ["build", *INSTALL] * 2


@pytest.mark.parametrize("machine", [(True, False)], indirect=True)
def test_a_wheel_of_another_machine_is_built_again(machine: Machine) -> None:
    shown = machine.provide()
    assert machine.did == [*INSTALL, "build", *INSTALL]
    assert "`import horovod.torch` fails: Illegal instruction" in shown


@pytest.mark.parametrize("machine", [(True, True)], indirect=True)
def test_what_is_installed_but_fails_is_not_said_to_be_there(machine: Machine) -> None:
    machine.provide()
    machine.works = False  # the home directory is mounted on another machine
    assert "already" not in machine.provide()
    assert machine.did == [*INSTALL, *INSTALL, "build", *INSTALL]


@pytest.mark.parametrize("machine", [(False, True, False)], indirect=True)
def test_what_was_built_here_and_fails_is_an_error(machine: Machine) -> None:
    with pytest.raises(BuildError, match="fails: Illegal instruction"):
        machine.provide()
    assert machine.did == ["build", *INSTALL]


@pytest.mark.parametrize("machine", [(False, True, False)], indirect=True)
def test_a_build_for_gpus_may_be_made_without_one(machine: Machine) -> None:
    assert "on this machine `import horovod.torch` fails" in machine.provide(GPU)


@pytest.mark.parametrize("machine", [(False,)], indirect=True)
def test_several_for_one_environment_wait_for_each_other(machine: Machine) -> None:
    machine.may_end.clear()
    threads = [threading.Thread(target=machine.provide) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert machine.output.both_wait.wait(60)
    machine.may_end.set()
    for thread in threads:
        thread.join(60)
    assert machine.did == ["build", *INSTALL]


def test_tensorflow_below_a_folder_with_a_space_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "My Projects" / "tensorflow"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.setattr(horovod_wheel.toolchain, "tools", lambda: ())
    console = Console(file=io.StringIO())
    wanted = Recipe("cpython-311", "no-machine", None, "2.21.0", ())
    with pytest.raises(BuildError, match=r"tensorflow, for that path has a space in it; put the"):
        horovod_wheel.build(wanted, force=False, console=console)


def test_a_build_for_gpus_without_cuda_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(horovod_wheel.toolchain, "tools", lambda: ())
    monkeypatch.setattr(horovod_wheel.toolchain, "cuda_failure", lambda environ: "no nvcc")
    with pytest.raises(BuildError, match="cannot compile Horovod for GPUs: no nvcc"):
        horovod_wheel.build(GPU, force=False, console=Console(file=io.StringIO()))
