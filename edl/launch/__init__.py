"""Start and supervise workers: agents, the processes under horovodrun, and the workers' output."""
