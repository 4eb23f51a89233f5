"""Give a script edl's modules when it imports Horovod's: :func:`replace_horovod`."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence

from edl.errors import UsageError

REPLACED = {"horovod.torch": "edl.transparent.horovod_torch"}
REFUSED = {
    "horovod.tensorflow": "TensorFlow",
    "horovod.keras": "Keras",
    "horovod.mxnet": "MXNet",
}


def replace_horovod() -> None:
    """Let imports of Horovod's modules by the script give edl's, from now on.

    Modules of edl that are imported already keep Horovod's own.
    """
    for name in REPLACED:
        sys.modules.pop(name, None)  # of a template, which has imported it for edl
    sys.meta_path.insert(0, _HorovodLoader())


class _HorovodLoader(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """An importer of the modules that take the place of Horovod's.

    While edl's module is imported, Horovod's own is found by the other finders.
    """

    def __init__(self) -> None:
        self._is_importing = False

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        """Return a spec for a module of Horovod's that edl replaces; None for any other.

        Raises:
            UsageError: the script imports a module of Horovod's that edl cannot replace.
        """
        if self._is_importing:
            return None
        if fullname in REFUSED:
            raise UsageError(
                f"--transparent runs scripts of PyTorch, and this one imports {fullname}: change "
                f"its {REFUSED[fullname]} calls as docs/get-started/from-horovod.md shows"
            )
        if fullname not in REPLACED:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """Import Horovod's module for edl, and return edl's module in its place."""
        self._is_importing = True
        try:
            importlib.import_module(spec.name)  # for edl's own modules, which keep it
            sys.modules.pop(spec.name)
            return importlib.import_module(REPLACED[spec.name])
        finally:
            self._is_importing = False

    def exec_module(self, module: types.ModuleType) -> None:
        """Do nothing: the module was executed when it was imported."""
