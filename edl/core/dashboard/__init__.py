"""Turn a job's status, events and measurements into the values that a dashboard shows."""
