"""Python runs this at the start of each process of a test.

- Fewer collections of garbage: the import of a framework makes so many objects that Python looks
  for garbage some hundred times, a sixth of the import, which is most of what a test costs.
- Dataclasses have the code of their methods from a file (:mod:`kept_dataclasses`), and PyTorch
  imports its compiler when it is asked for (:mod:`lazy_compiler`).
- `horovodrun` asks PyTorch's part of Horovod first how Horovod was built. It would import
  TensorFlow for that, at each start, which takes two to three times as long.
"""

import gc
import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


class _Shortened:
    """Finds the modules whose import is made shorter, when they are first imported."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name == "torch":
            import lazy_compiler  # noqa: F401
        if name != "dataclasses":
            return None
        spec = PathFinder.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        run = spec.loader.exec_module

        def run_and_keep(module: ModuleType) -> None:
            run(module)
            import kept_dataclasses  # noqa: F401

        spec.loader.exec_module = run_and_keep  # type: ignore[method-assign]
        return spec


gc.set_threshold(50_000, 20, 20)
sys.meta_path.insert(0, _Shortened)
if any(word.endswith("/horovodrun") for word in sys.orig_argv[:3]):
    import horovod.common.util

    horovod.common.util.EXTENSIONS.sort(key=lambda name: name != "torch")
