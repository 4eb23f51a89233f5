"""What the leader of a job does: read records, decide, persist, log; and find out who is dead."""
