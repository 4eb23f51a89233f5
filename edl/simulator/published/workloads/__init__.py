"""Make the jobs that papers submitted, from published measurements where the papers have them."""
