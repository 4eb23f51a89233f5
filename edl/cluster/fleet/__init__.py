"""Ask other engines, such as Slurm, for the hosts of a cluster, and give them back."""
