"""Keeps PyTorch's compiler unimported until something other than an optimizer asks for it.

With the first optimizer PyTorch imports ``torch._dynamo``, 836 modules and up to 2 s of processor
time for each process, only to tell it what not to compile. This module is imported by pytest's own
processes and by those that tests are forked from; any other name of ``torch._dynamo`` imports the
real one. What is started by ``exec`` has it, too (:mod:`sitecustomize`).
"""

import importlib
import sys
from types import ModuleType
from typing import Any

NAME = "torch._dynamo"


class _Config(ModuleType):
    error_on_nested_fx_trace = True  # which torch.utils.checkpoint reads

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(_compiler.import_real().config, name)


class _Compiler(ModuleType):
    config = _Config(f"{NAME}.config")

    @staticmethod
    def disable(function: Any, recursive: bool = True, wrapping: bool = True) -> Any:
        return function

    @staticmethod
    def graph_break() -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(NAME) is self:
            if name.startswith("__") and name != "__path__":
                raise AttributeError(name)
            self.import_real()
        return getattr(sys.modules[NAME], name)

    def import_real(self) -> Any:
        if sys.modules.get(NAME) is self:
            del sys.modules[NAME]
            sys.modules["torch"]._dynamo = importlib.import_module(NAME)  # type: ignore[attr-defined]
        return sys.modules[NAME]


_compiler = _Compiler(NAME)
if NAME not in sys.modules:
    sys.modules[NAME] = _compiler
