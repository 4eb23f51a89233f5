"""Start and supervise workers on a host: by an agent, or under horovodrun; handle their output."""
