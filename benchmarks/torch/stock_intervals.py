"""How often a script saves what a failure must not lose; as Horovod's own ImageNet example does."""

CHECK_EVERY, COMMIT_EVERY = 10, 100
