"""The controllers of a live cluster, of which one leads, plans and writes the plan."""
