"""How many jobs a second the HTTP API of a cluster acknowledges, and how soon."""
