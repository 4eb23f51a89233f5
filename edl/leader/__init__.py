"""Run the leader of a job: read facts, decide, write and log, and find dead workers."""
