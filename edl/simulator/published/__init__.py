"""Hold the results of papers that edl is compared with: their policies, workloads and answers."""
