"""`edl chaos`: faults on the user's own job: what strikes when, the fault, and the recovery."""
