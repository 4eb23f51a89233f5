"""Jobs as papers submitted them, and what they need of published measurements."""
