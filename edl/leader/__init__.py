"""Run the leader of a job: read the job's state, decide, write the decision, find dead workers."""
