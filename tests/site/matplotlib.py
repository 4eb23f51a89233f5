"""Before the real one in PYTHONPATH: workers of tests have no matplotlib, as most users' have.

Keras imports it if it is there, to draw images: a fifth of the import of TensorFlow.
"""

raise ImportError("the workers of tests have no matplotlib; see tests/README.md, Time")
