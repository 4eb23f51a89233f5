"""What edl's learning-rate rules do to small trainings: ``python -m benchmarks.adapting``.

Each figure is a module with ``measure``, which trains and returns numbers, ``draw``, and
``section``, whose words follow from the numbers. Workers are virtual: they share a process, and an
update has the mean of their gradients. A number depends on its seed, and on nothing else but the
rounding of the machine.
"""
