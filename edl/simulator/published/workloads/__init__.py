"""Make the jobs of published evaluations, from published measurements where there are any."""
