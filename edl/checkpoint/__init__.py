"""Save and read a job's state on disk: the checkpoint format and the checkpoint directory."""
