"""Hold policies, workloads and results that papers published, to compare edl with them."""
