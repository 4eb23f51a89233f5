"""Python runs this at the start of each process of a test: fewer collections of garbage.

The import of a framework makes so many objects that Python looks for garbage some hundred times,
a sixth of the import, which is most of what a test costs.
"""

import gc

gc.set_threshold(50_000, 20, 20)
