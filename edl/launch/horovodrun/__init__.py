"""Run a job under elastic `horovodrun`: its driver, host discovery, the process of each slot."""
