"""What a job decides: members, size, who counts as dead, who holds it up, who runs where."""
