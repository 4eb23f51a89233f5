"""Hold what edl is compared with: policies, workloads and results that papers published."""
