"""The training scripts in TensorFlow: edl, plain Horovod, stock Horovod Elastic.

MODES are the three ways to train the deep model (Keras' ``fit``, a loop with a ``tf.function``, a
graph), and the loop with the wide one.
"""

MODES = ("fit", "function", "graph", "wide")
