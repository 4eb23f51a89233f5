"""edl makes Horovod training elastic: workers join, leave and crash while a job trains on.

Import the module of your framework: ``import edl.torch as edl``. This module stays light: it holds
only the version, ``__version__``.
"""

__version__ = "0.1.0"
