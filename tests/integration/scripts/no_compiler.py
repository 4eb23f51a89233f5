"""PyTorch without its compiler, in a job of a test; import it before the first optimizer is made.

With that one PyTorch imports its compiler, 836 modules, which takes as long as all the rest of it,
1 s of CPU for each worker: only to tell it what not to compile. Nothing is compiled here. The
benchmarks, which have some of these scripts, too, take PyTorch as it is.
"""

import os
import sys
from types import ModuleType

import torch

from edl.testing import throttle


def disable(function, recursive=True, wrapping=True):
    return function


def graph_break():
    pass


if throttle.FILE in os.environ and "torch._dynamo" not in sys.modules:  # else nothing is saved
    compiler = ModuleType("torch._dynamo")
    compiler.disable, compiler.graph_break = disable, graph_break
    sys.modules["torch._dynamo"] = torch._dynamo = compiler
