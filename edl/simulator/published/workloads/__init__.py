"""Make the jobs of published evaluations, from published measurements where there are any.

The functions are ``pollux_jobs``, ``jsa_jobs``, ``mixed_jobs`` and ``virtualflow_jobs``, each
in the module of its evaluation.
"""
