"""What few scripts use; the other rooms do without it, and a public name loads its file."""
