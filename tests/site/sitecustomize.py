"""Python runs this at the start of each process of a test.

- Fewer collections of garbage: the import of a framework makes so many objects that Python looks
  for garbage some hundred times, a sixth of the import, which is most of what a test costs.
- `horovodrun` asks PyTorch's part of Horovod first how Horovod was built. It would import
  TensorFlow for that, at each start, which takes two to three times as long.
"""

import gc
import sys

gc.set_threshold(50_000, 20, 20)
if any(word.endswith("/horovodrun") for word in sys.orig_argv[:3]):
    import horovod.common.util

    horovod.common.util.EXTENSIONS.sort(key=lambda name: name != "torch")
