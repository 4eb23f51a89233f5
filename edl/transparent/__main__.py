"""Run a Horovod script as one that edl trains elastically: ``python -m edl.transparent train.py``.

`edl run --transparent` puts it before the script of each worker. The script gets edl's modules when
it imports Horovod's.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence

from edl.binding import process
from edl.errors import UsageError
from edl.host.process import Main, parse_command
from edl.host.template.main import run_as_main
from edl.transparent import script

REPLACED = {
    "horovod.torch": "edl.transparent.horovod_torch",
    "horovod.tensorflow": "edl.transparent.horovod_tensorflow",
    "horovod.tensorflow.keras": "edl.transparent.horovod_keras",
    "horovod.tensorflow.keras.callbacks": "edl.transparent.horovod_callbacks",
    "horovod.keras": "edl.transparent.horovod_keras",
    "horovod.keras.callbacks": "edl.transparent.horovod_callbacks",
}
REFUSED = ("horovod.mxnet", "horovod.spark", "horovod.ray")


def run_script() -> None:
    command = parse_command([sys.executable, *sys.argv[1:]])
    if command is None or command.main is Main.OTHER or command.options:
        raise UsageError(
            "python -m edl.transparent runs a script: python -m edl.transparent train.py, or "
            "python -m edl.transparent -m package.train"
        )
    process.speak_in_sentences()
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # the working directory, which `python -m` puts there, and a script not
    _forget_own()  # of a template, which has imported them for edl
    sys.meta_path.insert(0, _HorovodLoader())
    script.replace_enumerate()
    run_as_main(command.main, command.target, list(command.arguments))


def _forget_own() -> None:
    """Let the script's next import of a module that edl replaces be found anew."""
    for name, own in REPLACED.items():
        if name in sys.modules and sys.modules[name].__name__ != own:
            del sys.modules[name]


class _HorovodLoader(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self) -> None:
        self._is_importing = False  # edl's module, which gets Horovod's own by the other finders

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if self._is_importing:
            return None
        if fullname in REFUSED:
            raise UsageError(
                "--transparent runs scripts of PyTorch, TensorFlow and Keras, and this one imports "
                f"{fullname}; run it by horovodrun"
            )
        if fullname not in REPLACED:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """Import edl's module, which keeps Horovod's, and return it in place of Horovod's."""
        self._is_importing = True
        try:
            return importlib.import_module(REPLACED[spec.name])
        finally:
            self._is_importing = False
            _forget_own()

    def exec_module(self, module: types.ModuleType) -> None:
        """Do nothing: the module was executed when it was imported."""


if __name__ == "__main__":
    run_script()
