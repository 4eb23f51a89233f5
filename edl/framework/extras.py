"""Import an adapter of a library that only one of edl's extras installs."""

from __future__ import annotations

import importlib
from collections.abc import Collection
from types import ModuleType

from edl.errors import UsageError


def import_adapter(module: str, libraries: Collection[str], extra: str) -> ModuleType:
    """Import a module of edl that needs libraries which edl itself does not need."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in libraries:
            raise
        raise UsageError(
            f"{module.rpartition('.')[0]} needs the package {library}, which is not installed "
            f"here: pip install 'edl-horovod[{extra}]'"
        ) from error
