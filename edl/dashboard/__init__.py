"""Serve the web page of a job: `edl dashboard`."""
