"""Who gets how many slots, and where: one policy a file; they decide from values only."""
