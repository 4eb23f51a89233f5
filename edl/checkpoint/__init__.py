"""The job's state on disk: the format of a checkpoint, and the directory that holds them."""
