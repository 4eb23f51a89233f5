"""Spares a test's worker what its framework imports and no test needs: import it at first.

PyTorch's optimizers import its compiler when they are made, to say that it shall leave them alone:
1.6 s of the 3.5 s of CPU until a worker's first step. Keras imports matplotlib where it is
installed: 0.7 s of 4.3 s. The examples, which run in tests as well, import all of it, and so do
these scripts where they are no test: benchmarks/scenarios measures them beside stock Horovod.
"""

import os
import sys
import types


def _disable(function=None, *_, **__):
    """As torch._dynamo.disable does for who compiles nothing."""
    return function if function is not None else _disable


if "PYTEST_CURRENT_TEST" in os.environ:
    compiler = types.ModuleType("torch._dynamo")
    compiler.disable = _disable
    compiler.graph_break = lambda *_: None
    sys.modules["torch._dynamo"] = compiler
    sys.modules["matplotlib"] = None
