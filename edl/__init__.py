"""edl: stop-free elastic training for Horovod.

Import the module of your framework: ``import edl.torch as edl``. This one stays light: it
holds only the version.
"""

__version__ = "0.1.0"
