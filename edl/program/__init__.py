"""Run a function of a program or notebook as the script of an elastic job, for ``edl.run``.

:mod:`edl.program.run` is the side of the program. It and the workers exchange the function and its
results by files: :mod:`edl.program.function_files`.
"""
